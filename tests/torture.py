"""All suites in their long forms for a given time, on all CPUs; ends with one line of JSON, every figure counted.

    python -m tests.torture [--minutes 30] [--seed N] [--crash-states N]

On each CPU one process after the other does a piece of one of the `KINDS`, with ever new seeds: that which is furthest behind its pace. A
kind's pace is what half an hour is to hold of it; where none is behind, crash states are swept. Beside them a real node with its clients,
which mostly waits (`NODE_PARTS`): signals to all kinds of processes, owners of an embedded store one after the other, limits, power cuts,
evictions under kills, once in half an hour. What needs root, loop devices or a program that is not there is left out, and said. In less
than fifteen minutes (short forms) pieces are smaller, and the real node does what it comes to.

A seed (`node_seeds`) is one run of a whole simulated node, of `NODE_STEPS` steps and then the calm: see `tests.sim.node`. Crash states are
told apart by content over all pieces; `crash_states_opened` counts each at every moment of a run at which something else was known. What
has begun when the time is over is finished; with `--crash-states` sweeps go on until so many were found: `..._in_time` are those before.

Ends with 1 on a failure; its line names the command and the seed that show it again, and `--seed` takes up another stretch of seeds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.parsers import TARGETS

ROOT = Path(__file__).parent.parent
NODE_STEPS = 500
BITS = 142_000
"""Bits in all files of `tests.fuzz.bitflips` together, about; half an hour flips each of them."""
STATES = "crash_states"
_OPENED = "crash_states_opened"
_HALF_HOUR_SECONDS = 1_800.0
_LEAD = 1.05
"""Factor by which all kinds are to be ahead of the time, so that the last piece ends in it."""
_LONG_MINUTES = 15
_SHORT_PART = 4
"""Divisor of the size of a piece in a short form."""
_SEEDS_PER_PIECE = 1_000
_PIECES_PER_SWEEP = 3
"""One piece in so many sweeps crash states, also on a machine that is too slow for the paces."""
_FAILURES_MAX = 5
_SHOWN_CHARACTERS = 4_000
"""Characters shown of a failed piece's output, from either end."""
_NOT_ADDED = ("file_kinds", "file_kinds_hit")
"""Figures that are the same in every piece: the best one counts."""


@dataclass(frozen=True)
class Piece:
    """The work of one process."""

    number: int
    """Number of the piece among those of its kind, from 0."""
    amount: int
    seed: int
    """Seed of the piece; the next `_SEEDS_PER_PIECE` seeds are its own too, no other piece has them."""


@dataclass(frozen=True)
class Kind:
    name: str
    """Figure that counts the work of this kind."""
    in_half_an_hour: int
    amount: int
    """Size of a piece in a long run, for about half a minute on one CPU."""
    command: Callable[[Piece], list[str]]
    figures: Callable[[Any], dict[str, int]]
    """Takes the figures that count out of the JSON in the last line of the process."""


def _figures(**names: str) -> Callable[[Any], dict[str, int]]:
    """Return a function that takes figures out of a flat object, under new names, and counts the failures that the object lists."""

    def read(found: Any) -> dict[str, int]:
        return {name: found.get(key, 0) for name, key in names.items()} | {"open_failures": len(found["failures"])}

    return read


def _sum(**names: str) -> Callable[[Any], dict[str, int]]:
    """Return a function that adds up what `_figures` takes out of each member of an object."""

    def read(found: Any) -> dict[str, int]:
        total: Counter[str] = Counter()
        for each in found.values():
            total.update(_figures(**names)(each))
        return dict(total)

    return read


def _fuzz(piece: Piece) -> list[str]:
    target = list(TARGETS)[piece.number % len(TARGETS)]
    counts = json.dumps({target: piece.amount})
    return ["tests.fuzz.campaign", "--counts", counts, "--first", str(piece.seed * piece.amount)]


def _simulate(piece: Piece) -> list[str]:
    return ["tests.sim.node", "--seeds", f"{piece.seed}:{piece.seed + piece.amount}", "--steps", str(NODE_STEPS)]


def _sweep(piece: Piece) -> list[str]:
    amount = ["--crash-states", str(piece.amount), "--seed", str(piece.seed)]
    return ["tests.sim", "--report", "--alone", "--crashes-only", "--processes", "1", *amount]


def _flip(piece: Piece) -> list[str]:
    parts = -(-BITS // piece.amount)
    return ["tests.fuzz.bitflips", "--part", f"{piece.number % parts}/{parts}"]


def _module(name: str) -> Callable[[Piece], list[str]]:
    return lambda piece: [name, str(piece.amount), str(piece.seed)]


CRASHES = Kind(STATES, 1_000_000, 10_000, _sweep, dict)
KINDS = (
    Kind(
        "node_seeds",
        5_000,
        200,
        _simulate,
        _figures(node_seeds="seeds", node_steps="steps", node_faults="faults", node_told_lost="told_lost"),
    ),
    Kind("kills", 2_000, 200, _module("tests.crash.kill_loop"), _figures(kills="kills", kills_at_points="at_points")),
    Kind("syscall_faults", 2_000, 160, _module("tests.crash.syscall_faults"), _figures(syscall_faults="cases")),
    Kind("parser_inputs", 550_000, 50_000, _fuzz, _sum(parser_inputs="inputs")),
    Kind(
        "bit_flips",
        BITS,
        10_000,
        _flip,
        _sum(bit_flips="flips", bit_flips_detected="detected", bit_flips_harmless="harmless"),
    ),
)
LIMITS = ("tmpfs", "ext4", "inodes", "file_size", "node_descriptors", "client_descriptors", "memory", "cap")
NODE_PARTS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("tests.crash.campaign", 30, 4, ()),
    ("tests.crash.owners", 40, 6, ()),
    ("tests.crash.live_flips", 5_000, 500, ()),
    ("tests.crash.images", 4, 1, ("ext4",)),
    *(("tests.crash.limits", 2, 1, (limit,)) for limit in LIMITS),
    ("tests.crash.images", 4, 1, ("xfs",)),
    ("tests.crash.images", 4, 1, ("btrfs",)),
)
"""Module, effort in a long run and in a short form, and further arguments."""
_EVICTION_TESTS = ("tests/integration/test_caps.py", "tests/integration/test_adoption.py")
_EVICTIONS = ("pytest", "-q", *_EVICTION_TESTS, "-k", "killed or number_of_cores")
_EVICTION_ROUNDS = {"QUIVER_TEST_CAP_ROUNDS": "10"}


def _shortened(text: str) -> str:
    """Shorten the text in its middle: a failure stands in front, the end of the run behind."""
    return text if len(text) <= 2 * _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]} ... {text[-_SHOWN_CHARACTERS:]}"


class Torture:
    """One lane per CPU and one for the real node; each runs one process after the other."""

    def __init__(self, minutes: float, seed: int, crash_states: int) -> None:
        self.started = time.monotonic()
        self._deadline = self.started + 60 * minutes
        self._is_long = minutes >= _LONG_MINUTES
        self._seed = seed
        self._crash_states = crash_states
        self._pieces: Iterator[int] = itertools.count(1)
        self._mutex = threading.Lock()
        self._begun: Counter[Kind] = Counter()
        self._amounts: Counter[Kind] = Counter()
        """Done, or begun."""
        self._impossible: set[Kind] = set()
        """Kinds that cannot be done here: their process says why."""
        self.figures: Counter[str] = Counter()
        self._images: set[int] = set()
        self.failures: list[str] = []

    def run(self) -> None:
        lanes = [threading.Thread(target=self._work) for _ in os.sched_getaffinity(0)]
        lanes.append(threading.Thread(target=self._torment_node))
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join()

    # --- what is next ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._goes_on():
            with self._mutex:
                number = next(self._pieces)
                kind = CRASHES if number % _PIECES_PER_SWEEP == 0 else self._next_kind()
                piece = self._piece(kind, number)
            if kind is CRASHES:
                with tempfile.NamedTemporaryFile() as images:
                    self._run(*kind.command(piece), "--images", images.name)
                    self._add_images(np.frombuffer(images.read(), np.uint64).tolist())
                continue
            done = self._run(*kind.command(piece), figures=kind.figures).get(kind.name, 0)
            with self._mutex:
                self._amounts[kind] += done - piece.amount
                self._impossible |= set() if done else {kind}

    def _next_kind(self) -> Kind:
        elapsed = min(time.monotonic(), self._deadline) - self.started
        pace = _LEAD * elapsed / _HALF_HOUR_SECONDS
        shares = {kind: self._amounts[kind] / kind.in_half_an_hour for kind in KINDS if kind not in self._impossible}
        behind = min(shares, key=shares.__getitem__, default=CRASHES)
        return behind if shares.get(behind, pace) < pace else CRASHES

    def _piece(self, kind: Kind, number: int) -> Piece:
        amount = kind.amount if self._is_long else kind.amount // _SHORT_PART
        piece = Piece(self._begun[kind], amount, (self._seed << 20) + _SEEDS_PER_PIECE * number)
        self._begun[kind] += 1
        self._amounts[kind] += amount
        return piece

    def _goes_on(self) -> bool:
        if len(self.failures) >= _FAILURES_MAX:
            return False
        if time.monotonic() < self._deadline:
            return True
        with self._mutex:
            for name in (STATES, _OPENED):
                self.figures.setdefault(f"{name}_in_time", self.figures[name])
        return self.figures[STATES] < self._crash_states

    # --- the real node -----------------------------------------------------------------------------------------------------

    def _torment_node(self) -> None:
        """Every part once in half an hour; in a short form until its time is over."""
        for number in itertools.count():
            for module, effort, small_effort, more in NODE_PARTS:
                if not self._goes_on():
                    return
                effort = effort if self._is_long else small_effort
                self._run(module, str(effort), str((self._seed << 20) + number), *more)
            if self._is_long and self._goes_on():
                self._run(*_EVICTIONS, environment=_EVICTION_ROUNDS)
            next_at = self.started + (number + 1) * _HALF_HOUR_SECONDS
            while self._goes_on() and time.monotonic() < next_at:
                threading.Event().wait(1.0)

    # --- processes ---------------------------------------------------------------------------------------------------------

    def _run(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        figures: Callable[[Any], dict[str, int]] = dict,
    ) -> dict[str, int]:
        """Run a module to its end, add the figures of its last line, and return them."""
        command = [sys.executable, "-m", module, *arguments]
        started = time.monotonic()
        ran = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0", **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        last = (ran.stdout.splitlines() or [""])[-1]
        found = figures(json.loads(last)) if last.startswith("{") else {}
        with self._mutex:
            print(f"# {' '.join(command[2:])}: {time.monotonic() - started:.0f} s", flush=True)
            if ran.returncode:
                self.failures.append(f"{' '.join(command[1:])} ended with {ran.returncode}")
                print(_shortened(ran.stdout), _shortened(ran.stderr), sep="\n", flush=True)
            for line in ran.stderr.splitlines():
                if line.startswith("skipped "):
                    print(f"# {line}", flush=True)
            self._add(found)
        return found

    def _add(self, figures: dict[str, int]) -> None:
        for name, value in figures.items():
            if name in _NOT_ADDED:
                self.figures[name] = max(self.figures[name], value)
            elif name not in ("seconds", STATES):
                self.figures[name] += value

    def _add_images(self, hashes: list[int]) -> None:
        with self._mutex:
            self._images.update(hashes)
            self.figures[STATES] = len(self._images)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


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
    torture.figures["cpu_seconds"] = round(_cpu_seconds())
    torture.figures["open_failures"] = max(torture.figures["open_failures"], len(torture.failures))
    for failure in torture.failures:
        print(failure)
    print(json.dumps(dict(sorted(torture.figures.items()))))
    return bool(torture.failures)


if __name__ == "__main__":
    sys.exit(main())
