"""What presses on a real node in `limits`: a shortage of one kind that is imposed on it and lifted again."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random

from quiver_actors.base.units import KIB, MIB
from tests.crash.live_node import SUPERVISOR, LiveNode, tell
from tests.crash.mounts import small_image

INODES = 96
LAST_ROOM_BYTES = 6 * MIB
DEATHS_MAX = 10
"""Deaths in a minute before a worker is abandoned, as in the product. A lack of space must kill no worker: it would not come back."""
OVER_CAP_BUNDLES = 2_500
"""About twice as much as the cap."""


class Pressure:
    """One kind of shortage that is imposed on a node and lifted again."""

    is_felt_for_sure = False
    drops = False
    """Bundles may be lost, with notice."""
    deaths_max = 1_000_000
    """Most deaths in a minute; a worker that dies for lack of descriptors or memory is started again."""

    def __init__(self, node: LiveNode, random: Random) -> None:
        self.node = node
        self.random = random

    def press(self) -> None:
        raise NotImplementedError

    def keep_up(self) -> None:
        """Called again and again while it lasts, and for processes that came meanwhile."""

    def let_go(self) -> None:
        raise NotImplementedError

    def is_over(self) -> bool:
        """Whether enough bundles were lost, for a pressure that drops bundles."""
        raise NotImplementedError


class NoRoom(Pressure):
    """All blocks of the file system go to a file; or most, and the node takes the rest as a stopped subscriber lets it delete nothing.
    With subscribers a node may go on in the room that it has, and refuse nobody."""

    deaths_max = DEATHS_MAX

    def press(self) -> None:
        self._filler = self.node.data.with_name("filler")
        self._by_itself = self.is_felt_for_sure = self.random.random() < 0.5
        if self._by_itself:
            tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)
        self._fill(LAST_ROOM_BYTES if self._by_itself else 0)

    def keep_up(self) -> None:
        """Room that the node gives back is taken as well; a subscriber that came meanwhile is stopped too."""
        if self._by_itself:
            tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)
        else:
            self._fill(0)

    def _fill(self, left_bytes: int) -> None:
        with self._filler.open("ab") as file:
            step_bytes = MIB
            while step_bytes >= 4 * KIB:
                found = os.fstatvfs(file.fileno())
                step_bytes = min(step_bytes, found.f_bavail * found.f_frsize - left_bytes)
                if step_bytes < 4 * KIB:
                    break
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), step_bytes)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    step_bytes //= 4

    def let_go(self) -> None:
        self._filler.unlink()
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGCONT)


class NoInode(Pressure):
    """Empty files take all inodes."""

    is_felt_for_sure = True
    deaths_max = DEATHS_MAX

    def press(self) -> None:
        self._made: list[Path] = []
        self.keep_up()

    def keep_up(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                path = self.node.data.with_name(f"empty-{len(self._made)}")
                path.touch()
                self._made.append(path)

    def let_go(self) -> None:
        for path in self._made:
            path.unlink()


class SoftLimit(Pressure):
    """A resource limit of some processes, which their children inherit."""

    kind: int

    def press(self) -> None:
        self._limited: set[int] = set()
        self._has_started: set[int] = set()
        self.keep_up()

    def keep_up(self) -> None:
        for pid in self.targets():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                self._limit(pid, self.now(pid) + self.slack())

    def let_go(self) -> None:
        for pid in [*self.node.pids.values(), *self.node.worker_pids(ask=False)]:
            with contextlib.suppress(ProcessLookupError):
                self._limit(pid, resource.prlimit(pid, self.kind)[1])

    def _limit(self, pid: int, soft: int) -> None:
        if soft == resource.prlimit(pid, self.kind)[1] or pid not in self._limited:
            resource.prlimit(pid, self.kind, (soft, resource.prlimit(pid, self.kind)[1]))
            self._limited.add(pid)

    def targets(self) -> list[int]:
        """Return the pids to press on, without those of a starting node, which may end if it cannot start."""
        supervisor = self.node.pids[SUPERVISOR]
        if supervisor not in self._has_started and self.node.worker_pids():
            self._has_started.add(supervisor)
        return [supervisor, *self.node.worker_pids(ask=False)] if supervisor in self._has_started else []

    def now(self, pid: int) -> int:
        raise NotImplementedError

    def slack(self) -> int:
        raise NotImplementedError


class FileSize(SoftLimit):
    kind = resource.RLIMIT_FSIZE
    is_felt_for_sure = True
    deaths_max = DEATHS_MAX

    def now(self, pid: int) -> int:
        return 0

    def slack(self) -> int:
        return self.random.choice((64 * KIB, 512 * KIB, MIB))


class NodeDescriptors(SoftLimit):
    kind = resource.RLIMIT_NOFILE

    def now(self, pid: int) -> int:
        names = os.listdir(f"/proc/{pid}/fd")
        if not names:
            raise ProcessLookupError(f"process {pid} is ending")
        return max(map(int, names)) + 1

    def slack(self) -> int:
        return self.random.choice((0, 1, 3))


class ClientDescriptors(NodeDescriptors):
    def targets(self) -> list[int]:
        return [self.node.pids[name] for name in (*self.node.producers, *self.node.subscribers)]


class Memory(SoftLimit):
    kind = resource.RLIMIT_AS

    def targets(self) -> list[int]:
        return self.node.worker_pids(ask=False)

    def now(self, pid: int) -> int:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()

    def slack(self) -> int:
        return self.random.choice((256 * KIB, 2 * MIB, 8 * MIB))


class OverCap(Pressure):
    """Nobody reads, and more is pushed than the cap lets the node keep."""

    drops = True

    def press(self) -> None:
        self._end = self.node.acknowledged() + OVER_CAP_BUNDLES
        self.keep_up()

    def keep_up(self) -> None:
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGSTOP)

    def let_go(self) -> None:
        tell(map(self.node.pids.__getitem__, self.node.subscribers), signal.SIGCONT)

    def is_over(self) -> bool:
        return self.node.acknowledged() >= self._end


@contextlib.contextmanager
def small_image_of_few_inodes(target: Path, size_bytes: int) -> Iterator[Path]:
    with small_image(target, size_bytes, "-N", str(INODES)) as made:
        yield made
