"""Names of shared memory: how they look, and sweeping those that nobody lives behind.

A named object is made under a new random name, and every process that maps it as its maker or by fork holds a shared `flock` on it. The
kernel drops that lock with the last of them, also after SIGKILL, so an object without a lock is a leftover. The maker takes the
lock and only then looks whether its name is still there, a sweeper removes the name under an exclusive lock: neither can
miss the other.

Linux keeps named shared memory as files of `/dev/shm`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable

import posix_ipc

from .errors import ShmError

_NAME = re.compile(r"/quiver-[0-9a-f]{12}")
_DIRECTORY = "/dev/shm"


def new_name() -> str:
    """A fresh name `/quiver-<12 hex digits>`."""
    return f"/quiver-{os.urandom(6).hex()}"


def check_name(name: str) -> str:
    """Return `name` if it is one that `new_name` could give. Raises ShmError otherwise."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ShmError(f"shared-memory name {name!r} is not allowed: expected '/quiver-' and 12 hex digits")
    return name


def unlink_name(name: str) -> bool:
    """Remove a name; who has the memory mapped keeps it. False when it was not there.

    Raises:
        ShmError: not one of our names, or not ours to remove.
    """
    try:
        posix_ipc.unlink_shared_memory(check_name(name))
    except posix_ipc.ExistentialError:
        return False
    except (posix_ipc.Error, OSError) as error:
        raise ShmError(f"shared memory {name} cannot be unlinked: {error}") from error
    return True


def hold_name(fd: int, name: str) -> bool:
    """Mark new named memory as lived in until the last mapping made from `fd`, or inherited from it, is gone.

    Returns:
        False if a sweeper, such as that of another node which starts, has removed the name already: make the memory anew.
    """
    fcntl.flock(fd, fcntl.LOCK_SH)  # SYNC: name
    return os.fstat(fd).st_nlink > 0


def sweep_names(is_kept: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Unlink all named memory of this user that no living process holds, but for what is kept all the same, and return the names."""
    names = (f"/{entry}" for entry in os.listdir(_DIRECTORY))
    return [name for name in names if _NAME.fullmatch(name) and _sweep_name(name, is_kept)]


def _sweep_name(name: str, is_kept: Callable[[str], bool]) -> bool:
    try:
        fd = os.open(_DIRECTORY + name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False  # Another user's, or gone meanwhile.
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # SYNC: name
            # Another sweeper may have removed it since, and the name may be that of new memory.
            return os.fstat(fd).st_nlink > 0 and not is_kept(name) and unlink_name(name)
        return False
    finally:
        os.close(fd)
