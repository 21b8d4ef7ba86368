"""Locks that tell which processes are alive: the kernel drops them with their process, and a process id alone tells nothing.

A life lock is an exclusive `flock` on a small file that its holder's process id is written into. It is gone the moment the process
is, whatever killed it. The file itself stays: unlinking it could leave two holders with two files of the same path.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
import warnings
from collections.abc import Callable
from typing import Self

from .errors import LockHeld, ShmError
from .names import check_name, sweep_names, unlink_name

_TRIES = 10
_TRY_PAUSE_SECONDS = 0.002
"""The pause between tries. `holder_alive` takes a lock for a moment to see whether it is free: one failed try proves no holder."""


class LifeLock:
    """The lock on one path. A forked child must not go on holding it: `release` there only closes the child's descriptor."""

    __slots__ = ("_fd", "_pid", "path")

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._fd = -1
        self._pid = 0

    @property
    def fd(self) -> int:
        """Descriptor that carries the lock, -1 when not held; a fork shares it."""
        return self._fd

    def acquire(self) -> None:
        """Take the lock, creating the file (mode 0600) when it is missing, and write the process id into it.

        Raises:
            LockHeld: another open file has it; names the holder.
            ShmError: the file cannot be opened or locked.
        """
        if not self.try_acquire():
            raise LockHeld(self.path, holder_pid(self.path))

    def try_acquire(self) -> bool:
        """Take the lock like `acquire`, but return False when another holder is alive (known after about 20 ms)."""
        if self._fd >= 0:
            raise ShmError(f"{self.path} is locked by this object already")
        fd = _open(self.path, os.O_RDWR | os.O_CREAT)
        try:
            taken = _lock(fd)
        except OSError as error:
            os.close(fd)
            raise ShmError(f"{self.path} cannot be locked: {error.strerror}") from error
        if not taken:
            os.close(fd)
            return False
        self._fd, self._pid = fd, os.getpid()
        with contextlib.suppress(OSError):  # On a full disk too: the lock counts, the number is for messages.
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % self._pid, 0)
        return True

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._fd < 0:
            return
        if self._pid == os.getpid():
            # Unlocked by hand: a forked child that has not closed its copy yet would keep the lock otherwise.
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0 and self._pid == os.getpid():
            warnings.warn(f"{self!r} was never released", ResourceWarning, stacklevel=2)

    def __repr__(self) -> str:
        return f"<LifeLock {self.path} {'held' if self._fd >= 0 else 'free'}>"


def holder_alive(path: str | os.PathLike[str]) -> bool:
    """Whether some process holds the life lock of `path`; False when there is no such file.

    Raises:
        ShmError: the file cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ShmError(f"{os.fspath(path)} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def holder_pid(path: str | os.PathLike[str]) -> int | None:
    """The process id that the last holder wrote; says nothing about its life. None when there is none."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(32).strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def sweep_named_memory(recorded: str | None, is_kept: Callable[[str], bool] = lambda _: False) -> list[str]:
    """Unlink named memory that dead supervisors left behind, and return the names.

    That is one page, and any other page of this user that no process lives behind, such as one whose run directory is gone too.

    Args:
        recorded: the name in the record of a run directory (`recorded_name`); the caller holds that directory's lock, so its writer
            is dead. None: there is none.
        is_kept: asked for each other page that no process lives behind.
    """
    swept = [recorded] if recorded is not None and unlink_name(recorded) else []
    return swept + sweep_names(is_kept)


def recorded_name(path: str | os.PathLike[str]) -> str | None:
    """The counters page that a node record (JSON) names under `counters`; None if the record is missing, damaged, or names none."""
    with contextlib.suppress(OSError, ValueError, ShmError), open(path, "rb") as file:
        record = json.load(file)
        if isinstance(record, dict):
            return check_name(record.get("counters", ""))
    return None


def _open(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ShmError(f"{path} cannot be opened: {error.strerror}") from error


def _lock(fd: int) -> bool:
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_TRY_PAUSE_SECONDS)
    return False
