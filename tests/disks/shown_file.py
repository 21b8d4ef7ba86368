"""What a file of a simulated disk looks like to other processes: real descriptors, which can be sent and mapped."""

from __future__ import annotations

import fcntl
import os

from tests.disks.crashes import FileChange, Resize, Write


class ShownFile:
    """A file in memory with the bytes of an inode, for those who map it. Changes with its inode, and ends with it."""

    def __init__(self, name: str, data: bytes) -> None:
        self._descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        self.write(data, 0)

    def write(self, data: bytes, offset: int) -> None:
        os.pwrite(self._descriptor, data, offset)

    def change(self, change: FileChange) -> None:
        """Do to the bytes what is done to the file."""
        if isinstance(change, Write):
            self.write(change.data, change.offset)
        elif isinstance(change, Resize) and not (change.only_grows and self.size_bytes >= change.size):
            os.ftruncate(self._descriptor, change.size)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self._descriptor).st_size

    def open(self) -> int:
        """A descriptor with a position of its own, for the caller to close."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def is_same(self, descriptor: int) -> bool:
        """Whether a descriptor that somebody was given is of this file."""
        ours, theirs = os.fstat(self._descriptor), os.fstat(descriptor)
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)

    @property
    def is_locked(self) -> bool:
        """Whether a reader of the own user has it, whose descriptor its worker has locked."""
        descriptor = self.open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def __del__(self) -> None:
        os.close(self._descriptor)
