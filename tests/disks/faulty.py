"""A disk that fails on demand, in front of any other: the n-th call of a kind, once or from then on, or the process at that call.

A sync that fails on a `SimDisk` behind it leaves what Linux leaves: the cache shows the bytes, the disk never gets them.
It also counts calls by where they come from, so that a sweep can prove that it reached every one of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import MUTATING_KINDS, SYNC_KINDS, Call, InterposedDisk, InterposedFile, Result
from quiver_actors.store.disk.protocol import Disk
from tests.disks.simulated_files import SimFile

ANY = "any"
"""Kind that stands for every call."""
MUTATING = "mutating"
"""Kind that stands for every call that changes the disk."""
SPACE_KINDS = frozenset(["create", "write", "allocate", "fdatasync", "fsync", "rename", "link", "make_directory"])
"""Calls that may need space."""


class SimulatedCrash(BaseException):
    """The process ends here: nothing may catch it, and the disk is to be looked at with `SimDisk.crash`."""


class CallSite(NamedTuple):
    """A call on the disk seam as it stands in the source."""

    kind: str
    module: str
    function: str

    def __str__(self) -> str:
        return f"{self.module}:{self.function}:{self.kind}"


@dataclass(slots=True)
class Fault:
    """What goes wrong, and when. `seen` counts the calls of its kind since it was set."""

    kind: str
    nth: int
    errno: int
    then: frozenset[str]
    written_share: float
    path_part: str
    seen: int = 0
    hits: int = 0

    def strikes(self, call: Call) -> bool:
        """Count the call; whether it is to fail."""
        if self.path_part not in f"{call.path} {call.target}":
            return False
        struck = self.seen >= self.nth and call.kind in self.then
        if _is_of_kind(call, self.kind):
            self.seen += 1
            struck = struck or self.seen == self.nth
        self.hits += struck
        return struck


def _is_of_kind(call: Call, kind: str) -> bool:
    return kind in (ANY, call.kind) or (kind == MUTATING and call.kind in MUTATING_KINDS)


class FaultyDisk(InterposedDisk):
    """A disk whose chosen calls fail, crash or lie.

    Attributes:
        history: where each call so far came from; a site is the function that called the outermost wrapper.
        failed_sites: those at which a call failed by a fault set here.
        mutating_count: calls so far that change the disk.
        lies: every sync returns without syncing, as some drives do.
        removed: paths that `remove_at` has taken away.
    """

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.history: list[CallSite] = []
        self.failed_sites: Counter[CallSite] = Counter()
        self.mutating_count = 0
        self.lies = False
        self.removed: list[str] = []
        self._faults: list[Fault] = []
        self._crash_at = 0
        self._remove_at = (0, "")

    @property
    def calls(self) -> Counter[CallSite]:
        """How often each site has called."""
        return Counter(self.history)

    def fail(
        self,
        kind: str,
        nth: int,
        errno: int,
        *,
        then: Iterable[str] = (),
        written_share: float = 0.0,
        path_part: str = "",
    ) -> Fault:
        """Let a call fail instead of being done.

        Args:
            kind: name of a method of the disk or its files, ANY or MUTATING.
            nth: counted from 1, from now on.
            then: kinds of which every later call fails too: `KINDS` where nothing works any more, `SPACE_KINDS` on a full disk.
            written_share: of a write, how much of it is done before it fails: a short write.
            path_part: only calls whose path (or a rename's target) has this in it are counted.
        """
        fault = Fault(kind, nth, errno, frozenset(then), written_share, path_part)
        self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()
        self.lies = False

    def crash_at(self, mutating_count: int) -> None:
        """Raise `SimulatedCrash` instead of doing the call that would make `mutating_count` this number; 0 = never."""
        self._crash_at = mutating_count

    def remove_at(self, mutating_count: int, directory: str) -> None:
        """Remove all files of a directory right before the call that makes `mutating_count` this number, as `rm -r` of somebody else does;
        0 = never. Whoever has one of them open keeps it."""
        self._remove_at = (mutating_count, directory)

    def _remove(self, directory: str) -> None:
        behind: Disk = self
        while isinstance(behind, InterposedDisk):
            # Nobody in front of the disk sees what another process does.
            behind = behind.inner
        self.removed = [f"{directory}/{name}" for name in behind.list_directory(directory)]
        for path in self.removed:
            behind.unlink(path)

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        site = call_site(call.kind)
        self.history.append(site)
        if call.kind in MUTATING_KINDS:
            self.mutating_count += 1
            if self.mutating_count == self._crash_at:
                raise SimulatedCrash(f"{call} in {site}")
            if self.mutating_count == self._remove_at[0]:
                self._remove(self._remove_at[1])
        for fault in [fault for fault in self._faults if fault.strikes(call)]:
            self.failed_sites[site] += 1
            _do_damage(call, fault)
            raise DiskError(_OPERATIONS.get(call.kind, call.kind), call.path, fault.errno, "simulated")
        if self.lies and call.kind in SYNC_KINDS:
            return None  # type: ignore[return-value]
        return proceed()


_OPERATIONS = {
    "allocate": "fallocate",
    "allocated_bytes": "stat",
    "exists": "stat",
    "has_name": "stat",
    "list_directory": "list",
    "lock": "flock",
    "make_directory": "mkdir",
    "make_read_only": "chmod",
    "open_read": "open",
    "open_write": "open",
    "size": "stat",
    "sync_directory": "fsync",
}
"""What `PosixDisk` calls the operation in its errors, where that is not the name of the method."""


def _do_damage(call: Call, fault: Fault) -> None:
    """Leave behind on the disk what the failing call leaves behind."""
    file = call.file.inner if call.file is not None else None
    if call.kind == "write" and file is not None:
        joined = b"".join(call.buffers)
        count = round(len(joined) * fault.written_share)
        if count:
            file.write([joined[:count]], call.offset)
    while isinstance(file, InterposedFile):
        file = file.inner
    if call.kind in SYNC_KINDS and isinstance(file, SimFile):
        file.fail_sync()


_WRAPPERS = frozenset(
    [
        *(f"tests.disks.{name}" for name in ("faulty", "monitor", "simulated", "crashes", "below")),
        *(f"quiver_actors.store.disk.{name}" for name in ("interposed", "posix")),
    ]
)


def call_site(kind: str) -> CallSite:
    """Where the call on the seam that is under way comes from: whoever called the outermost disk."""
    frame, is_inside = sys._getframe(1), False
    while frame.f_back is not None:
        is_wrapper = frame.f_globals.get("__name__") in _WRAPPERS
        if is_inside and not is_wrapper:
            break
        is_inside = is_inside or is_wrapper
        frame = frame.f_back
    return _site(kind, str(frame.f_globals.get("__name__")), frame.f_code.co_qualname)


@lru_cache(maxsize=1024)
def _site(kind: str, module: str, function: str) -> CallSite:
    return CallSite(kind, module, function.partition(".<locals>")[0])
