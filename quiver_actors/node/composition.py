"""The composition root: turns settings into a running node.

Owner: the process of `quiver up`. It holds both directories' locks for its life, and everything in the run directory is its to
make and remove.

    data directory   quiver.node.lock    held by the supervisor and its workers: free only when the last of them is gone
                     quiver.version      `quiver-data 3` (data_version.py)
                     quiver.cores        the number of workers, and since when (core_generation.py)
                     <topic>/core_<n>/   the workers'
                     quiver.archive      who the directory is to its archive: the archiver's (archive/ownership.py)
                     quiver.topics       all topics with their settings: the supervisor's, read by the workers
                     .deleted-*          topics that were deleted, until all of their files are unlinked
    run directory    supervisor.lock     held by the supervisor alone: its life
                     supervisor.sock     control socket
                     core_<n>.sock       the workers'
                     archive.sock         the archiver's, for readers of what is archived (archive/serving.py)
                     archive.json         what the archiver says of itself (base/archive_status.py)
                     node.json           where to find all of it, the counters page included
                     opened/             which directories of cores the workers have had open (opened_directories.py)

Imports neither pyarrow nor numpy: workers do, after the fork.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from quiver_actors import __version__
from quiver_actors.base.config import NodeSettings
from quiver_actors.base.config.reading import Resolved, check_settings
from quiver_actors.base.core_dirs import adopted_cores, directories_of, find_core_dirs, retired_cores
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.topics import Catalogue
from quiver_actors.errors import ConfigError
from quiver_actors.node.adoption_watch import AdoptionWatch
from quiver_actors.node.archiver_process import ArchiverProcess
from quiver_actors.node.core_generation import begin_with
from quiver_actors.node.leftovers import NODE_RECORD, sweep
from quiver_actors.node.node_dirs import (
    bring_data_version_up_to_date,
    group_of,
    hold_data_dir,
    hold_run_dir,
    make_data_dir,
    make_run_dir,
)
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.topics.keeper import TopicKeeper
from quiver_actors.node.topics.versions import topic_versions
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.supervisor import control
from quiver_actors.supervisor.figures import RUN_DIRECTORY_ROW, SUPERVISOR_REGION, region_of
from quiver_actors.supervisor.log import log_event
from quiver_actors.supervisor.loop import Supervisor
from quiver_actors.supervisor.notify import Notifier
from quiver_actors.supervisor.spec import ChildContext, ChildSpec, Patience
from quiver_actors.supervisor.storage import StorageSpec

NODE_RECORD_VERSION = 1

_ROWS_MIN = 2048


Worker = Callable[[WorkerContext], int]


def run_worker(context: WorkerContext) -> int:
    """Import the worker, which no process may do before it has been forked, and live its life."""
    from quiver_actors.node.worker import entry

    return entry.main(context)


def print_line(line: str) -> None:
    """Print to standard output, which may be a file on a full disk or a closed pipe: the node goes on without the line."""
    try:
        # Not through the buffer: what it cannot get rid of, it would fail at again with each flush.
        os.write(sys.stdout.fileno(), f"{line}\n".encode())
    except OSError as error:
        log_event("node.line_not_written", {"reason": error.strerror}, logging.WARNING)


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
    check_settings(msgspec.structs.replace(settings, cores=cores))  # only here it is known what `cores = 0` means
    with contextlib.ExitStack() as held:
        data_dir = make_data_dir(settings.data_dir)
        gid = group_of(settings.access)
        run_dir = make_run_dir(settings.resolved_run_dir(), gid)
        held.enter_context(hold_data_dir(data_dir))
        supervisor_lock = held.enter_context(hold_run_dir(run_dir))
        bring_data_version_up_to_date(data_dir)
        sweep(run_dir)
        held.callback(sweep, run_dir)
        settings = msgspec.structs.replace(settings, data_dir=data_dir, run_dir=run_dir, cores=cores)
        disk = held.enter_context(contextlib.closing(PosixDisk(data_dir)))
        generation = begin_with(disk, cores, time.time_ns(), is_new=not find_core_dirs(data_dir))
        shown: list[CountersPage] = []
        keeper = topic_keeper(disk, settings, resolve, shown)
        page = held.enter_context(counters_page(run_dir, cores, len(keeper.catalogue.topics)))
        shown.append(page)
        held.enter_context(first_record(settings, page.name, keeper.catalogue.topics))
        warn_of_shared_cpus(cores, len(cpus))
        bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        held.callback(os.close, bell)
        archiver = ArchiverProcess(adoption_watch(settings, page, keeper), settings, bell)
        held.callback(archiver.stop)
        log_event("node.start", {"pid": os.getpid(), "version": __version__, "cores": cores, "config": config_path})
        supervisor = Supervisor(
            [child_spec(settings, core, cpus[core % len(cpus)], worker, generation, bell) for core in range(cores)],
            page,
            patience or Patience(),
            control_path=os.path.join(run_dir, control.SOCKET_NAME),
            control_gid=gid,
            notifier=Notifier.take_from(os.environ),
            on_ready=lambda: announce(ready_line(settings, keeper.catalogue.topics)),
            # The data directory's lock stays with the workers: while one of them lives, nobody else may open it.
            release_in_child=supervisor_lock.release,
            storage=storage_spec(keeper, data_dir, cores),
            steward=archiver,
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
            try:
                write_node_record(settings, page.name, catalogue.topics)
            except OSError as error:
                # Workers follow the list itself; what is out of date is what `quiver status` names as topics.
                log_event("node.record_not_written", {"reason": error.strerror}, logging.WARNING)

    def read() -> Resolved:
        found = Resolved.of(settings) if resolve is None else resolve()
        # Where `cores = 0`, what is changed while the node runs has to suit the workers that it has, as at its start.
        counted = msgspec.structs.replace(found.settings, cores=found.settings.cores or settings.cores)
        return msgspec.structs.replace(found, settings=counted)

    return TopicKeeper(
        disk,
        settings.data_dir,
        read(),
        resolve=read,
        applied=lambda: topic_versions(shown[0], settings.cores) if shown else {},
        announce=announce,
        forget=OpenedDirectories(settings.resolved_run_dir()).forget,
    )


def adoption_watch(settings: NodeSettings, page: CountersPage, keeper: TopicKeeper) -> AdoptionWatch:
    """The topic keeper, and beside it the watch over adopted cores, of which the node record tells clients."""
    return AdoptionWatch(
        keeper,
        lambda: all_adopted_cores(settings),
        lambda: write_node_record(settings, page.name, keeper.catalogue.topics),
    )


def storage_spec(keeper: TopicKeeper, data_dir: str, cores: int) -> StorageSpec:
    """The disk that the workers share."""
    return StorageSpec(
        root=data_dir,
        cap_bytes=lambda: keeper.settings.size_cap_bytes,
        directories=lambda index: directories_of(data_dir, index, cores),
        topic_directories=lambda index, topic: directories_of(data_dir, index, cores, [topic]),
    )


def child_spec(
    settings: NodeSettings, core: int, cpu: int, worker: Worker, generation: int = 0, bell: int = -1
) -> ChildSpec:
    """One pinned worker. `settings` has absolute directories and the number of workers; `bell` wakes the archiver."""

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
                generation=generation,
                archiver_bell=bell,
            )
        )

    return ChildSpec(name=f"core_{core}", index=core, cpu=cpu, run=run)


def all_adopted_cores(settings: NodeSettings) -> list[int]:
    """Cores that have directories and no worker, rising; also where a directory was moved away since the node has opened it."""
    opened = {core for _, core in OpenedDirectories(settings.resolved_run_dir()).all() if core >= settings.cores}
    return sorted(opened.union(adopted_cores(settings.data_dir, settings.cores)))


def ready_line(settings: NodeSettings, topics: Iterable[str]) -> str:
    """The one line that `quiver up` prints."""
    return (
        f"quiver ready: pid={os.getpid()} workers={settings.cores} topics={','.join(topics)} "
        f"data_dir={settings.data_dir} run_dir={settings.run_dir}"
    )


# --- what clients and `quiver status` find -------------------------------------------------------------------------------


@contextlib.contextmanager
def counters_page(run_dir: str, cores: int, topics: int) -> Iterator[CountersPage]:
    """The node's counters page, unlinked at the end. Raises ShmError.

    It names its run directory before this names it: whoever is killed behind that leaves a page that no other node removes.
    """
    page = CountersPage.create(new_name(), region_of(cores), rows_per_region(cores, topics), FIGURES_VERSION)
    try:
        supervisor = page.writer(SUPERVISOR_REGION)
        supervisor.begin(os.getpid(), time.time_ns())
        supervisor.row(RUN_DIRECTORY_ROW, run_dir)
        yield page
    finally:
        page.unlink()
        page.close()


def rows_per_region(cores: int, topics: int) -> int:
    """Room in a worker's region for its own rows, for each topic its engine, latencies, share and some twenty subscribers, and for later
    ones; in the supervisor's for its rows of each worker, and for the share of each topic on each worker."""
    return max(_ROWS_MIN, 16 + 2 * cores + max(28, cores + 1) * topics)


def write_node_record(settings: NodeSettings, counters_name: str, topics: Iterable[str]) -> None:
    """Write `node.json`: whole or not at all, so that a reader never sees half of it."""
    # Before the retired ones: a core that goes meanwhile is among those, and never among neither.
    adopted = all_adopted_cores(settings)
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
            *({"core": core, "socket": f"core_{core}.sock", "adopted": True} for core in adopted),
        ],
        "retired": retired_cores(settings.data_dir),
        "topics": list(topics),
        "has_archiver": bool(settings.archive.url),
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


@contextlib.contextmanager
def first_record(settings: NodeSettings, counters_name: str, topics: Iterable[str]) -> Iterator[None]:
    """Write the node record, without which no client finds the node. Raises ConfigError: the run directory cannot be written.

    The record is removed at the end, before the page: whoever is killed at the end leaves no record of a page that is gone.
    """
    try:
        write_node_record(settings, counters_name, topics)
    except OSError as error:
        raise ConfigError(
            f"run directory {settings.run_dir} cannot be written: {error.strerror}; make room, or choose another one with --run-dir"
        ) from error
    try:
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(settings.run_dir, NODE_RECORD))


def warn_of_shared_cpus(cores: int, cpus: int) -> None:
    """Say that workers share CPUs, where there are more of them than this process may run on."""
    if cores > cpus:
        why = f"{cores} workers share {cpus} CPUs and slow each other down: set cores to {cpus}, or to 0 for one worker a CPU"
        log_event("node.cpus_shared", {"cores": cores, "cpus": cpus, "reason": why}, logging.WARNING)
