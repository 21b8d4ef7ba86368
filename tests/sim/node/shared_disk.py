"""The files that all processes of a machine share: the list of topics, and the directories of a topic as the supervisor sees them.

Everything else on the disks of the cores is owned by one worker, so each core has a `SimDisk` of its own; the supervisor's view puts them
together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quiver_actors.disk.faulty import FaultyDisk
from quiver_actors.disk.protocol import Disk
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.topics.catalogue import CATALOGUE_NAME
from quiver_actors.topics.keeper import ASIDE_PREFIX


class CoreDisk(FaultyDisk):
    """What a worker sees: its own disk, the list of topics, which it only reads, and the names in the directories of other cores."""

    def __init__(self, own: Disk, shared: Callable[[], SimDisk], cores: Callable[[], Sequence[SimDisk]]) -> None:
        super().__init__(own)
        self._shared = shared
        self._cores = cores

    def list_directory(self, path: str) -> list[str]:
        return sorted(
            {*super().list_directory(path), *(name for disk in self._cores() for name in disk.list_directory(path))}
        )

    def open_read(self, path: str) -> Any:
        return self._shared().open_read(path) if path.startswith(CATALOGUE_NAME) else super().open_read(path)


class SupervisorDisk:
    """What the owner of the list of topics needs of a `Disk`.

    `faulty`: its calls on the list and on the directory of all topics. A directory of a topic is renamed on all disks at once.
    """

    def __init__(self, shared: SimDisk, cores: list[SimDisk]) -> None:
        self.faulty = FaultyDisk(shared)
        self._shared = shared
        self._cores = cores
        """By core; replaced in place when their machine restarts."""
        self.create = self.faulty.create
        self.unlink = self.faulty.unlink
        self.open_read = self.faulty.open_read

    def exists(self, path: str) -> bool:
        return any(disk.exists(path) for disk in (self._shared, *self._cores))

    def list_directory(self, path: str) -> list[str]:
        return sorted({name for disk in (self._shared, *self._cores) for name in disk.list_directory(path)})

    def rename(self, source: str, target: str) -> None:
        if self._shared.exists(source):
            self.faulty.rename(source, target)
        for disk in self._cores:
            if disk.exists(source):
                disk.rename(source, target)

    def sync_directory(self, path: str) -> None:
        self.faulty.sync_directory(path)
        for disk in self._cores:
            disk.sync_directory(path)

    def empty_deleted(self) -> None:
        """What the owner does with plain unlinks: remove what was put aside."""
        for disk in self._cores:
            for name in disk.list_directory("."):
                if name.startswith(ASIDE_PREFIX):
                    _unlink_below(disk, name)


def _unlink_below(disk: SimDisk, path: str) -> None:
    for name in disk.list_directory(path):
        below = f"{path}/{name}"
        if disk.is_directory(below):
            _unlink_below(disk, below)
        else:
            disk.unlink(below)
