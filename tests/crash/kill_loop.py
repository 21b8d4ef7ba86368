"""SIGKILL, again and again, of a process that works a small store on the real disk; after each kill the next process must find it all.

Half of the kills come from outside, at a random microsecond; half at a whitebox point: right before or right after the n-th call that
changes the disk, the calls of recovery included. A directory is used for many kills in a row, so recoveries meet what killed recoveries
have left.

    python -m tests.crash.kill_loop [KILLS] [SEED]
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import msgspec

from quiver_actors.store.disk.interposed import MUTATING_KINDS, Call, InterposedDisk, Result
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from tests.crash.small_store import Ledger, fork, live, read_all, survey_in_child, warm_up

KILLS_PER_DIRECTORY = 20
_STEPS = 12
_USUAL_SECONDS = 0.06
_USUAL_CALLS = 400


@dataclass
class KillTally:
    """Counted while it was done."""

    kills: int = 0
    """Processes that were still at work when they were killed."""
    outlived: int = 0
    """Processes that had ended before."""
    at_points: int = 0
    """Kills at a whitebox point."""
    points: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Calls before or after which they came."""
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)


class DyingDisk(InterposedDisk):
    """Kills its own process at the n-th call that changes the disk: before it is done, or after."""

    def __init__(self, inner: Disk, nth: int, *, after: bool, tell: Callable[[str], None]) -> None:
        super().__init__(inner)
        self._left = nth
        self._after = after
        self._tell = tell

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.kind in MUTATING_KINDS:
            self._left -= 1
        if self._left == 0 and not self._after:
            self._die(call)
        result = proceed()
        if self._left == 0 and call.kind in MUTATING_KINDS:
            self._die(call)
        return result

    def _die(self, call: Call) -> None:
        self._tell(f"{'after' if self._after else 'before'} {call.kind}")
        os.kill(os.getpid(), signal.SIGKILL)


class KillLoop:
    """One directory after the other."""

    def __init__(self, seed: int) -> None:
        self._random = Random(f"kills {seed}")
        self._seed = seed
        self.tally = KillTally()

    def run(self, kills: int) -> KillTally:
        while self.tally.kills < kills and len(self.tally.failures) < 5:
            root = tempfile.mkdtemp(prefix="quiver-kills-")
            try:
                self._kill_in(root, min(KILLS_PER_DIRECTORY, kills - self.tally.kills))
            finally:
                shutil.rmtree(root)
        return self.tally

    def _kill_in(self, root: str, kills: int) -> None:
        ledger, number = Ledger(), 0
        end = self.tally.kills + kills
        while self.tally.kills < end:
            seed = self._random.getrandbits(32)
            before = len(ledger.acknowledged)
            self._one_life(root, ledger, number, seed)
            number = max(ledger.started, default=number) + 1
            found = survey_in_child(lambda: PosixDisk(root), ledger, number)
            number += 1
            self.tally.acknowledged += len(ledger.acknowledged) - before
            wrong = [ledger.told] if ledger.told else ledger.check(found)
            if wrong:
                self.tally.failures.append(f"loop {self._seed}, kill {self.tally.kills}, life {seed}: {wrong[:5]}")
                return

    def _one_life(self, root: str, ledger: Ledger, number: int, seed: int) -> None:
        random = Random(seed)
        at_point = random.random() < 0.5
        nth, after = random.randint(1, random.choice((30, _USUAL_CALLS))), random.random() < 0.5
        point_read, point_write = os.pipe()

        def open_disk() -> Disk:
            disk = PosixDisk(root)
            return DyingDisk(disk, nth, after=after, tell=tell) if at_point else disk

        def tell(point: str) -> None:
            os.write(point_write, point.encode())

        pid, descriptor = fork(lambda pipe: live(open_disk, number, pipe, seed, _STEPS))
        os.close(point_write)
        if not at_point:
            select.select([], [], [], random.random() * _USUAL_SECONDS)
            os.kill(pid, signal.SIGKILL)
        ledger.hear(read_all(descriptor))
        _, status = os.waitpid(pid, 0)
        self._count(status, read_all(point_read).decode())

    def _count(self, status: int, point: str) -> None:
        if not os.WIFSIGNALED(status):
            self.tally.outlived += 1
            return
        self.tally.kills += 1
        if point:
            self.tally.at_points += 1
            self.tally.points[point] += 1


def run(kills: int, seed: int = 1) -> KillTally:
    warm_up()
    return KillLoop(seed).run(kills)


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    started = time.monotonic()
    tally = run(kills, int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    print(f"# {time.monotonic() - started:.1f} s", file=sys.stderr)
    print(msgspec.json.encode(tally).decode())
    sys.exit(bool(tally.failures))


if __name__ == "__main__":
    main()
