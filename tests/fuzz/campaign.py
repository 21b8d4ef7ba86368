"""Feeds mutants to the parsers in a child process with little memory, and judges how each of them took it.

A parser may refuse an input only with an error of ours, within a second of CPU, and within 64 MiB more than the process had. The child
says in shared memory which input it is at, so that one that kills it, or keeps it for ever, is known.

    python -m tests.fuzz.campaign [--inputs N] [--counts JSON] [--first N]     # ends with one line of JSON
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import select
import signal
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import msgspec
import pyarrow as pa

from quiver_actors.errors import QuiverError
from tests.fuzz.mutations import Mutator
from tests.fuzz.parsers import TARGETS

MEMORY_BYTES_MAX = 64 << 20
CPU_SECONDS_MAX = 1.0
_STUCK_SECONDS = 60
_PIECE_INPUTS = 25_000


@dataclass
class FuzzTally:
    """Counted by the child while it parsed."""

    inputs: int = 0
    refused: int = 0
    """Inputs refused with an error of ours; of the others, all or a part was taken."""
    slowest_seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def add(self, other: FuzzTally) -> None:
        self.inputs += other.inputs
        self.refused += other.refused
        self.slowest_seconds = max(self.slowest_seconds, other.slowest_seconds)
        self.failures += other.failures


class FuzzChild:
    """Inputs `[first, first + count)` of one parser, in a child that starts at once."""

    def __init__(self, name: str, first: int, count: int) -> None:
        self.name = name
        self._first = first
        self._progress = mmap.mmap(-1, 8)
        TARGETS[name].specimens()
        self._outcome, outcome = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            _child(name, first, count, self._progress, outcome)
        os.close(outcome)

    def collect(self) -> FuzzTally:
        """Wait for it; ends it in any case."""
        found = None
        try:
            found = _collect(self._outcome, self._progress)
        finally:
            os.close(self._outcome)
            os.kill(self._pid, signal.SIGKILL)
            _, status = os.waitpid(self._pid, 0)
        if found is not None:
            return found
        (number,) = struct.unpack("<Q", self._progress[:8])
        failure = f"{self.name} {number}: the process died or hung, wait status {status}"
        return FuzzTally(number - self._first, failures=[failure])


def _collect(descriptor: int, progress: mmap.mmap) -> FuzzTally | None:
    """What the child reports; None if it dies, or stays at one input."""
    received, at = b"", progress[:8]
    while True:
        ready, _, _ = select.select([descriptor], [], [], _STUCK_SECONDS)
        if not ready and progress[:8] == at:
            return None
        at = progress[:8]
        if ready:
            piece = os.read(descriptor, 1 << 20)
            if not piece:
                return msgspec.msgpack.decode(received, type=FuzzTally) if received else None
            received += piece


def _child(name: str, first: int, count: int, progress: mmap.mmap, outcome: int) -> None:
    """Never returns."""
    code = 1
    try:
        _limit_memory(name)
        tally = _parse_all(name, first, count, progress)
        os.write(outcome, msgspec.msgpack.encode(tally))
        code = 0
    except BaseException:  # noqa: BLE001 - the parent hears of it by the exit code
        traceback.print_exc()
    finally:
        os._exit(code)


def _limit_memory(name: str) -> None:
    """Make every allocation beyond the present memory fail, also of memory that is never touched."""
    pa.set_memory_pool(pa.system_memory_pool())
    for specimen in TARGETS[name].specimens():
        TARGETS[name].parse(specimen.content)
    with open("/proc/self/statm", "rb") as file:
        pages = int(file.read().split()[0])
    limit = pages * mmap.PAGESIZE + MEMORY_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _parse_all(name: str, first: int, count: int, progress: mmap.mmap) -> FuzzTally:
    tally = FuzzTally()
    mutator, parse = Mutator(TARGETS[name].specimens()), TARGETS[name].parse
    random = Random()
    for number in range(first, first + count):
        progress[:8] = struct.pack("<Q", number)
        random.seed(f"{name} {number}")
        content = mutator.mutant(random)
        started = time.process_time()
        try:
            parse(content)
        except QuiverError:
            tally.refused += 1
        except Exception as error:  # noqa: BLE001 - to be reported with its input
            where = traceback.extract_tb(error.__traceback__)[-1]
            tally.failures.append(f"{name} {number}: {error!r} at {where.filename}:{where.lineno}")
        took = time.process_time() - started
        tally.slowest_seconds = max(tally.slowest_seconds, took)
        if took > CPU_SECONDS_MAX:
            tally.failures.append(f"{name} {number}: took {took:.1f} s of CPU")
        tally.inputs += 1
    return tally


def run(counts: Mapping[str, int], first: int = 0) -> dict[str, FuzzTally]:
    """Try that many inputs for each parser, a child per CPU."""
    pieces = [
        (name, first + start, min(_PIECE_INPUTS, count - start))
        for name, count in counts.items()
        for start in range(0, count, _PIECE_INPUTS)
    ]
    tallies = {name: FuzzTally() for name in counts}
    running: deque[FuzzChild] = deque()
    for piece in pieces:
        if len(running) >= len(os.sched_getaffinity(0)):
            child = running.popleft()
            tallies[child.name].add(child.collect())
        running.append(FuzzChild(*piece))
    for child in running:
        tallies[child.name].add(child.collect())
    return tallies


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.campaign", description="Mutants for every parser.")
    parser.add_argument("--counts", default="", help='inputs by parser, as JSON: {"log": 1000, ...}')
    parser.add_argument("--inputs", type=int, default=10_000, help="of each parser, where --counts is not given")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    arguments = parser.parse_args()
    counts = json.loads(arguments.counts) if arguments.counts else dict.fromkeys(TARGETS, arguments.inputs)
    tallies = run(counts, arguments.first)
    for name, tally in tallies.items():
        slowest = tally.slowest_seconds * 1e3
        print(f"{name}: {tally.inputs} inputs, {tally.refused} refused, slowest {slowest:.1f} ms", file=sys.stderr)
        for failure in tally.failures[:20]:
            print(f"  {failure}", file=sys.stderr)
    print(msgspec.json.encode(tallies).decode())
    return any(tally.failures for tally in tallies.values())


if __name__ == "__main__":
    sys.exit(main())
