"""One simulated machine: disks, processes, and the supervisor's decisions carried out on simulated workers.

The disks of the cores are separate objects, which they are to each other in the product too; what is shared is in `shared_disk`. What is
real: Unix sockets, shared memory, the counters page, and the node's log of decided transactions (every entry synced before it counts).
"""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from pathlib import Path
from random import Random

import msgspec

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config.reading import Resolved
from quiver_actors.base.core_dirs import adopted_cores
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.protocol.topic_requests import SUBJECT, TopicReply, TopicRequest
from quiver_actors.base.topics import Catalogue
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import QuiverError
from quiver_actors.node.adoption_watch import AdoptionWatch
from quiver_actors.node.composition import write_node_record
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.topics.keeper import TopicKeeper
from quiver_actors.node.topics.versions import topic_versions
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.store.files.topic_list import CATALOGUE_NAME
from quiver_actors.supervisor.decide import (
    Exited,
    Fork,
    Forked,
    Observed,
    Signal,
    StopRequested,
    Supervision,
)
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.supervisor.figures import (
    CHILD_ROW,
    SUPERVISOR_REGION,
    ChildFigure,
    region_of,
)
from quiver_actors.supervisor.node_storage import NodeStorage
from quiver_actors.supervisor.spec import READY_STATES, ChildSpec
from quiver_actors.supervisor.storage import StorageSpec
from tests.disks.crashes import CrashMode
from tests.disks.faulty import SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.sim.node.cores import bytes_below, disk_of, keeps_damage, served_by, show_directories
from tests.sim.node.faults import Faults
from tests.sim.node.polls import Delays
from tests.sim.node.restarts import PATIENCE, StartKills, check_no_log_is_missed
from tests.sim.node.room import CORES_MAX, Room, node_settings
from tests.sim.node.shared_disk import CoreDisk, SupervisorDisk
from tests.sim.node.simulated_time import SimulatedTime
from tests.sim.node.workers import SimThread, SimWorker

_MEMORY = "/dev/shm"
POWER_LOSSES = tuple(mode for mode in CrashMode if mode is not CrashMode.KEEP)


class Machine:
    """One simulated machine. `step_*` are what a scheduler may do; `log` is what happened, for a failing seed."""

    def __init__(self, time: SimulatedTime, random: Random, cores: int, room: Room, start_kills: StartKills) -> None:
        self.time = time
        self.room = room
        self._start_kills = start_kills
        self.delays = Delays(random)
        self.random = random
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self.faults = Faults(self, start_kills)
        # Sockets and a log that is really synced: in memory where that is possible, so that nobody waits for a disk.
        self._base = Path(tempfile.mkdtemp(prefix="qv-sim-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self.run_dir = str(self._base)
        self.settings = node_settings(self.run_dir, cores, room)
        self.generation = 0
        """Generation of the data directory; see `core_generation`."""
        self.shared = SimDisk()
        self.disks = [SimDisk(shows_descriptors=True) for _ in range(CORES_MAX)]
        self.workers: list[SimWorker | None] = [None] * CORES_MAX
        self._pids = itertools.count(1 << 22)
        self.page = CountersPage.create(new_name(), region_of(CORES_MAX), 64, FIGURES_VERSION)
        self._wakeups = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own = self.page.writer(SUPERVISOR_REGION)
        self._stamps = itertools.count(1)
        self.start_supervisor()

    def start_supervisor(self) -> None:
        """The first one, or the one after a power loss."""
        opened = OpenedDirectories(self.run_dir)
        opened.sweep()
        self.adopted()
        self.supervision = self._new_supervision()
        self._show_children()
        self.supervisor_disk = SupervisorDisk(self.shared, self.disks)
        self.keeper = TopicKeeper(
            self.supervisor_disk,  # type: ignore[arg-type]
            self.run_dir,
            Resolved.of(self.settings),
            resolve=lambda: Resolved.of(self.settings),
            applied=lambda: topic_versions(self.page, self.settings.cores),
            announce=self._announce,
            forget=opened.forget,
        )
        self._announce(self.keeper.catalogue)
        self._watch = AdoptionWatch(self.keeper, self.adopted, lambda: self._announce(self.keeper.catalogue))

    def adopted(self) -> list[int]:
        """Cores that have directories and no worker."""
        show_directories(self.run_dir, self.settings.cores, self.disks)
        return adopted_cores(self.run_dir, self.settings.cores)

    def left_over(self) -> list[int]:
        """Adopted cores that must go once everybody has everything: they hold no damage."""
        return [core for core in self.adopted() if not keeps_damage(core, self.disks[core])]

    def served_by(self, core: int) -> list[int]:
        return served_by(core, self.settings.cores, len(self.disks))

    def _announce(self, catalogue: Catalogue) -> None:
        """Announce the catalogue like `node` does; a real file is touched, by which workers see that there is a new list of topics."""
        write_node_record(self.settings, self.page.name, catalogue.topics)
        stamp = Path(self.run_dir, CATALOGUE_NAME)
        stamp.touch()
        when_ns = next(self._stamps) * SECOND_NS
        os.utime(stamp, ns=(when_ns, when_ns))

    def ask_topics(self, request: TopicRequest) -> TopicReply:
        """What a command asks the supervisor, and its answer."""
        answer = self.keeper.answer(SUBJECT, msgspec.msgpack.encode(request), os.getuid())
        return msgspec.msgpack.decode(answer, type=TopicReply)

    def _new_supervision(self) -> Supervision:
        specs = [
            ChildSpec(name=f"core_{core}", index=core, cpu=None, run=lambda _: 0) for core in range(self.settings.cores)
        ]
        supervision = Supervision(specs, PATIENCE, self.time.now_ns)
        self._own.begin(next(self._pids), self.time.unix_ns())
        self._rows = [self._own.row(CHILD_ROW, spec.name) for spec in specs]
        storage = StorageSpec(
            root=".",
            cap_bytes=lambda: self.room.cap_bytes,
            directories=lambda core: tuple(f"core_{served}" for served in self.served_by(core)),
            topic_directories=lambda core, topic: tuple(f"{topic}/core_{served}" for served in self.served_by(core)),
            measuring=self._measuring,
        )
        self._storage = NodeStorage(storage, supervision.children, self.page, self._own)
        return supervision

    def _measuring(self, paths: Iterable[str], without: Collection[str]) -> Generator[None, None, int]:
        """Done in two steps, so that workers may be started between them."""
        yield
        return sum(map(self._measured, paths))

    def _measured(self, path: str) -> int:
        """Everything, what is on the disk of a core, or the directory of a topic there."""
        if path == ".":
            return self.shared.used_bytes
        disk = self.disks[int(path.rpartition("_")[2])]
        return bytes_below(disk, path) if "/" in path else disk.used_bytes

    def _show_children(self) -> None:
        for child, row in zip(self.supervision.children, self._rows, strict=True):
            row.set(ChildFigure.PID, child.pid)

    # --- the supervisor ----------------------------------------------------------------------------------------------------

    def step_supervisor(self) -> None:
        """One turn of its loop: look at everybody, do what is due."""
        now_ns = self.time.now_ns
        self.supervision.begin_look(now_ns)
        for child in self.supervision.children:
            if child.has_process:
                seen = self.page.read_head(region_of(child.spec.index))
                if seen.pid == child.pid:
                    ready = seen.state in READY_STATES
                    self._feed(Observed(child.spec.index, ready, seen.heartbeat_ns, False))
        self._act(self.supervision.tick(now_ns))
        self._show_children()
        self._storage.turn(self.supervision.children)
        self._watch.step(now_ns)
        self.supervisor_disk.empty_deleted()

    def _feed(self, event: object) -> None:
        self._act(self.supervision.handle(event, self.time.now_ns))  # type: ignore[arg-type]

    def _act(self, actions: object) -> None:
        for action in actions:  # type: ignore[attr-defined]
            match action:
                case Fork(index):
                    self._fork(index)
                case Signal(index, number):
                    self._signal(index, number)

    def _fork(self, core: int) -> None:
        self.adopted()
        region = self.page.writer(region_of(core))
        pid = next(self._pids)
        region.begin(pid, self.time.unix_ns())
        context = WorkerContext(
            core=core,
            cores=self.settings.cores,
            settings=self.settings,
            data_dir=self.run_dir,
            run_dir=self.run_dir,
            region=region,
            wakeup_fd=self._wakeups[1],
            page=self.page,
            generation=self.generation,
        )
        self._feed(Forked(core, pid))
        worker = SimWorker(
            context,
            CoreDisk(disk_of(core, self.settings.cores, self.disks), lambda: self.shared, lambda: self.disks),
            self.delays,
            lambda journal: FigurePublisher(region, core, SystemClock(), journal),
        )
        self.workers[core] = worker
        worker.faulty.crash_at(self._start_kills.call())
        self.log.append(f"start core_{core}")
        self.counts["workers_started"] += 1
        self._guarded(core, lambda: self._open(core, worker))

    def _open(self, core: int, worker: SimWorker) -> None:
        """Begin to open it, or go on where it waits for room."""
        is_new = not worker.opening.is_waiting
        try:
            if not worker.opening.go_on():
                self.log += [f"core_{core} waits for room"] if is_new else []
                self.counts["waits_for_room"] += is_new
                return
        except QuiverError as error:
            self.log.append(f"core_{core} cannot open: {error}")
            worker.close()
            self._exited(core, int(ChildExit.CANNOT_OPEN) << 8)
            return
        check_no_log_is_missed((host.engine for host in worker.loop._hosts.values()), self.faults.failing_cores)
        worker.become_ready()

    def _signal(self, core: int, number: int) -> None:
        worker = self.workers[core]
        if worker is None or number == signal.SIGCONT:
            return
        if number == signal.SIGTERM and worker.opening.is_waiting:
            self._exited(core, int(ChildExit.DRAINED) << 8)
        elif number == signal.SIGTERM and hasattr(worker, "loop"):
            worker.loop.request_drain()
        else:
            self.kill(core)

    def _exited(self, core: int, wait_status: int) -> None:
        worker, self.workers[core] = self.workers[core], None
        if worker is not None:
            worker.kill()
            # Locks and open files of a process end with it; what it wrote stays in the cache.
            for served in self.served_by(core):
                self.disks[served] = self.disks[served].copy()
            self._feed(Exited(core, wait_status))

    def request_stop(self) -> None:
        """Stop the node like `quiver drain` or SIGTERM: everything is sealed, then all processes end."""
        self.log.append("stop")
        self._feed(StopRequested("the run is over"))

    @property
    def has_stopped(self) -> bool:
        return not any(self.workers)

    def exits(self) -> list[int | None]:
        """How the last process of each worker has ended."""
        return [child.last_wait_status for child in self.supervision.children]

    # --- what workers do ---------------------------------------------------------------------------------------------------

    def step_worker(self, core: int) -> None:
        """One turn of its loop, or one more attempt to start."""
        worker = self.workers[core]
        if worker is not None and worker.opening.is_waiting:
            self._guarded(core, lambda: self._open(core, worker))
        elif worker is not None and hasattr(worker, "loop"):
            self._guarded(core, lambda: self._turn(core, worker))

    def _turn(self, core: int, worker: SimWorker) -> None:
        with worker.message_kills.watching():
            goes_on = worker.loop.step(waits=False)
        if not goes_on:
            outcome = worker.loop.life.outcome
            worker.kill()
            worker.close()
            self.log.append(f"core_{core} ends: {outcome.name}")
            self._exited(core, int(outcome) << 8)

    def step_job(self, core: int) -> None:
        """One job of one of its threads."""
        worker = self.workers[core]
        if worker is None:
            return
        threads = [thread for thread in worker.threads if thread.has_work]
        if threads:
            thread = self.random.choice(threads)
            self._guarded(core, lambda: self._run_job(core, thread))

    def _run_job(self, core: int, thread: SimThread) -> None:
        name = thread.run_next()
        self.log.append(f"core_{core} {name}")
        self.counts["memory_refused"] += name.endswith("refused memory")

    def _guarded(self, core: int, action: object) -> None:
        """Do something as a worker, which may die in the middle of it."""
        try:
            action()  # type: ignore[operator]
        except SimulatedCrash as crash:
            self.log.append(f"core_{core} dies at {crash}")
            self.counts["dies_at_effects"] += 1
            self._exited(core, signal.SIGKILL)

    # --- faults ------------------------------------------------------------------------------------------------------------

    def kill(self, core: int) -> None:
        """SIGKILL."""
        if self.workers[core] is not None:
            self.log.append(f"kill core_{core}")
            self._exited(core, signal.SIGKILL)

    def lose_power(self, mode: CrashMode, seed: int, cores: int) -> None:
        """All processes end, and the disks keep what they must; KEEP: only the supervisor was killed, which its workers do not survive.

        Args:
            cores: so many workers there are from now on.
        """
        self.log.append(f"power loss {mode.name}, {cores} cores from now on")
        self.end_processes(mode, seed, cores)
        self.start_supervisor()

    def end_processes(self, mode: CrashMode, seed: int, cores: int) -> None:
        """The first half of `lose_power`: nobody runs afterwards."""
        self.counts["cores_changed"] += cores != self.settings.cores
        self.generation += cores != self.settings.cores
        self.counts["power_losses"] += mode is not CrashMode.KEEP
        for core, worker in enumerate(self.workers):
            if worker is not None:
                worker.kill()
                self.workers[core] = None
        self.disks = [disk.crash(mode, seed + core) for core, disk in enumerate(self.disks)]
        self.shared = self.shared.crash(mode, seed + len(self.disks) - 1)
        self.settings = msgspec.structs.replace(self.settings, cores=cores)

    # --- the end -----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.kill()
        for descriptor in self._wakeups:
            os.close(descriptor)
        self.page.unlink()
        self.page.close()
        shutil.rmtree(self._base)
