"""The long forms of all suites for a given time, on all CPUs; ends with one line of JSON, every figure counted.

    python -m tests.torture [--minutes 30] [--seed N] [--crash-states N]

Three things go on beside each other until the time is over; what has begun is finished:
- every bit, every failing call and 2,000 kills once (about ten minutes of one CPU; in less than fifteen minutes their short forms), then
  rounds of the crash sweep with ever new seeds; one round in so many lets calls fail too, one in so many runs whole simulated nodes;
- the same rounds on each further CPU;
- a real node with its clients: signals to all kinds of processes at random times and at whitebox points (`tests.crash.campaign`), full file
  systems, no descriptors, no memory (`tests.crash.limits`), and power cuts (`tests.crash.images`), with ever new seeds. What needs root,
  loop devices or a program that is not there is left out, and said.

With `--crash-states` also until so many states were opened, however long that
takes. Crash states are told apart by content over all rounds.

Ends with 1 on a failure; its line names the command and the seed that show it again, and `--seed` takes up another stretch of seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
ROUND_STATES = 20_000
_LONG_MINUTES = 15
_ROUNDS_PER_FULL_ROUND = 16
"""A round with errors and damaged directories takes four times as long as one of crashes alone."""
_SEEDS_PER_ROUND = 1_000
_ROUNDS_PER_NODE_ROUND = 4
"""One round in so many simulates whole nodes."""
_NODE_SEEDS, _NODE_STEPS = 40, 2_000
_REAL_NODE_PARTS = ("tests.crash.campaign", "tests.crash.limits", "tests.crash.images")
_NODE_TESTS = (
    "tests/integration/test_caps.py",
    "tests/integration/test_adoption.py",
    "-k",
    "killed or number_of_cores",
)
_LONG_NODE_TESTS = {"QUIVER_TEST_CAP_ROUNDS": "100", "QUIVER_TEST_CORES": "8,3,1,16"}
_NOT_ADDED = ("call_sites", "call_sites_hit", "file_kinds", "file_kinds_hit")
"""The same in every round: the best one counts."""
_STATES = "crash_states"


class Torture:
    """One lane per CPU and one for the real node, which mostly waits; each runs one process after the other."""

    def __init__(self, minutes: float, seed: int, crash_states: int) -> None:
        self.started = time.monotonic()
        self._deadline = self.started + 60 * minutes
        self._is_long = minutes >= _LONG_MINUTES
        self._seed = seed
        self._crash_states = crash_states
        self._rounds: Iterator[int] = itertools.count()
        self._mutex = threading.Lock()
        self.figures: Counter[str] = Counter()
        self._images: set[int] = set()
        self.failures: list[str] = []

    def run(self) -> None:
        lanes = [threading.Thread(target=self._sweep) for _ in os.sched_getaffinity(0)]
        lanes[0] = threading.Thread(target=self._everything_else)
        lanes.append(threading.Thread(target=self._torment_node))
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    def _everything_else(self) -> None:
        self._run("tests.evidence", *(["--long"] if self._is_long else []), "--seed", str(self._seed))
        if self._is_long:
            self._run("pytest", "-q", *_NODE_TESTS, environment=_LONG_NODE_TESTS)
        self._sweep()

    def _torment_node(self) -> None:
        """Every part at least once."""
        efforts = (60, 3, 12) if self._is_long else (8, 1, 3)
        for number in itertools.count():
            for part, effort in zip(_REAL_NODE_PARTS, efforts, strict=True):
                if self.failures or (number and not self._goes_on()):
                    return
                self._run(part, str(effort), str((self._seed << 20) + number))

    def _sweep(self) -> None:
        while not self.failures and self._goes_on():
            with self._mutex:
                number = next(self._rounds)
            if number % _ROUNDS_PER_NODE_ROUND == _ROUNDS_PER_NODE_ROUND - 1:
                self._simulate_nodes(number)
                continue
            seed = (self._seed << 20) + _SEEDS_PER_ROUND * (1 + number)
            with tempfile.NamedTemporaryFile() as images:
                arguments = ["--report", "--alone", "--crash-states", str(self._round_states), "--seed", str(seed)]
                is_full = number % _ROUNDS_PER_FULL_ROUND == self._full_round
                arguments.append("--all-errors" if is_full else "--crashes-only")
                self._run("tests.sim", *arguments, "--processes", "1", "--images", images.name)
                self._add_images(np.frombuffer(images.read(), np.uint64).tolist())

    def _simulate_nodes(self, number: int) -> None:
        count = _NODE_SEEDS if self._is_long else _NODE_SEEDS // 8
        first = (self._seed << 20) + _SEEDS_PER_ROUND * (1 + number)
        arguments = ("--seeds", f"{first}:{first + count}", "--steps", str(_NODE_STEPS))
        self._run("tests.sim.node", *arguments, called={"seeds": "node_seeds", "steps": "node_steps"})

    @property
    def _round_states(self) -> int:
        """A round of a short form must end in it."""
        return ROUND_STATES if self._is_long else ROUND_STATES // 8

    @property
    def _full_round(self) -> int:
        """Which of them it is; in a short form none is."""
        return 1 if self._is_long else -1

    def _add_images(self, hashes: list[int]) -> None:
        with self._mutex:
            self._images.update(hashes)
            self.figures[_STATES] = len(self._images)

    def _goes_on(self) -> bool:
        return time.monotonic() < self._deadline or self.figures["crash_states"] < self._crash_states

    def _run(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        called: Mapping[str, str] | None = None,
    ) -> None:
        """Run a module to its end and add its figures: all, or those that are named here, under that name."""
        command = [sys.executable, "-m", module, *arguments]
        started = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        with self._mutex:
            print(f"# {' '.join(command[2:])}: {time.monotonic() - started:.0f} s", flush=True)
            if ran.returncode:
                self.failures.append(f"{' '.join(command[1:])} ended with {ran.returncode}")
                print(ran.stdout[-4000:], ran.stderr[-4000:], sep="\n", flush=True)
            for line in ran.stderr.splitlines():
                if line.startswith("skipped "):
                    print(f"# {line}", flush=True)
            last = (ran.stdout.splitlines() or [""])[-1]
            found = json.loads(last) if last.startswith("{") else {}
            self._add(found if called is None else {name: found.get(key, 0) for key, name in called.items()})

    def _add(self, figures: dict[str, int]) -> None:
        for name, value in figures.items():
            if name in _NOT_ADDED:
                self.figures[name] = max(self.figures[name], value)
            elif name not in ("seconds", _STATES):
                self.figures[name] += value


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="The long forms of all suites.")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crash-states", type=int, default=0, help="at least so many, however long it takes")
    arguments = parser.parse_args()
    torture = Torture(arguments.minutes, arguments.seed, arguments.crash_states)
    torture.run()
    torture.figures["seed"] = arguments.seed
    torture.figures["seconds"] = round(time.monotonic() - torture.started)
    torture.figures["open_failures"] = max(torture.figures["open_failures"], len(torture.failures))
    for failure in torture.failures:
        print(failure)
    print(json.dumps(dict(sorted(torture.figures.items()))))
    return bool(torture.failures)


if __name__ == "__main__":
    sys.exit(main())
