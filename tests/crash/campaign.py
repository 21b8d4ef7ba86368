"""A seeded campaign against a real node: SIGKILL, SIGTERM, SIGSTOP and SIGCONT of supervisor, workers, producers and subscribers.

    python -m tests.crash.campaign [ROUNDS] [SEED]          ends with two lines of JSON: all, and what adds up

Half of them come at a random time, half at a whitebox point that the process reaches by itself (`points`), starts and recoveries
included. Whoever dies is started again, the supervisor with a new node on the same directories; whoever is stopped goes on after a
while. At the end everything drains, and the `Book` compares.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from tests.crash.live_node import PRODUCER, SUBSCRIBER, SUPERVISOR, WORKER, CampaignFailed, LiveNode, rest
from tests.crash.points import Plan, Struck
from tests.crash.showing import numbers_given, show

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
_VICTIMS = (WORKER, WORKER, WORKER, SUPERVISOR, PRODUCER, SUBSCRIBER)
_STOP_SECONDS_MAX = 0.5
_STRIKE_SECONDS = 20.0
_CALLS_MAX = {SUPERVISOR: 60, WORKER: 2_000, PRODUCER: 600, SUBSCRIBER: 600}
"""About as many as the process makes in a second or two."""


@dataclass
class CampaignTally:
    """Counted while it was done."""

    rounds: int = 0
    signals: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Victim and signal."""
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Victim, moment and call of those that came at a point."""
    points_missed: int = 0
    """Plans whose point was not reached in time."""
    acknowledged: int = 0
    delivered: int = 0
    redelivered: int = 0
    durable: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, int]:
        sent = {number: sum(n for name, n in self.signals.items() if name.endswith(number.name)) for number in SIGNALS}
        return {
            "node_kills": sent[signal.SIGKILL],
            "node_terms": sent[signal.SIGTERM],
            "node_stops": sent[signal.SIGSTOP],
            "node_points": sum(self.points.values()),
            "node_acknowledged": self.acknowledged,
            "open_failures": len(self.failures),
        }


class Storm:
    """Sends random signals to the processes of a real node, in rounds."""

    def __init__(self, node: LiveNode, random: Random, tally: CampaignTally) -> None:
        self._node = node
        self._random = random
        self.tally = tally

    def round(self) -> None:
        random = self._random
        role, number, at_point = random.choice(_VICTIMS), random.choice(SIGNALS), random.random() < 0.5
        self._node.progress(random.randrange(1, 40))
        name = self._pick(role)
        (self._at_point if at_point else self._now)(role, name, number)
        self.tally.rounds += 1

    def _pick(self, role: str) -> str:
        choices = {PRODUCER: self._node.producers, SUBSCRIBER: self._node.subscribers}
        return self._random.choice(choices.get(role, [role]))

    def _now(self, role: str, name: str, number: signal.Signals) -> None:
        pid = self._pid(role, name)
        if pid:
            self._signal(role, pid, number)
            self._after(role, name, pid, number)

    def _at_point(self, role: str, name: str, number: signal.Signals) -> None:
        """A new life of it takes the plan."""
        nth = self._random.randint(1, self._random.choice((10, 100, _CALLS_MAX[role])))
        self._node.points.set(role, Plan(nth, self._random.random() < 0.5, number))
        if (pid := self._pid(role, name)) == 0:
            self._node.points.withdraw(role)
            return
        self._signal(role, pid, signal.SIGKILL)
        self._after(role, name, pid, signal.SIGKILL, ready=False)
        struck = self._wait_struck()
        if struck is None:
            self._give_up(role, name)
            return
        self.tally.signals[f"{role} {number.name}"] += 1
        self.tally.points[f"{role} {struck.point}"] += 1
        self._after(role, name, struck.pid, number)

    def _wait_struck(self) -> Struck | None:
        found: list[Struck] = []
        deadline = time.monotonic() + _STRIKE_SECONDS

        def is_over() -> bool:
            if (struck := self._node.points.struck()) is not None:
                found.append(struck)
            return bool(found) or time.monotonic() > deadline

        # Who dies at its point is no failure.
        while not is_over():
            rest(0.02)
        return found[0] if found else None

    def _give_up(self, role: str, name: str) -> None:
        """Withdraw the plan of a round and kill its processes, so that none of them dies by it in a later round."""
        self.tally.points_missed += 1
        self._node.points.withdraw(role)
        for pid in self._node.worker_pids(ask=False) if role == WORKER else [self._node.pids[name]]:
            self._signal(role, pid, signal.SIGKILL)
            self._after(role, name, pid, signal.SIGKILL)
        self._node.points.struck()

    def _pid(self, role: str, name: str) -> int:
        """0: no worker serves at the moment."""
        if role != WORKER:
            return self._node.pids[name]
        pids = self._node.worker_pids()
        return self._random.choice(pids) if pids else 0

    def _signal(self, role: str, pid: int, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            self.tally.signals[f"{role} {number.name}"] += 1

    def _after(self, role: str, name: str, pid: int, number: signal.Signals, *, ready: bool = True) -> None:
        """Wait until the process goes on, or another one takes its place."""
        if number is signal.SIGSTOP:
            rest(self._random.random() * _STOP_SECONDS_MAX)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        elif role == WORKER:
            self._node.wait_gone([pid])
        else:
            self._replace(name)
        if role == SUPERVISOR and ready:
            self._node.wait_ready()

    def _replace(self, name: str) -> None:
        workers = self._node.worker_pids(ask=False) if name == SUPERVISOR else []
        self._node.wait_end(self._node.pids.pop(name))
        self._node.wait_gone(workers)
        self._node.start(name)


def run(rounds: int, seed: int) -> CampaignTally:
    tally, random = CampaignTally(), Random(f"campaign {seed}")
    with guarded(tally.failures.append, f"seed {seed}"), LiveNode() as node:
        storm = Storm(node, random, tally)
        try:
            for _ in range(rounds):
                storm.round()
            node.settle()
            tally.failures += node.book.told()[:5]
        finally:
            book = node.book
            tally.acknowledged, tally.refused = len(book.acknowledged), dict(book.refused)
            tally.delivered, tally.redelivered, tally.durable = (
                book.counts[name] for name in ("delivered", "redelivered", "durable")
            )
    return tally


@contextlib.contextmanager
def guarded(tell: Callable[[str], None], where: str) -> Iterator[None]:
    """A campaign that fails is told, with its seed."""
    try:
        yield
    except CampaignFailed as failure:
        tell(f"{where}: {failure}")


def main() -> int:
    rounds, seed = numbers_given(30, 1)
    started = time.monotonic()
    return show(started, run(rounds, seed))


if __name__ == "__main__":
    sys.exit(main())
