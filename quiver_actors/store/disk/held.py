"""Files that have lost their name and still take room, because somebody has them open or mapped.

A worker hands descriptors of segments to consumers, and the kernel frees the blocks of a deleted file only when the last of them is gone.
Two things that the kernel knows of each file tell who is left (Linux, local file systems):

- a write lease is refused while anybody else has the file open or mapped, whoever that is and in whichever process;
- an flock belongs to an open file, its duplicates and its mappings. A descriptor for a reader of the own user is locked before it is sent
  (`lock_for_reader`); a descriptor for another user is not. A lock that another user puts on its own descriptor is told by /proc/locks,
  which says which process has made each lock.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import fcntl
import os
import signal

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.retention.account import block_bytes

GRACE_NS = 60 * SECOND_NS
"""How long processes of other users keep a file that has lost its name."""
_F_SETSIG = 10
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_ROOT_UID = 0


class Holder(enum.Enum):
    """Kind of process that still has a deleted file open or mapped."""

    NOBODY = "nobody"
    """Nobody else has the file, or nobody can tell because the file system has no leases."""
    GUESTS = "guests"
    """Only processes of other users have the file."""
    READERS = "readers"
    """A process of the own user has the file too, or may have it."""


class HeldFile:
    """A descriptor of a file that is losing its name. Whoever holds this object owns the descriptor and closes it with `close`.

    Attributes:
        path: the name by which a later start finds the file while somebody has it; None: it has none.
    """

    def __init__(self, descriptor: int) -> None:
        """Takes ownership of the descriptor, which is the only one of its open file."""
        self.path: str | None = None
        self._descriptor = descriptor

    @property
    def size_bytes(self) -> int:
        """Bytes of disk blocks that the file takes."""
        return os.fstat(self._descriptor).st_blocks * 512

    @property
    def has_other_name(self) -> bool:
        """Whether a name beside `path` leads to the file: its bytes are somebody's then, and no look at its holders frees them."""
        return os.fstat(self._descriptor).st_nlink > (self.path is not None)

    def holder(self) -> Holder:
        """The kind of process, other than this one, that has the file open or mapped."""
        if not self._is_open_elsewhere():
            return Holder.NOBODY
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Holder.READERS if self._is_locked_by_own() else Holder.GUESTS
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        return Holder.GUESTS

    def empty(self) -> None:
        """Free the file's blocks. A process that has the file mapped reads zeroes from now on, and none of its accesses faults.

        Raises:
            OSError: the file system cannot.
        """
        os.fchmod(self._descriptor, 0o600)
        writable = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            # Whole blocks: of a part of one the kernel only clears the bytes.
            _punch(writable, block_bytes(os.fstat(writable).st_size))
        finally:
            os.close(writable)

    def close(self) -> None:
        """Close the descriptor. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_open_elsewhere(self) -> bool:
        try:
            # A process that opens the file at this moment breaks the lease, and the kernel tells this one by a signal that is ignored.
            fcntl.fcntl(self._descriptor, _F_SETSIG, signal.SIGURG)
            fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        fcntl.fcntl(self._descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False

    def _is_locked_by_own(self) -> bool:
        found = os.fstat(self._descriptor)
        name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        try:
            with open("/proc/locks", encoding="ascii", errors="replace") as file:
                owners = [int(fields[4]) for line in file if name in (fields := line.split()) and "FLOCK" in fields]
        except (OSError, ValueError, IndexError):
            return True
        return not owners or any(map(_may_be_own, owners))


def lock_for_reader(descriptor: int) -> None:
    """Mark an open file as one that a reader of the own user has, for as long as it has it open or mapped."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def unlock_for_guest(descriptor: int) -> None:
    """Undo `lock_for_reader`: the descriptor goes to another user."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _may_be_own(pid: int) -> bool:
    """Whether a process that has made a lock is, or was, one of the own user: of one that is gone nobody knows."""
    try:
        return os.stat(f"/proc/{pid}").st_uid in (os.geteuid(), _ROOT_UID)
    except OSError:
        return True


def _punch(descriptor: int, size_bytes: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_long(0), ctypes.c_long(size_bytes)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
