"""What the suites beside the simulated disk come to: parsers, flipped bits, failing system calls, kills. All figures are counted.

    python -m tests.evidence [--long] [--seed N]        ends with one line of JSON

The suites that fork run in processes of their own, which have imported everything once and have one thread of ours.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from tests.crash.kill_loop import KillTally
from tests.crash.syscall_faults import FaultTally
from tests.fuzz import bitflips
from tests.fuzz.bitflips import FlipTally
from tests.fuzz.campaign import FuzzTally
from tests.fuzz.parsers import TARGETS

ROOT = Path(__file__).parent.parent
_TIMEOUT_SECONDS = 3600.0

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Effort:
    """Amount of work."""

    parser_inputs: int
    """Inputs for each parser."""
    flips: int | None
    """Sampled flips in each kind of file; None: every bit of it."""
    fault_cases: int
    """0: every call with every errno."""
    kills: int


QUICK = Effort(25_000, 500, 160, 100)
LONG = Effort(400_000, None, 0, 2_000)


@dataclass
class Evidence:
    """One run of the suites."""

    parsers: Mapping[str, FuzzTally] = field(default_factory=dict)
    flips: Mapping[str, FlipTally] = field(default_factory=dict)
    faults: FaultTally = field(default_factory=FaultTally)
    kills: KillTally = field(default_factory=KillTally)

    def failures(self) -> list[str]:
        """Return every breach of a rule."""
        tallies: list[FuzzTally | FlipTally | FaultTally | KillTally] = [
            *self.parsers.values(),
            *self.flips.values(),
            self.faults,
            self.kills,
        ]
        return [failure for tally in tallies for failure in tally.failures]

    def figures(self) -> dict[str, int]:
        return {
            "syscall_faults": self.faults.cases,
            "kills": self.kills.kills,
            "parser_inputs": sum(tally.inputs for tally in self.parsers.values()),
            "bit_flips": sum(tally.flips for tally in self.flips.values()),
            "bit_flips_detected": sum(tally.detected for tally in self.flips.values()),
            "bit_flips_harmless": sum(tally.harmless for tally in self.flips.values()),
            "bit_flips_that_cost_more": sum(tally.flips_that_cost_more for tally in self.flips.values()),
            "open_failures": len(self.failures()),
        }


def parser_counts(effort: Effort) -> dict[str, int]:
    """Inputs of each parser."""
    return dict.fromkeys(TARGETS, effort.parser_inputs)


def parsers(effort: Effort, seed: int = 0) -> dict[str, FuzzTally]:
    counts = parser_counts(effort)
    first = seed * 2 * max(counts.values())
    arguments = ("--counts", json.dumps(counts), "--first", str(first))
    return _run("tests.fuzz.campaign", dict[str, FuzzTally], *arguments)


def flips(effort: Effort) -> dict[str, FlipTally]:
    return bitflips.run(bitflips.every) if effort.flips is None else bitflips.run_sample(effort.flips)


def kills(effort: Effort, seed: int = 1) -> KillTally:
    return _run("tests.crash.kill_loop", KillTally, str(effort.kills), str(seed))


def syscall_faults(effort: Effort) -> FaultTally:
    """Raises OSError: no call can be made to fail here; says why."""
    return _run("tests.crash.syscall_faults", FaultTally, str(effort.fault_cases))


def _run(module: str, outcome: type[Outcome], *arguments: str) -> Outcome:
    """Run a module that ends with one line of JSON, whatever its exit code."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if not ran.stdout:
        raise OSError(f"{module}: {ran.stderr.strip().splitlines()[-1:]}")
    return msgspec.json.decode(ran.stdout.splitlines()[-1], type=outcome)


def run(effort: Effort, seed: int = 0) -> Evidence:
    """All suites. Where no system call can be made to fail, that is said and counted as none."""
    logging.disable(logging.CRITICAL)
    evidence = Evidence()
    with _timed("parsers"):
        evidence.parsers = parsers(effort, seed)
    with _timed("flipped bits"):
        evidence.flips = flips(effort)
    with _timed("kills"):
        evidence.kills = kills(effort, seed + 1)
    with _timed("system calls"):
        try:
            evidence.faults = syscall_faults(effort)
        except OSError as error:
            print(f"no system calls were made to fail: {error}", file=sys.stderr)
    return evidence


@contextlib.contextmanager
def _timed(suite: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    print(f"# {suite}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


@functools.cache
def quick() -> Evidence:
    """Once a process, as `make test` does it."""
    return run(QUICK)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.evidence", description="Parsers, bits, system calls, kills.")
    parser.add_argument("--long", action="store_true", help="every bit, every call, 2,000 kills, millions of inputs")
    parser.add_argument("--seed", type=int, default=0, help="other inputs, other kills")
    arguments = parser.parse_args()
    evidence = run(LONG if arguments.long else QUICK, arguments.seed)
    for kind, tallies in (("parser", evidence.parsers), ("flips", evidence.flips)):
        for name, tally in tallies.items():
            print(kind, name, {key: value for key, value in vars(tally).items() if key != "failures"})
    for failure in evidence.failures()[:50]:
        print(failure)
    print(json.dumps(evidence.figures()))
    return bool(evidence.failures())


if __name__ == "__main__":
    sys.exit(main())
