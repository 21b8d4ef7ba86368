"""One simulated machine: disks, processes, and the supervisor's decisions carried out on simulated workers.

The disks of the cores are separate objects, which they are to each other in the product too: no file is shared. What is real: Unix sockets,
shared memory, and the counters page.
"""

from __future__ import annotations

import itertools
import logging
import os
import shutil
import signal
import tempfile
from pathlib import Path
from random import Random

from quiver_actors.clock import SystemClock
from quiver_actors.config import NodeSettings, SegmentSettings, TopicSettings, WalSettings
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
    Supervision,
)
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.supervisor.figures import SUPERVISOR_REGION, region_of
from quiver_actors.supervisor.spec import READY_STATES, ChildSpec, Patience, RestartPolicy
from quiver_actors.supervisor.storage import Coordination, StorageSpec
from quiver_actors.units import KIB, MILLISECOND_NS, SECOND_NS
from quiver_actors.worker.figures import FigurePublisher
from tests.sim.node.simulated_time import SimulatedTime
from tests.sim.node.workers import SimWorker

TOPIC = "default"
POWER_LOSSES = tuple(mode for mode in CrashMode if mode is not CrashMode.KEEP)
_PATIENCE = Patience(
    restart=RestartPolicy(backoff_first_ns=MILLISECOND_NS, backoff_max_ns=20 * MILLISECOND_NS, intensity_count=1 << 30),
    heartbeat_timeout_ns=3600 * SECOND_NS,
    drain_timeout_ns=3600 * SECOND_NS,
    observe_interval_ns=MILLISECOND_NS,
)


def node_settings(run_dir: str, cores: int) -> NodeSettings:
    """Small segments, so that everything happens often."""
    topic = TopicSettings(
        name=TOPIC,
        segment=SegmentSettings(target_size_bytes=8 * KIB, max_open_duration_ns=20 * MILLISECOND_NS),
        wal=WalSettings(max_rotated_files=3),
    )
    return NodeSettings(data_dir=run_dir, run_dir=run_dir, cores=cores, arena_bytes=64 * KIB, topics={TOPIC: topic})


class Machine:
    """See the module. `step_*` are what a scheduler may do; `log` is what happened, for a failing seed."""

    def __init__(self, time: SimulatedTime, random: Random, cores: int) -> None:
        self.time = time
        self.random = random
        self.log: list[str] = []
        self.failing_cores: set[int] = set()
        """Whose disk has failed a call at some time: their bundles may be lost, and announced."""
        self._base = Path(tempfile.mkdtemp(prefix="qv-sim-"))
        self.run_dir = str(self._base)
        self.settings = node_settings(self.run_dir, cores)
        self.disks = [SimDisk(shows_descriptors=True) for _ in range(cores)]
        self.workers: list[SimWorker | None] = [None] * cores
        self._pids = itertools.count(1 << 22)
        self._page = CountersPage.create(new_name(), region_of(cores), 64, FIGURES_VERSION)
        self._wakeups = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own = self._page.writer(SUPERVISOR_REGION)
        self.supervision = self._new_supervision()
        write_node_record(self.settings, self._page.name, [TOPIC])

    def _new_supervision(self) -> Supervision:
        specs = [
            ChildSpec(name=f"core_{core}", index=core, cpu=None, run=lambda _: 0) for core in range(self.settings.cores)
        ]
        supervision = Supervision(specs, _PATIENCE, self.time.now_ns)
        self._own.begin(next(self._pids), self.time.unix_ns())
        # Without a cap: it says so to every worker, and rests.
        storage = StorageSpec(root=self.run_dir, cap_bytes=lambda: 0, directories=lambda _: ())
        self._coordination = Coordination(storage, supervision.children, self._page, self._own)
        return supervision

    # --- the supervisor ----------------------------------------------------------------------------------------------------

    def step_supervisor(self) -> None:
        """One turn of its loop: look at everybody, do what is due."""
        now_ns = self.time.now_ns
        self.supervision.begin_look(now_ns)
        for child in self.supervision.children:
            if child.has_process:
                seen = self._page.read_region(region_of(child.spec.index))
                if seen.pid == child.pid:
                    ready = seen.state in READY_STATES
                    self._feed(Observed(child.spec.index, ready, seen.heartbeat_ns, False))
        self._act(self.supervision.tick(now_ns))
        self._coordination.turn(self.supervision.children)

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
            context, self.disks[core], lambda journal: FigurePublisher(region, core, SystemClock(), journal)
        )
        self.workers[core] = worker
        self.log.append(f"start core_{core}")
        self._guarded(core, lambda: self._open(core, worker))

    def _open(self, core: int, worker: SimWorker) -> None:
        try:
            worker.open()
        except QuiverError as error:
            self.log.append(f"core_{core} cannot open: {error}")
            worker.close()
            self._exited(core, int(ChildExit.CANNOT_OPEN) << 8)
            return
        worker.become_ready()

    def _signal(self, core: int, number: int) -> None:
        worker = self.workers[core]
        if worker is None:
            return
        if number == signal.SIGTERM and hasattr(worker, "loop"):
            worker.loop.request_drain()
        else:
            self.kill(core)

    def _exited(self, core: int, wait_status: int) -> None:
        worker, self.workers[core] = self.workers[core], None
        if worker is not None:
            worker.kill()
            # Locks and open files of a process end with it; what it wrote stays in the cache.
            self.disks[core] = self.disks[core].copy()
            self._feed(Exited(core, wait_status))

    # --- what workers do ---------------------------------------------------------------------------------------------------

    def step_worker(self, core: int) -> None:
        """One turn of its loop."""
        worker = self.workers[core]
        if worker is not None and hasattr(worker, "loop"):
            self._guarded(core, lambda: self._turn(core, worker))

    def _turn(self, core: int, worker: SimWorker) -> None:
        if not worker.loop.step(waits=False):
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
            self._guarded(core, lambda: self.log.append(f"core_{core} {thread.run_next()}"))

    def _guarded(self, core: int, action: object) -> None:
        """Do something as a worker, which may die in the middle of it."""
        try:
            action()  # type: ignore[operator]
        except SimulatedCrash as crash:
            self.log.append(f"core_{core} dies at {crash}")
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

    def arm_error(self, core: int, kind: str, nth: int, number: int) -> None:
        """A call on the disk fails once."""
        worker = self.workers[core]
        if worker is not None:
            self.log.append(f"arm {kind} error {number} on core_{core}")
            self.failing_cores.add(core)
            worker.faulty.fail(kind, nth, number)

    def limit_disk(self, core: int, free_bytes: int | None) -> None:
        disk = self.disks[core]
        disk.capacity_bytes = None if free_bytes is None else disk.used_bytes + free_bytes
        self.log.append(f"core_{core} has {free_bytes} bytes free")

    def lose_power(self, mode: CrashMode, seed: int) -> None:
        """All processes end, and the disks keep what they must."""
        self.log.append(f"power loss {mode.name}")
        for core, worker in enumerate(self.workers):
            if worker is not None:
                worker.kill()
                self.workers[core] = None
            self.disks[core] = self.disks[core].crash(mode, seed + core)
        self.supervision = self._new_supervision()

    # --- the end -----------------------------------------------------------------------------------------------------------

    def heal(self) -> None:
        for core, disk in enumerate(self.disks):
            disk.capacity_bytes = None
            worker = self.workers[core]
            if worker is not None:
                worker.faulty.heal()
                worker.faulty.crash_at(0)

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
