"""The two directories of a node: made, refused where others could tamper with them, held by one node only, and of our version.

Owner: the process that holds them, a node or a command that works on a stopped one. Nothing of what is in them is touched here but the
locks and the version; `node` has the table of all files.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
import time
from collections.abc import Iterator

from quiver_actors.base.config import AccessSettings
from quiver_actors.base.core_dirs import find_core_dirs
from quiver_actors.errors import AlreadyRunning, ConfigError, DiskError, InvalidFormat
from quiver_actors.shm.errors import LockHeld, ShmError
from quiver_actors.shm.liveness import LifeLock, holder_pid
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.cold_directory import IDENTITY_NAME, cold_id_of
from quiver_actors.store.files.data_version import (
    DATA_VERSION,
    VERSION_FILE,
    VERSION_TEXT_BYTES_MAX,
    encode_data_version,
    parse_data_version,
)
from quiver_actors.supervisor import control
from quiver_actors.supervisor.process import is_alive

SUPERVISOR_LOCK = "supervisor.lock"
NODE_LOCK = "quiver.node.lock"

SOCKET_PATH_BYTES_MAX = 107
"""What fits into a Unix socket's address (`sun_path`), its closing zero left out."""
_SOCKET_NAME_BYTES_MAX = len("/" + control.SOCKET_NAME)
_NEEDS_WRITING = "opening a data directory writes to it: make it writable, or open a copy; `quiver verify` and `quiver inspect` only read"
_DYING_WORKERS_SECONDS = 10.0
"""How long to wait for the workers of a killed supervisor, which die with it but may first have to finish a disk write."""


def make_data_dir(path: str) -> str:
    """Create the data directory (0700) where it is missing and refuse one that others could tamper with.

    Returns:
        Its absolute path.
    Raises:
        ConfigError: a link, another user's, or writable by others.
        DiskError: it cannot be created.
    """
    absolute = os.path.abspath(path)
    try:
        os.makedirs(absolute, mode=0o700, exist_ok=True)
    except OSError as error:
        raise DiskError("mkdir", absolute, error.errno or 0, "choose another data directory (--data-dir)") from error
    with _own_directory("data directory", absolute, "--data-dir"):
        return absolute


def make_run_dir(path: str, gid: int | None = None) -> str:
    """Create the run directory (0700, or 0750 for a group) where it is missing and refuse one that others could tamper with.

    Args:
        gid: group whose members may look into it.

    Returns:
        Its absolute path.
    Raises:
        ConfigError: a link, another user's, writable by others, too long for a socket's address, or not to be created.
    """
    absolute = os.path.abspath(path)
    room = SOCKET_PATH_BYTES_MAX - _SOCKET_NAME_BYTES_MAX
    if len(os.fsencode(absolute)) > room:
        raise ConfigError(f"run directory {absolute} is too long for sockets in it: use a path of at most {room} bytes")
    with _own_directory("run directory", absolute, "--run-dir") as directory:
        if gid is not None:
            _open_to_group(absolute, directory, gid)
    return absolute


def group_of(access: AccessSettings) -> int | None:
    """The id of the group whose members reach the sockets, None without one. Raises ConfigError: there is no such group."""
    if not access.group:
        return None
    try:
        return grp.getgrnam(access.group).gr_gid
    except KeyError as error:
        raise ConfigError(
            f"access.group = {access.group!r}: this machine has no such group; create it, or name another"
        ) from error


@contextlib.contextmanager
def _own_directory(what: str, absolute: str, flag: str) -> Iterator[int]:
    """A descriptor of a directory that only this user can change; it is made where it is missing."""
    try:
        os.makedirs(absolute, mode=0o700, exist_ok=True)
        directory = os.open(absolute, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        is_none = error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EEXIST)
        hint = "; it must be a directory, not a link" if is_none else ""
        raise ConfigError(f"{what} {absolute} cannot be used: {error.strerror}{hint}") from error
    try:
        _refuse_unsafe(what, absolute, os.fstat(directory), flag)
        yield directory
    finally:
        os.close(directory)


def _open_to_group(path: str, directory: int, gid: int) -> None:
    try:
        os.fchown(directory, -1, gid)
        os.fchmod(directory, 0o750)
    except OSError as error:
        raise ConfigError(
            f"run directory {path} cannot be given to group {gid} ({error.strerror}): the node's user must be a member of access.group"
        ) from error


def _refuse_unsafe(what: str, path: str, found: os.stat_result, flag: str) -> None:
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{what} {path} is not safe: it belongs to user {found.st_uid}, this is user {os.geteuid()}; "
            f"choose another one with {flag}"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(found.st_mode)
        raise ConfigError(
            f"{what} {path} is not safe: others may write to it (mode {mode:04o}); run `chmod 700 {path}` or "
            f"choose another one with {flag}"
        )


@contextlib.contextmanager
def hold_data_dir(data_dir: str) -> Iterator[LifeLock]:
    """Hold the data directory, waiting for workers of a killed supervisor to be gone. Raises AlreadyRunning, DiskError."""
    lock = LifeLock(os.path.join(data_dir, NODE_LOCK))
    deadline = time.monotonic() + _DYING_WORKERS_SECONDS
    try:
        while not lock.try_acquire():
            _refuse_if_held(lock.path, time.monotonic() >= deadline)
    except ShmError as error:
        raise DiskError("lock", lock.path, _errno_behind(error), _NEEDS_WRITING) from error
    try:
        yield lock
    finally:
        lock.release()


def _refuse_if_held(path: str, out_of_time: bool) -> None:
    pid = holder_pid(path)
    # In containers all supervisors may have the same number: one that has ours is not of here.
    if pid is None or (pid != os.getpid() and is_alive(pid)):
        raise _already_running("data directory", path, pid)
    if out_of_time:
        raise AlreadyRunning(
            f"data directory is in use: supervisor {pid} is not alive here, but {path} has been held for another "
            f"{_DYING_WORKERS_SECONDS:.0f} s: by a worker of it in a disk write that does not end, or by a node in another container"
        )


@contextlib.contextmanager
def hold_run_dir(run_dir: str) -> Iterator[LifeLock]:
    """Hold the run directory: the lock is the supervisor's life. Raises AlreadyRunning, ConfigError."""
    lock = LifeLock(os.path.join(run_dir, SUPERVISOR_LOCK))
    try:
        lock.acquire()
    except LockHeld as error:
        raise _already_running("run directory", error.path, error.holder_pid) from error
    except ShmError as error:
        raise ConfigError(f"run directory cannot be used: {error}") from error
    try:
        yield lock
    finally:
        lock.release()


def _already_running(what: str, path: str, pid: int | None) -> AlreadyRunning:
    who = f"process {pid}" if pid is not None else "another process"
    return AlreadyRunning(f"{what} is in use: {who} holds {path}; stop it first, or use another {what}")


def _errno_behind(error: ShmError) -> int:
    return error.__cause__.errno or 0 if isinstance(error.__cause__, OSError) else 0


# --- data version --------------------------------------------------------------------------------------------------------


def bring_data_version_up_to_date(data_dir: str) -> None:
    """Mark a new data directory with our version, upgrade an older one, refuse any other. The caller holds its lock.

    The mark is durable before anything else is written, so an older program never works on what this one has stored.

    Raises:
        UnsupportedVersion, InvalidFormat: its version file names another version, or none; or it is a cold directory.
        DiskError: it cannot be read or written; a full disk shows here.
    """
    disk = PosixDisk(data_dir)
    try:
        if not disk.exists(VERSION_FILE):
            _refuse_cold_directory(data_dir, disk)
        if not disk.exists(VERSION_FILE) or _read_version(data_dir, disk) != DATA_VERSION:
            _write_version(disk)
    finally:
        disk.close()


def _refuse_cold_directory(data_dir: str, disk: PosixDisk) -> None:
    """Refuse a directory into which a node moves segments: a deleted topic would take them along."""
    for core, topics in find_core_dirs(data_dir).items():
        for directory in (f"{topic}/core_{core}" for topic in topics):
            names = (name for name in disk.list_directory(directory) if cold_id_of(name) is not None)
            if any(disk.exists(f"{directory}/{name}/{IDENTITY_NAME}") for name in names):
                raise InvalidFormat(
                    f"{data_dir} is no data directory: a node has moved segments into {directory} there, as tier.cold_dir says; use "
                    "another --data-dir"
                )


def refuse_other_version(data_dir: str) -> None:
    """Refuse a data directory of a version that this program does not read, for commands on a stopped node. Changes nothing.

    Raises:
        UnsupportedVersion: its version file names another version; none, or one that says nothing, is not refused.
        DiskError: it cannot be read.
    """
    disk = PosixDisk(data_dir)
    try:
        if disk.exists(VERSION_FILE):
            with contextlib.suppress(InvalidFormat):
                _read_version(data_dir, disk)
    finally:
        disk.close()


def _read_version(data_dir: str, disk: PosixDisk) -> int:
    file = disk.open_read(VERSION_FILE)
    try:
        return parse_data_version(os.path.join(data_dir, VERSION_FILE), file.read(VERSION_TEXT_BYTES_MAX, 0))
    finally:
        file.close()


def _write_version(disk: PosixDisk) -> None:
    temporary = f"{VERSION_FILE}.tmp"
    file = disk.create(temporary)
    try:
        file.write([encode_data_version()], 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, VERSION_FILE)
    disk.sync_directory(".")
