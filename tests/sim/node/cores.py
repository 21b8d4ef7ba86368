"""Which disks a simulated worker has: that of its own core, and those of cores that the node does not have any more and that it adopts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from quiver_actors.base.core_dirs import find_core_dirs, owner_of
from quiver_actors.store.disk.held import HeldFile
from quiver_actors.store.disk.protocol import Disk, DiskFile
from tests.disks.simulated import SimDisk
from tests.disks.simulated_files import SimLock

_CORE = re.compile(r"(?:^|/)core_(\d+)(?:/|$)")


def served_by(core: int, cores: int, disks: int) -> list[int]:
    """The cores whose directories a worker writes to, its own first; `cores`: how many workers there are now."""
    return [core, *(other for other in range(cores, disks) if owner_of(other, cores) == core)]


def disk_of(core: int, cores: int, disks: Sequence[SimDisk]) -> Disk:
    """Return the disk of a worker."""
    served = served_by(core, cores, len(disks))
    return disks[core] if len(served) == 1 else JoinedDisk({other: disks[other] for other in served}, core)


def show_directories(data_dir: str, cores: int, disks: Sequence[SimDisk]) -> None:
    """The product looks on the real file system for directories without a worker: there they are shown, empty."""
    wanted = {path for core in range(cores, len(disks)) for path in _directories_of(core, disks[core])}
    shown = {f"{topic}/core_{core}" for core, topics in find_core_dirs(data_dir).items() for topic in topics}
    for path in wanted - shown:
        os.makedirs(os.path.join(data_dir, path))
    for path in shown - wanted:
        os.rmdir(os.path.join(data_dir, path))


def _directories_of(core: int, disk: SimDisk) -> list[str]:
    paths = [f"{topic}/core_{core}" for topic in disk.list_directory(".") if not topic.startswith(".")]
    return [path for path in paths if disk.is_directory(path)]


def keeps_damage(core: int, disk: SimDisk) -> bool:
    """Whether an adopted core keeps damage for an operator to look at, and so its directories."""
    return any(disk.list_directory(f"{path}/quarantine") for path in _directories_of(core, disk))


def bytes_below(disk: SimDisk, directory: str) -> int:
    """Return the blocks of the files that have a name below a directory."""
    paths = [f"{directory}/{name}" for name in disk.list_directory(directory)]
    return sum(bytes_below(disk, path) if disk.is_directory(path) else disk.allocated_bytes(path) for path in paths)


class JoinedDisk:
    """Disks of several cores as one. A path with a core in it is on that core's disk, any other directory on all of them."""

    def __init__(self, disks: dict[int, SimDisk], own: int) -> None:
        self._disks = disks
        self._own = disks[own]

    def _disk(self, path: str) -> SimDisk:
        found = _CORE.search(path)
        return self._own if found is None else self._disks.get(int(found[1]), self._own)

    def _all(self, path: str) -> list[SimDisk]:
        return [*self._disks.values()] if _CORE.search(path) is None else [self._disk(path)]

    def create(self, path: str) -> DiskFile:
        return self._disk(path).create(path)

    def open_write(self, path: str) -> DiskFile:
        return self._disk(path).open_write(path)

    def open_read(self, path: str) -> DiskFile:
        return self._disk(path).open_read(path)

    def rename(self, source: str, target: str) -> None:
        self._disk(source).rename(source, target)

    def link(self, source: str, target: str) -> None:
        self._disk(source).link(source, target)

    def unlink(self, path: str) -> None:
        self._disk(path).unlink(path)

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        for disk in self._all(path):
            disk.make_directory(path, needs_parent=needs_parent)

    def list_directory(self, path: str) -> list[str]:
        return sorted({name for disk in self._all(path) for name in disk.list_directory(path)})

    def sync_directory(self, path: str) -> None:
        disks = self._all(path)
        for disk in [disk for disk in disks if disk.exists(path)] or disks:
            disk.sync_directory(path)

    def exists(self, path: str) -> bool:
        return any(disk.exists(path) for disk in self._all(path))

    def file_id(self, path: str) -> tuple[int, int] | None:
        return self._disk(path).file_id(path)

    def allocated_bytes(self, path: str) -> int:
        return self._disk(path).allocated_bytes(path)

    def keep(self, path: str) -> HeldFile | None:
        return self._disk(path).keep(path)

    def free_bytes(self, path: str) -> int:
        return self._disk(path).free_bytes(path)

    def lock(self, path: str, wait_seconds: float = 0.0) -> SimLock | None:
        return self._disk(path).lock(path, wait_seconds)
