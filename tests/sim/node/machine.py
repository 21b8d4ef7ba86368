"""One simulated machine: disks, processes, and the supervisor's decisions carried out on simulated workers.

The disks of the cores are separate objects, which they are to each other in the product too; what is shared is in `shared_disk`. What is
real: Unix sockets, shared memory, the counters page, and the node's log of decided transactions (every entry synced before it counts).
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable
from pathlib import Path
from random import Random

import msgspec

from quiver_actors.adoption_watch import AdoptionWatch
from quiver_actors.clock import SystemClock
from quiver_actors.config.reading import Resolved
from quiver_actors.core_dirs import adopted_cores
from quiver_actors.disk.crashes import CrashMode
from quiver_actors.disk.faulty import SimulatedCrash
from quiver_actors.disk.simulated import SimDisk
from quiver_actors.errors import QuiverError
from quiver_actors.metrics.figures import FIGURES_VERSION
from quiver_actors.node import WorkerContext, write_node_record
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
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
from quiver_actors.supervisor.figures import CHILD_ROW, SUPERVISOR_REGION, ChildFigure, region_of
from quiver_actors.supervisor.spec import READY_STATES, ChildSpec, Patience, RestartPolicy
from quiver_actors.supervisor.storage import Coordination, StorageSpec
from quiver_actors.topics.catalogue import CATALOGUE_NAME, Catalogue
from quiver_actors.topics.keeper import TopicKeeper
from quiver_actors.topics.requests import SUBJECT, TopicReply, TopicRequest
from quiver_actors.topics.versions import topic_versions
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.worker.figures import FigurePublisher
from tests.sim.node.bits import Segment, rot
from tests.sim.node.cores import disk_of, keeps_damage, served_by, show_directories
from tests.sim.node.polls import Delays
from tests.sim.node.room import CORES_MAX, Room, node_settings
from tests.sim.node.shared_disk import CoreDisk, SupervisorDisk
from tests.sim.node.simulated_time import SimulatedTime
from tests.sim.node.workers import SimThread, SimWorker

_MEMORY = "/dev/shm"
POWER_LOSSES = tuple(mode for mode in CrashMode if mode is not CrashMode.KEEP)
_PATIENCE = Patience(
    restart=RestartPolicy(backoff_first_ns=MILLISECOND_NS, backoff_max_ns=20 * MILLISECOND_NS, intensity_count=1 << 30),
    heartbeat_timeout_ns=3600 * SECOND_NS,
    drain_timeout_ns=3600 * SECOND_NS,
    observe_interval_ns=MILLISECOND_NS,
)


class Machine:
    """See the module. `step_*` are what a scheduler may do; `log` is what happened, for a failing seed."""

    def __init__(self, time: SimulatedTime, random: Random, cores: int, room: Room) -> None:
        self.time = time
        self.room = room
        self.delays = Delays(random)
        self.random = random
        self.log: list[str] = []
        self.counts: Counter[str] = Counter()
        self.failing_cores: set[int] = set()
        """Whose disk has failed a call at some time: their bundles may be lost, and announced."""
        self._rotten: set[Segment] = set()
        # Sockets and a log that is really synced: in memory where that is possible, so that nobody waits for a disk.
        self._base = Path(tempfile.mkdtemp(prefix="qv-sim-", dir=_MEMORY if os.path.isdir(_MEMORY) else None))
        self.run_dir = str(self._base)
        self.settings = node_settings(self.run_dir, cores, room)
        self.shared = SimDisk()
        self.disks = [SimDisk(shows_descriptors=True) for _ in range(CORES_MAX)]
        self.workers: list[SimWorker | None] = [None] * CORES_MAX
        self._pids = itertools.count(1 << 22)
        self._page = CountersPage.create(new_name(), region_of(CORES_MAX), 64, FIGURES_VERSION)
        self._wakeups = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own = self._page.writer(SUPERVISOR_REGION)
        self._stamps = itertools.count(1)
        self.start_supervisor()

    def start_supervisor(self) -> None:
        """The first one, or the one after a power loss."""
        self.adopted()
        self.supervision = self._new_supervision()
        self._show_children()
        self.supervisor_disk = SupervisorDisk(self.shared, self.disks)
        self.keeper = TopicKeeper(
            self.supervisor_disk,  # type: ignore[arg-type]
            self.run_dir,
            Resolved.of(self.settings),
            resolve=lambda: Resolved.of(self.settings),
            applied=lambda: topic_versions(self._page, self.settings.cores),
            announce=self._announce,
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

    def _served_by(self, core: int) -> list[int]:
        return served_by(core, self.settings.cores, len(self.disks))

    def _announce(self, catalogue: Catalogue) -> None:
        """As `node` does; and what workers look at to see that there is a new list of topics is a real file."""
        write_node_record(self.settings, self._page.name, catalogue.topics)
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
        supervision = Supervision(specs, _PATIENCE, self.time.now_ns)
        self._own.begin(next(self._pids), self.time.unix_ns())
        self._rows = [self._own.row(CHILD_ROW, spec.name) for spec in specs]
        storage = StorageSpec(
            root=".",
            cap_bytes=lambda: self.room.cap_bytes,
            directories=lambda core: tuple(f"core_{served}" for served in self._served_by(core)),
            measuring=self._measuring,
        )
        self._coordination = Coordination(storage, supervision.children, self._page, self._own)
        return supervision

    def _measuring(self, paths: Iterable[str], without: Collection[str]) -> Generator[None, None, int]:
        """In two steps, so that workers may be started between them."""
        yield
        return sum(
            self.shared.used_bytes if path == "." else self.disks[int(path.removeprefix("core_"))].used_bytes
            for path in paths
        )

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
                seen = self._page.read_head(region_of(child.spec.index))
                if seen.pid == child.pid:
                    ready = seen.state in READY_STATES
                    self._feed(Observed(child.spec.index, ready, seen.heartbeat_ns, False))
        self._act(self.supervision.tick(now_ns))
        self._show_children()
        self._coordination.turn(self.supervision.children)
        self._watch.step(now_ns)
        self.supervisor_disk.empty_deleted()

    @property
    def granted_bytes(self) -> list[int]:
        """As the words stand now, by core."""
        return [self._coordination._shares[core].granted_bytes for core in range(self.settings.cores)]

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
        region = self._page.writer(region_of(core))
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
            page=self._page,
        )
        self._feed(Forked(core, pid))
        worker = SimWorker(
            context,
            CoreDisk(disk_of(core, self.settings.cores, self.disks), lambda: self.shared, lambda: self.disks),
            self.delays,
            lambda journal: FigurePublisher(region, core, SystemClock(), journal),
        )
        self.workers[core] = worker
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
            for served in self._served_by(core):
                self.disks[served] = self.disks[served].copy()
            self._feed(Exited(core, wait_status))

    def request_stop(self) -> None:
        """As `quiver drain` or SIGTERM: everything is sealed, then all processes end."""
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
            outcome = worker.loop.outcome
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

    def arm_kill(self, core: int, calls: int) -> None:
        """The worker dies at one of its next calls that change the disk, before it is done."""
        worker = self.workers[core]
        if worker is not None:
            self.log.append(f"arm kill of core_{core} in {calls} calls")
            worker.faulty.crash_at(worker.faulty.mutating_count + calls)

    def arm_kill_at_message(self, core: int, calls: int, after: bool) -> None:
        """The same right before or after one of its next calls by which it takes a message, or sends one."""
        worker = self.workers[core]
        if worker is not None:
            self.log.append(f"arm kill of core_{core} in {calls} messages")
            worker.message_kills.arm(calls, after=after)

    def arm_error(self, core: int, kind: str, nth: int, number: int) -> None:
        """A call on the disk fails once."""
        worker = self.workers[core]
        if worker is not None:
            self.log.append(f"arm {kind} error {number} on core_{core}")
            self.failing_cores.update(self._served_by(core))
            worker.faulty.fail(kind, nth, number)

    def limit_disk(self, core: int, free_bytes: int | None) -> None:
        disk = self.disks[core]
        disk.capacity_bytes = None if free_bytes is None else disk.used_bytes + free_bytes
        self.log.append(f"core_{core} has {free_bytes} bytes free")

    def lose_power(self, mode: CrashMode, seed: int, cores: int) -> None:
        """All processes end, and the disks keep what they must; KEEP: only the supervisor was killed, which its workers do not survive.

        Args:
            cores: so many workers there are from now on.
        """
        self.log.append(f"power loss {mode.name}, {cores} cores from now on")
        self.counts["cores_changed"] += cores != self.settings.cores
        self.counts["power_losses"] += mode is not CrashMode.KEEP
        for core, worker in enumerate(self.workers):
            if worker is not None:
                worker.kill()
                self.workers[core] = None
        self.disks = [disk.crash(mode, seed + core) for core, disk in enumerate(self.disks)]
        self.shared = self.shared.crash(mode, seed + len(self.disks) - 1)
        self.settings = msgspec.structs.replace(self.settings, cores=cores)
        self.start_supervisor()

    def arm_supervisor_kill(self, calls: int) -> None:
        """The supervisor dies at one of its next calls that change the list of topics, before it is done."""
        self.log.append(f"arm kill of the supervisor in {calls} calls")
        self.supervisor_disk.faulty.crash_at(self.supervisor_disk.faulty.mutating_count + calls)

    def rot(self, core: int, seed: int) -> None:
        """A worker is killed, and bits of its sealed segments are something else when it comes back."""
        self.kill(core)
        for served in self._served_by(core):
            for segment in rot(self.disks[served], Random(seed + served)):
                self.log.append("a bit flips in segment {2} of {0} on core_{1}".format(*segment))
                self.counts["bits_flipped"] += 1
                self._rotten.add(segment)

    def refuse_memory(self, core: int, arenas: int) -> None:
        worker = self.workers[core]
        if worker is not None:
            self.log.append(f"core_{core} gets no memory for {arenas} arenas")
            worker.refuse_memory(arenas)

    def delay_messages(self, share: float) -> None:
        """From now on so many of the messages that a process could read wait for a later turn."""
        self.log.append(f"{share:.0%} of all messages are late")
        self.delays.share = share

    # --- looking -----------------------------------------------------------------------------------------------------------

    def may_lose(self, segment: Segment) -> bool:
        """Whether bundles of it that were acknowledged may be lost, with notice."""
        return segment[1] in self.failing_cores or self.room.drops or segment in self._rotten

    def staged(self) -> list[int]:
        """How many stages that outlive their connections nothing has become of yet, by core. Open ones end with theirs."""
        return [
            sum(stage.owner is None for host in worker.loop._hosts.values() for stage in host.engine.stages)
            for worker in self.workers
            if worker is not None and hasattr(worker, "loop")
        ]

    def held(self) -> list[str]:
        """What workers keep for connections."""
        return [what for worker in self.workers if worker is not None for what in worker.held()]

    # --- the end -----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        self.delays.share = 0.0
        self.supervisor_disk.faulty.crash_at(0)
        for core, disk in enumerate(self.disks):
            disk.capacity_bytes = None
            worker = self.workers[core]
            if worker is not None:
                worker.faulty.heal()
                worker.faulty.crash_at(0)
                worker.message_kills.arm(0, after=False)
                worker.refuse_memory(0)

    def close(self) -> None:
        for worker in self.workers:
            if worker is not None:
                worker.kill()
        for descriptor in self._wakeups:
            os.close(descriptor)
        self._page.unlink()
        self._page.close()
        shutil.rmtree(self._base)


logging.disable(logging.CRITICAL)
