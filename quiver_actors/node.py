"""The composition root: turns settings into a running node.

Owner: the process of `quiver up`. It holds both directories' locks for its life, and everything in the run directory is its to
make and remove.

    data directory   quiver.node.lock    held by the supervisor and its workers: free only when the last of them is gone
                     quiver.version      `quiver-data 1`
                     <topic>/core_<n>/   the workers'
                     quiver.topics       all topics with their settings: the supervisor's, read by the workers
                     .deleted-*          topics that were deleted, until all of their files are unlinked
    run directory    supervisor.lock     held by the supervisor alone: its life
                     supervisor.sock     control socket
                     core_<n>.sock       the workers'
                     node.json           where to find all of it, the counters page included

Imports neither pyarrow nor numpy: workers do, after the fork.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import glob
import grp
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from quiver_actors import __version__
from quiver_actors.adoption_watch import AdoptionWatch
from quiver_actors.config import AccessSettings, NodeSettings
from quiver_actors.config.reading import Resolved, check_settings
from quiver_actors.core_dirs import adopted_cores, directories_of
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.errors import AlreadyRunning, ConfigError, DiskError, InvalidFormat, UnsupportedVersion
from quiver_actors.metrics.figures import FIGURES_VERSION
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.errors import LockHeld, ShmError
from quiver_actors.shm.liveness import LifeLock, holder_pid, sweep_named_memory
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor import control
from quiver_actors.supervisor.figures import region_of
from quiver_actors.supervisor.log import log_event
from quiver_actors.supervisor.loop import Supervisor
from quiver_actors.supervisor.notify import Notifier
from quiver_actors.supervisor.process import is_alive
from quiver_actors.supervisor.spec import ChildContext, ChildSpec, Patience
from quiver_actors.supervisor.storage import StorageSpec
from quiver_actors.topics.catalogue import Catalogue
from quiver_actors.topics.keeper import TopicKeeper
from quiver_actors.topics.versions import topic_versions

NODE_RECORD = "node.json"
NODE_RECORD_VERSION = 1
SUPERVISOR_LOCK = "supervisor.lock"
NODE_LOCK = "quiver.node.lock"
VERSION_FILE = "quiver.version"
DATA_VERSION = 1

SOCKET_PATH_BYTES_MAX = 107
"""What fits into a Unix socket's address (`sun_path`), its closing zero left out."""
_SOCKET_NAME_BYTES_MAX = len("/" + control.SOCKET_NAME)
_ROWS_MIN = 2048
_DYING_WORKERS_SECONDS = 10.0
"""How long to wait for the workers of a killed supervisor, which die with it but may first have to finish a disk write."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerContext:
    """What a worker is given: `quiver_actors.worker.entry.main(context)` is its whole life."""

    core: int
    cores: int
    """Number of workers of the node."""
    settings: NodeSettings
    data_dir: str
    """Absolute; exists and is locked by the node."""
    run_dir: str
    """Absolute; `core_<n>.sock` goes here."""
    region: RegionWriter
    """Begun; the worker keeps state, heartbeat and rows up to date."""
    wakeup_fd: int
    """One byte makes the supervisor look at the region's state at once."""
    page: CountersPage | None = None
    """Where the supervisor says how much of the disk the worker may have; None: as much as there is."""


Worker = Callable[[WorkerContext], int]


def run_worker(context: WorkerContext) -> int:
    """Import the worker, which no process may do before it has been forked, and live its life."""
    from quiver_actors.worker import entry

    return entry.main(context)


def print_line(line: str) -> None:
    print(line, flush=True)


def run_node(
    settings: NodeSettings,
    *,
    config_path: str | None = None,
    resolve: Callable[[], Resolved] | None = None,
    worker: Worker = run_worker,
    patience: Patience | None = None,
    announce: Callable[[str], None] = print_line,
) -> int:
    """Run a node until it is told to stop.

    Args:
        config_path: where the settings came from, for the log.
        resolve: reads the settings anew, for a reload; None: they never change.
        worker: the life of each worker, in its own process.
        announce: called with one line when the node is ready.

    Returns:
        A `supervisor.exitcodes.ExitCode`.

    Raises:
        ConfigError: the run directory is not safe or its path is too long, or the settings do not suit so many workers.
        AlreadyRunning: another node holds one of the directories.
        UnsupportedVersion, InvalidFormat: the data directory is not one of this version.
        DiskError: the data directory cannot be created, locked or written.
        ShmError: no room for the counters page.
    """
    cpus = sorted(os.sched_getaffinity(0))
    cores = settings.cores or len(cpus)
    # Only here it is known how many workers `cores = 0` means.
    check_settings(msgspec.structs.replace(settings, cores=cores))
    with contextlib.ExitStack() as held:
        data_dir = make_data_dir(settings.data_dir)
        gid = group_of(settings.access)
        run_dir = make_run_dir(settings.resolved_run_dir(), gid)
        held.enter_context(hold_data_dir(data_dir))
        supervisor_lock = held.enter_context(hold_run_dir(run_dir))
        check_data_version(data_dir)
        sweep(run_dir)
        held.callback(sweep, run_dir)
        settings = msgspec.structs.replace(settings, data_dir=data_dir, run_dir=run_dir, cores=cores)
        disk = held.enter_context(contextlib.closing(PosixDisk(data_dir)))
        shown: list[CountersPage] = []
        keeper = topic_keeper(disk, settings, resolve, shown)
        page = held.enter_context(counters_page(cores, len(keeper.catalogue.topics)))
        shown.append(page)
        write_node_record(settings, page.name, keeper.catalogue.topics)
        log_event("node.start", {"pid": os.getpid(), "version": __version__, "cores": cores, "config": config_path})
        supervisor = Supervisor(
            [child_spec(settings, core, cpus[core % len(cpus)], worker) for core in range(cores)],
            page,
            patience or Patience(),
            control_path=os.path.join(run_dir, control.SOCKET_NAME),
            control_gid=gid,
            notifier=Notifier.take_from(os.environ),
            on_ready=lambda: announce(ready_line(settings, keeper.catalogue.topics)),
            # The data directory's lock stays with the workers: while one of them lives, nobody else may open it.
            release_in_child=supervisor_lock.release,
            storage=storage_spec(keeper, data_dir, cores),
            steward=AdoptionWatch(
                keeper,
                lambda: adopted_cores(data_dir, cores),
                lambda: write_node_record(settings, page.name, keeper.catalogue.topics),
            ),
        )
        exit_code = supervisor.run()
    log_event("node.end", {"exit_code": int(exit_code), "meaning": exit_code.name.lower()})
    return int(exit_code)


def topic_keeper(
    disk: PosixDisk, settings: NodeSettings, resolve: Callable[[], Resolved] | None, shown: list[CountersPage]
) -> TopicKeeper:
    """The owner of the list of topics, which is needed to know how large the counters page must be; that is in `shown` once it is there."""

    def announce(catalogue: Catalogue) -> None:
        for page in shown:
            write_node_record(settings, page.name, catalogue.topics)

    return TopicKeeper(
        disk,
        settings.data_dir,
        Resolved.of(settings) if resolve is None else resolve(),
        resolve=resolve or (lambda: Resolved.of(settings)),
        applied=lambda: topic_versions(shown[0], settings.cores) if shown else {},
        announce=announce,
    )


def storage_spec(keeper: TopicKeeper, data_dir: str, cores: int) -> StorageSpec:
    """The disk that the workers share."""
    return StorageSpec(
        root=data_dir,
        cap_bytes=lambda: keeper.settings.size_cap_bytes,
        directories=lambda index: directories_of(data_dir, index, cores),
    )


def child_spec(settings: NodeSettings, core: int, cpu: int, worker: Worker) -> ChildSpec:
    """One pinned worker. `settings` has absolute directories and the number of workers."""

    def run(child: ChildContext) -> int:
        return worker(
            WorkerContext(
                core=core,
                cores=settings.cores,
                settings=settings,
                data_dir=settings.data_dir,
                run_dir=settings.run_dir,
                region=child.region,
                page=child.page,
                wakeup_fd=child.wakeup_fd,
            )
        )

    return ChildSpec(name=f"core_{core}", index=core, cpu=cpu, run=run)


def ready_line(settings: NodeSettings, topics: Iterable[str]) -> str:
    """The one line that `quiver up` prints."""
    return (
        f"quiver ready: pid={os.getpid()} workers={settings.cores} topics={','.join(topics)} "
        f"data_dir={settings.data_dir} run_dir={settings.run_dir}"
    )


# --- directories ---------------------------------------------------------------------------------------------------------


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
        raise DiskError("mkdir", absolute, error.errno or 0, "choose another data directory with --data-dir") from error
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
        raise DiskError("lock", lock.path, _errno_behind(error)) from error
    try:
        yield lock
    finally:
        lock.release()


def _refuse_if_held(path: str, out_of_time: bool) -> None:
    pid = holder_pid(path)
    if pid is None or is_alive(pid):
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


def check_data_version(data_dir: str) -> None:
    """Refuse a data directory of another version; mark a new one. The caller holds its lock.

    Raises:
        UnsupportedVersion, InvalidFormat: its version file names another version, or none.
        DiskError: it cannot be read or written; a full disk shows here.
    """
    disk = PosixDisk(data_dir)
    try:
        if disk.exists(VERSION_FILE):
            _check_version_text(os.path.join(data_dir, VERSION_FILE), _read_version(disk))
        else:
            _write_version(disk)
    finally:
        disk.close()


def _read_version(disk: PosixDisk) -> bytes:
    file = disk.open_read(VERSION_FILE)
    try:
        return file.read(64, 0)
    finally:
        file.close()


def _check_version_text(path: str, text: bytes) -> None:
    name, _, number = text.strip().partition(b" ")
    if name != b"quiver-data" or not number.isdigit():
        raise InvalidFormat(
            f"{path} does not say 'quiver-data {DATA_VERSION}' but {text!r}: not a data directory of Quiver"
        )
    if int(number) != DATA_VERSION:
        raise UnsupportedVersion(
            f"{path} says that the data has version {int(number)}; this program reads and writes version {DATA_VERSION}: "
            "use the program that wrote it, or another --data-dir"
        )


def _write_version(disk: PosixDisk) -> None:
    temporary = f"{VERSION_FILE}.tmp"
    file = disk.create(temporary)
    try:
        file.write([b"quiver-data %d\n" % DATA_VERSION], 0)
        file.fsync()
    finally:
        file.close()
    disk.rename(temporary, VERSION_FILE)
    disk.sync_directory(".")


# --- what clients and `quiver status` find -------------------------------------------------------------------------------


@contextlib.contextmanager
def counters_page(cores: int, topics: int) -> Iterator[CountersPage]:
    """The node's counters page, unlinked at the end. Raises ShmError."""
    page = CountersPage.create(new_name(), region_of(cores), rows_per_region(topics), FIGURES_VERSION)
    try:
        yield page
    finally:
        page.unlink()
        page.close()


def rows_per_region(topics: int) -> int:
    """Room for the worker's own rows, for each topic its engine, latencies, share and some twenty subscribers, and for later ones."""
    return max(_ROWS_MIN, 16 + 28 * topics)


def write_node_record(settings: NodeSettings, counters_name: str, topics: Iterable[str]) -> None:
    """Write `node.json`: whole or not at all, so that a reader never sees half of it."""
    record = {
        "version": NODE_RECORD_VERSION,
        "package_version": __version__,
        "node": settings.node_name(),
        "pid": os.getpid(),
        "data_dir": settings.data_dir,
        "counters": counters_name,
        "started_unix_ns": time.time_ns(),
        "cores": [
            *({"core": core, "socket": f"core_{core}.sock"} for core in range(settings.cores)),
            *(
                {"core": core, "socket": f"core_{core}.sock", "adopted": True}
                for core in adopted_cores(settings.data_dir, settings.cores)
            ),
        ],
        "topics": list(topics),
    }
    path = os.path.join(settings.run_dir, NODE_RECORD)
    gid = group_of(settings.access)
    descriptor = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(record, file)
        if gid is not None:
            os.fchown(descriptor, -1, gid)
            os.fchmod(descriptor, 0o640)
    os.replace(f"{path}.tmp", path)


def sweep(run_dir: str) -> None:
    """Remove what a node leaves in its run directory: sockets, `node.json`, and named memory that nobody lives behind.

    The caller holds the run directory's lock, so whoever made these things is dead or is the caller.
    """
    record = os.path.join(run_dir, NODE_RECORD)
    swept = sweep_named_memory(record)
    for pattern in ("core_*.sock*", ".core_*.sock*", "supervisor.sock*", f"{NODE_RECORD}*"):
        for path in glob.glob(os.path.join(glob.escape(run_dir), pattern)):
            os.unlink(path)
            swept.append(path)
    if swept:
        log_event("node.sweep", {"removed": ",".join(swept)}, logging.DEBUG)
