"""A directory of one disk as a disk of its own, which can be taken away: the cold disk of tests on the simulated disk."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import cast

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import DirectoryLock, Disk, DiskFile


class DiskBelow:
    """The calls of `Disk` that work on a cold disk needs, on paths below `root`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def create(self, path: str) -> DiskFile:
        return self._disk.create(self._at(path))

    def open_write(self, path: str) -> DiskFile:
        return self._disk.open_write(self._at(path))

    def open_read(self, path: str) -> DiskFile:
        return self._disk.open_read(self._at(path))

    def rename(self, source: str, target: str) -> None:
        self._disk.rename(self._at(source), self._at(target))

    def unlink(self, path: str) -> None:
        self._disk.unlink(self._at(path))

    def make_directory(self, path: str, *, needs_parent: bool = False) -> None:
        self._disk.make_directory(self._at(path), needs_parent=needs_parent)

    def list_directory(self, path: str) -> list[str]:
        return self._disk.list_directory(self._at(path))

    def sync_directory(self, path: str) -> None:
        self._disk.sync_directory(self._at(path))

    def exists(self, path: str) -> bool:
        return self._disk.exists(self._at(path))

    def lock(self, path: str, wait_seconds: float = 0.0) -> DirectoryLock | None:
        return self._disk.lock(self._at(path), wait_seconds)


class ColdDisksBelow:
    """Opens cold disks in directories of one disk.

    Attributes:
        is_away: the cold disk is not mounted.
    """

    def __init__(self, disk: Disk) -> None:
        self.is_away = False
        self._disk = disk

    @contextlib.contextmanager
    def __call__(self, root: str) -> Iterator[Disk]:
        if self.is_away:
            raise DiskError("open", root, errno.ENOENT)
        yield cast("Disk", DiskBelow(self._disk, root))
