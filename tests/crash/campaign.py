"""A seeded campaign of kills against a real node: producers push, a subscriber reads, and one of them dies each round.

Whoever dies is started again, the supervisor with a new node on the same directories. At the end everything drains, and the
journals are compared: every acknowledged bundle was delivered, equal to what was pushed, under the id of its receipt.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import psutil

from tests.crash.bundles import TOPIC
from tests.integration.node_process import ROOT, Directories, command_line, run_quiver

PRODUCERS = 4
SUBSCRIBER = "oracle"
DEADLINE_SECONDS = 60.0
CONFIG = f"""
[topics.{TOPIC}.segment]
target_size = "1MiB"
max_open_duration = "200ms"
"""


@dataclass
class Outcome:
    """What the journals say at the end."""

    rounds: int
    kills: Counter[str]
    acknowledged: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """(producer, number) to the (core, segment_seq, bundle_index) of its receipt."""
    delivered: dict[tuple[int, int], set[tuple[int, int, int]]] = field(default_factory=dict)
    deliveries: int = 0
    different: list[str] = field(default_factory=list)

    @property
    def lost(self) -> list[tuple[int, int]]:
        return [bundle for bundle in self.acknowledged if bundle not in self.delivered]

    @property
    def moved(self) -> list[tuple[int, int]]:
        """Delivered, but never under the id that its receipt names."""
        return [b for b, place in self.acknowledged.items() if place not in self.delivered.get(b, {place})]


class Campaign:
    """See the module. A context manager: nothing is left running."""

    def __init__(self, seed: int, cores: int = 2) -> None:
        self._rng = random.Random(seed)
        self._cores = cores
        self._directories = Directories()
        self._journals = Path(tempfile.mkdtemp(prefix="journals-", dir=self._directories.base))
        self._config = self._directories.base / "quiver.toml"
        self._config.write_text(CONFIG)
        self._log = (self._directories.base / "node.log").open("ab")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.kills: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self._start_node()
        for producer in range(PRODUCERS):
            self._start_producer(producer)
        self._start_subscriber()
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._log.close()
        self._directories.remove()

    # --- starting --------------------------------------------------------------------------------------------------------

    def _start(self, name: str, command: list[str]) -> None:
        self._processes[name] = subprocess.Popen(
            command, cwd=ROOT, stdout=self._log, stderr=self._log, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )

    def _start_node(self) -> None:
        arguments = ["up", "--config", str(self._config), "--cores", str(self._cores)]
        arguments += ["--data-dir", str(self._directories.data), "--run-dir", str(self._directories.run)]
        self._start("supervisor", command_line("quiver_actors.cli.main", *arguments))
        ready = run_quiver("status", "--run-dir", str(self._directories.run), "--wait", "ready", "--timeout", "30s")
        assert ready.returncode == 0, f"the node did not become ready: {ready.stderr}\n{self.node_log()}"

    def _start_producer(self, producer: int) -> None:
        journal = self._producer_journal(producer)
        first = self._next_number(journal)
        arguments = [str(self._directories.run), str(producer), str(first), str(journal)]
        self._start(f"producer-{producer}", command_line("tests.crash.producer", *arguments))

    def _start_subscriber(self) -> None:
        arguments = [str(self._directories.run), SUBSCRIBER, str(self._journals / "delivered")]
        self._start("subscriber", command_line("tests.crash.subscriber", *arguments))

    def _producer_journal(self, producer: int) -> Path:
        return self._journals / f"producer-{producer}"

    def _next_number(self, journal: Path) -> int:
        """A number that this producer has surely not used: numbers under way when it died may be in the store."""
        words = [line.split() for line in _lines(journal)]
        highest = max((int(w[1]) + (int(w[2]) if w[0] == "refused" else 0) for w in words), default=-1)
        return highest + 1000

    # --- rounds ----------------------------------------------------------------------------------------------------------

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._wait_for_progress(self._rng.randrange(1, 60))
            victim = self._rng.choice(("worker", "worker", "supervisor", "producer", "subscriber"))
            self.kills[victim] += 1
            getattr(self, f"_kill_{victim}")()

    def _kill_worker(self) -> None:
        children = psutil.Process(self._processes["supervisor"].pid).children()
        if children:
            children[self._rng.randrange(len(children))].send_signal(signal.SIGKILL)

    def _kill_supervisor(self) -> None:
        children = psutil.Process(self._processes["supervisor"].pid).children()
        self._kill("supervisor")
        _, alive = psutil.wait_procs(children, timeout=DEADLINE_SECONDS)
        assert not alive, "workers outlived their supervisor"
        self._start_node()

    def _kill_producer(self) -> None:
        producer = self._rng.randrange(PRODUCERS)
        self._kill(f"producer-{producer}")
        self._start_producer(producer)

    def _kill_subscriber(self) -> None:
        self._kill("subscriber")
        self._start_subscriber()

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        assert process.poll() is None, f"{name} had ended by itself with {process.returncode}:\n{self.node_log()}"
        process.send_signal(signal.SIGKILL)
        process.wait()

    def _wait_for_progress(self, acknowledgements: int) -> None:
        """Until that many more bundles were acknowledged."""
        target = self._acknowledged_count() + acknowledgements
        self._wait(lambda: self._acknowledged_count() >= target, "producers make no progress")

    def _acknowledged_count(self) -> int:
        return sum(len(_lines(self._producer_journal(producer))) for producer in range(PRODUCERS))

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended with {process.returncode}:\n{self.node_log()}"
            assert time.monotonic() < deadline, f"{what}:\n{self.node_log()}"
            select.select([], [], [], 0.01)

    # --- the end ---------------------------------------------------------------------------------------------------------

    def finish(self, rounds: int) -> Outcome:
        """Stop pushing, wait until the subscriber has everything, and read the journals."""
        for producer in range(PRODUCERS):
            self._kill(f"producer-{producer}")
            del self._processes[f"producer-{producer}"]
        self._wait(lambda: self._lag() == 0, "the subscriber does not catch up")
        outcome = Outcome(rounds, self.kills)
        for producer in range(PRODUCERS):
            for line in _lines(self._producer_journal(producer)):
                kind, number, *place = line.split()
                if kind == "acked":
                    core, segment_seq, bundle_index = map(int, place)
                    outcome.acknowledged[producer, int(number)] = core, segment_seq, bundle_index
        for line in _lines(self._journals / "delivered"):
            verdict, producer_, number, core_, segment_seq_, bundle_index_ = line.split()
            outcome.deliveries += 1
            places = outcome.delivered.setdefault((int(producer_), int(number)), set())
            places.add((int(core_), int(segment_seq_), int(bundle_index_)))
            if verdict != "same":
                outcome.different.append(line)
        return outcome

    def _lag(self) -> int:
        shown = run_quiver("status", "--run-dir", str(self._directories.run), "--json")
        subscribers = json.loads(shown.stdout)["subscribers"]
        return sum(row["lag_bundles"] for row in subscribers) if subscribers else -1

    def node_log(self) -> str:
        return (self._directories.base / "node.log").read_text()[-6000:]


def _lines(journal: Path) -> list[str]:
    """The whole lines of a journal."""
    if not journal.exists():
        return []
    return journal.read_bytes().decode().split("\n")[:-1]


def main() -> None:
    """`python -m tests.crash.campaign [SEED] [ROUNDS]`"""
    seed, rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 1, int(sys.argv[2]) if len(sys.argv) > 2 else 30
    with Campaign(seed) as campaign:
        campaign.run(rounds)
        outcome = campaign.finish(rounds)
    print(
        f"seed={seed} rounds={rounds} kills={dict(outcome.kills)} acknowledged={len(outcome.acknowledged)} "
        f"deliveries={outcome.deliveries} lost={len(outcome.lost)} moved={len(outcome.moved)} different={len(outcome.different)}"
    )
    sys.exit(bool(outcome.lost or outcome.moved or outcome.different))


if __name__ == "__main__":
    main()
