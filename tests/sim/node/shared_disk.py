"""The files that all processes of a machine share: the list of topics, and the directories of a topic as the supervisor sees them.

Everything else on the disks of the cores is owned by one worker, so each core has a `SimDisk` of its own; the supervisor's view puts them
together again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quiver_actors.base.core_dirs import core_of
from quiver_actors.node.topics.aside import ASIDE_PREFIX
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import PRODUCERS_NAME
from quiver_actors.store.files.topic_list import CATALOGUE_NAME
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk


class CoreDisk(FaultyDisk):
    """What a worker sees: its own disk, the list of topics, which it only reads, the names in the directories of other cores, and
    what these know of idempotent producers."""

    def __init__(self, own: Disk, shared: Callable[[], SimDisk], cores: Callable[[], Sequence[SimDisk]]) -> None:
        super().__init__(own)
        self._shared = shared
        self._cores = cores

    def list_directory(self, path: str) -> list[str]:
        return sorted(
            {*super().list_directory(path), *(name for disk in self._cores() for name in disk.list_directory(path))}
        )

    def exists(self, path: str) -> bool:
        return super().exists(path) or (_is_foreign(path) and any(disk.exists(path) for disk in self._cores()))

    def open_read(self, path: str) -> Any:
        if path.startswith(CATALOGUE_NAME):
            return self._shared().open_read(path)
        if path.endswith(PRODUCERS_NAME) and not super().exists(path):
            for disk in self._cores():
                if disk.exists(path):
                    return disk.open_read(path)
        return super().open_read(path)


def _is_foreign(path: str) -> bool:
    """Whether that may be the directory of another core."""
    return core_of(path.rpartition("/")[2]) is not None


class SupervisorDisk:
    """What the owner of the list of topics needs of a `Disk`.

    `faulty`: its calls on the list and on the directory of all topics. A directory of a topic is renamed on all disks at once.
    """

    def __init__(self, shared: SimDisk, cores: list[SimDisk]) -> None:
        self.faulty = FaultyDisk(shared)
        self._shared = shared
        self._cores = cores
        """Disks by core; replaced in place when their machine restarts."""
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
