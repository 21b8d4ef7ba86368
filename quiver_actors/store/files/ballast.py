"""A file that is only there to be deleted: room for acknowledgements, progress, seals and deletes on a disk that is full.

    quiver.ballast    preallocated; two progress files, a cursor, the tail of a seal and directory blocks fit into it

Owner: one engine. Its methods run in the thread that runs the engine's background jobs, one job at a time. The file is released when
such a job meets ENOSPC (the job then goes on at once) and made again when the file system has room for it and the low-water mark. It holds
nothing, so nothing depends on it: it is neither synced nor missed.
"""

from __future__ import annotations

from quiver_actors.base.units import MIB
from quiver_actors.store.disk.protocol import Disk

BALLAST_BYTES = 1 * MIB


class Ballast:
    """The ballast file of one engine: preallocated, and deleted to make room when the disk is full.

    Args:
        path: where the file is.
        reserve_bytes: bytes that must stay free on the disk when it is made again.
    """

    def __init__(self, disk: Disk, path: str, reserve_bytes: int) -> None:
        self._disk = disk
        self._path = path
        self._reserve_bytes = reserve_bytes
        self.is_held = False
        """Whether the file is known to be there; False until `hold` has looked."""
        self.counted_bytes = disk.allocated_bytes(path)
        """Bytes of disk that the file takes, counted from the moment at which it is about to be made."""

    def change_reserve(self, reserve_bytes: int) -> None:
        """Set the bytes that must stay free on the disk beside the ballast."""
        self._reserve_bytes = reserve_bytes

    def claim(self) -> None:
        """Count the bytes of the file, which is about to be made."""
        self.counted_bytes = BALLAST_BYTES

    def hold(self) -> bool:
        """Make sure that it is there, if there is room. Returns `is_held`.

        Raises:
            DiskError: the disk has failed, or is fuller than it said.
        """
        if self._disk.allocated_bytes(self._path) >= BALLAST_BYTES:
            self.is_held = True
        elif self._disk.free_bytes(self._path.rpartition("/")[0]) >= BALLAST_BYTES + self._reserve_bytes:
            self._make()
        self.counted_bytes = BALLAST_BYTES if self.is_held else 0
        return self.is_held

    def _make(self) -> None:
        file = self._disk.create(self._path)
        try:
            file.allocate(BALLAST_BYTES)
        finally:
            file.close()
        self.is_held = True

    def release(self) -> bool:
        """Delete the file, so that other work has its room. Returns whether there was something to delete."""
        return release(self._disk, self._path) and self._drop()

    def _drop(self) -> bool:
        self.is_held = False
        self.counted_bytes = 0
        return True


def release(disk: Disk, path: str) -> bool:
    """Delete the ballast file at `path`. Returns whether it was there."""
    if not disk.exists(path):
        return False
    disk.unlink(path)
    return True
