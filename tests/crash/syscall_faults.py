"""Every system call that a store makes on its way fails once, with every errno that fits it, in a real process on a real disk.

Each case starts from the same directory, left behind by a process that was cut off, so the calls of recovery are among them; those
that only a new store makes from an empty one. The process may end with a failed engine, or not open, or wait for room, or not mind;
it may not end by anything that is no error of ours. Afterwards another process must find everything that was acknowledged.

    python -m tests.crash.syscall_faults [CASES] [SEED]      # 0: every call with every errno; the seed gives another life

With strace where it may trace, else with a library that is built now.
"""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import msgspec

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from tests.crash import injectors, small_store
from tests.crash.derived_files import tell_of_derived_files
from tests.crash.injectors import Injector
from tests.crash.small_store import (
    FINISHED,
    Ledger,
    Reporter,
    Work,
    fork,
    live,
    read_all,
    survey_in_child,
    warm_up,
)

ERRNOS: dict[str, tuple[str, ...]] = {
    "pwritev": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "pwritev2": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "pwrite64": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fsync": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "fallocate": ("EIO", "ENOSPC", "EDQUOT", "EINTR"),
    "renameat": ("EIO", "ENOSPC", "EDQUOT"),
    "unlinkat": ("EIO", "EACCES"),
    "openat": ("EIO", "EMFILE", "ENOSPC", "EDQUOT", "EINTR"),
    "ftruncate": ("EIO", "EINTR"),
    "mkdirat": ("EIO", "ENOSPC"),
}
_MUST_NOT_PASS = {(kind, "EIO") for kind in ("pwritev", "pwritev2", "pwrite64", "fdatasync", "fsync")}
"""Calls and errors after which the process must not go on as if nothing had happened."""
_ONLY_WHEN_NEW = ("mkdirat",)
_PREPARING_STEPS, _STEPS = 8, 5
SEED = 4


class Case(NamedTuple):
    kind: str
    nth: int
    errno_name: str


@dataclass
class FaultTally:
    """Counted while it was done."""

    injector: str = ""
    cases: int = 0
    """Cases in which the fault struck."""
    missed: int = 0
    """Cases in which the call was not made any more."""
    ends: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Number of processes by exit code."""
    kinds: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)


class FaultSweep:
    """Runs each case of a sweep of failing system calls. Owns a directory with the templates and the copy of the current case."""

    def __init__(self, injector: Injector, seed: int) -> None:
        self._injector = injector
        self._seed = seed
        self._base = tempfile.mkdtemp(prefix="quiver-faults-")
        self._empty, self._template, self._root = (os.path.join(self._base, name) for name in ("empty", "used", "case"))
        self._ledger = Ledger()
        self.tally = FaultTally(injector.name)

    def close(self) -> None:
        shutil.rmtree(self._base)

    def prepare(self) -> None:
        """Segments, progress, and a log that nobody sealed."""
        os.mkdir(self._empty)
        os.mkdir(self._template)

        def cut_off(descriptor: int) -> int:
            work = Work(PosixDisk(self._template), 0, Reporter(descriptor))
            random = Random(self._seed)
            for _ in range(_PREPARING_STEPS):
                work.step(random)
            work.push(3)
            return 0

        pid, descriptor = fork(cut_off)
        self._ledger.hear(read_all(descriptor))
        _, status = os.waitpid(pid, 0)
        assert status == 0, self._ledger.told

    def _open_disk(self) -> Disk:
        return PosixDisk(self._root)

    def _live(self, descriptor: int) -> int:
        tell_of_derived_files(descriptor)
        return live(self._open_disk, max(self._ledger.started) + 1, descriptor, self._seed, _STEPS)

    def count_calls(self) -> Counter[str]:
        """Calls of a life without a fault."""
        in_new, counts = self._count_calls_from(self._empty), self._count_calls_from(self._template)
        return counts + Counter({kind: in_new[kind] for kind in _ONLY_WHEN_NEW})

    def _count_calls_from(self, template: str) -> Counter[str]:
        shutil.copytree(template, self._root)
        ran = self._injector.run(self._live, "openat", 0, "EIO")
        shutil.rmtree(self._root)
        assert ran.status == FINISHED, ran
        return ran.counts

    def run(self, case: Case) -> None:
        shutil.copytree(self._empty if case.kind in _ONLY_WHEN_NEW else self._template, self._root)
        try:
            self._run(case)
        finally:
            shutil.rmtree(self._root)

    def _run(self, case: Case) -> None:
        ledger = copy.deepcopy(self._ledger)
        if case.kind in _ONLY_WHEN_NEW:
            ledger = Ledger(started=set(ledger.started))
        before = len(ledger.acknowledged)
        ran = self._injector.run(self._live, *case)
        ledger.hear(ran.heard)
        if not ran.hits:
            self.tally.missed += 1
            return
        code = os.waitstatus_to_exitcode(ran.status)
        self.tally.cases += 1
        self.tally.kinds[case.kind] += 1
        self.tally.ends[str(code)] += 1
        self.tally.acknowledged += len(ledger.acknowledged) - before
        wrong = [ledger.told] if ledger.told else []
        if code not in small_store.ENDS:
            wrong.append(f"it ended with {code}")
        if code == FINISHED and case[::2] in _MUST_NOT_PASS and not ledger.unsaved_count:
            wrong.append("it went on as if nothing had happened")
        wrong += ledger.check(survey_in_child(self._open_disk, ledger, max(ledger.started) + 1))
        if wrong:
            self.tally.failures.append(f"{case}: {wrong[:4]}")


def cases_of(counts: Counter[str], wanted: int, seed: int) -> Iterator[Case]:
    """About so many, spread over all kinds and errnos and over the whole life; all if `wanted` is 0."""
    pairs = [(kind, name) for kind, names in ERRNOS.items() if counts[kind] for name in names]
    left = wanted
    for place, (kind, name) in enumerate(sorted(pairs, key=lambda pair: counts[pair[0]])):
        share = counts[kind] if not wanted else min(counts[kind], -(-left // (len(pairs) - place)))
        left -= share
        for nth in sorted(Random(f"{seed} {kind} {name}").sample(range(1, counts[kind] + 1), share)):
            yield Case(kind, nth, name)


def run(wanted: int, seed: int = SEED) -> FaultTally:
    """Raises OSError: this process cannot make calls fail; says why."""
    warm_up()
    sweep = FaultSweep(injectors.choose(), seed)
    try:
        sweep.prepare()
        for case in cases_of(sweep.count_calls(), wanted, seed):
            sweep.run(case)
            if len(sweep.tally.failures) >= 10:
                break
    finally:
        sweep.close()
    return sweep.tally


def main() -> int:
    started = time.monotonic()
    wanted, seed = (int(sys.argv[n]) if len(sys.argv) > n else default for n, default in ((1, 320), (2, SEED)))
    try:
        tally = run(wanted, seed)
    except OSError as error:
        return _with_library(error)
    print(f"# {time.monotonic() - started:.1f} s", file=sys.stderr)
    print(msgspec.json.encode(tally).decode())
    return bool(tally.failures)


def _with_library(reason: OSError) -> int:
    """The same in a process that has it loaded; where that cannot be either, nothing is done, and that is said."""
    try:
        if injectors.SHIM_VARIABLE in os.environ:
            raise OSError("the library cannot be used")
        with injectors.shim_environment() as environment:
            command = [sys.executable, "-m", "tests.crash.syscall_faults", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
    except OSError as second:
        print(f"skipped syscall_faults: {reason}; {second}", file=sys.stderr)
        return 0


if __name__ == "__main__":
    sys.exit(main())
