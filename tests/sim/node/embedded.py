"""An embedded store on the simulated disks of a node that is down: its own code, with threads whose jobs run when they are let.

What is not simulated here: the lock of the data directory, which is a lock of the real file system (`tests/crash/owners.py` tries it); the
locks of the engines' directories are the simulated disk's.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable
from typing import TypeVar

from quiver_actors.base.config.reading import Resolved
from quiver_actors.client.exchange import Flow
from quiver_actors.embedded.drive import Drive
from quiver_actors.embedded.exchange import StoreExchange
from quiver_actors.embedded.node import _POLICY, EmbeddedNode
from quiver_actors.embedded.steward import Steward
from quiver_actors.embedded.store import Store
from quiver_actors.embedded.worker import CommitThread, EmbeddedWorker, OpenedHere, Work
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.threads import JobThread
from quiver_actors.supervisor.node_storage import NodeStorage
from quiver_actors.supervisor.restart import RestartHistory
from quiver_actors.supervisor.storage import StorageSpec
from tests.disks.monitor import OrderMonitor
from tests.sim.node.cores import bytes_below, disk_of, served_by
from tests.sim.node.machine import Machine
from tests.sim.node.model import Violation
from tests.sim.node.shared_disk import CoreDisk
from tests.sim.node.workers import SimThread

T = TypeVar("T")

CORE = 0
_TURNS_MAX = 20_000
"""Turns in which a call must have come to its end; each lets at least a fraction of a millisecond pass."""
_TURN_NS, _IDLE_TURN_NS = 200_000, 5_000_000
"""Time that passes in a turn; more of it where only a timer is waited for."""


class SimCommits(CommitThread, SimThread):
    """The thread that syncs, unless a caller does: a commit on offer is taken as in the product."""

    def __init__(self) -> None:
        self._offered: deque[Work] = deque()
        self._taken: dict[int, Work] = {}
        SimThread.__init__(self, "sync")

    def stop(self, timeout_seconds: float) -> bool:
        self._taken.clear()
        self._offered.clear()
        return SimThread.stop(self, timeout_seconds)


class SimStoreWorker(EmbeddedWorker):
    """One life of the worker of a store."""

    def _start_threads(self, wake_fd: int) -> tuple[JobThread, JobThread, JobThread, JobThread]:
        self.commits = SimCommits()
        self.threads: list[SimThread] = [self.commits, SimThread("seal"), SimThread("ask"), SimThread("cold")]
        self._own_threads = [*self.threads]
        return self.commits, self.threads[1], self.threads[2], self.threads[3]

    @property
    def context(self) -> WorkerContext:
        """What it was made with."""
        return self._context

    def forget_jobs(self) -> None:
        """No thread goes on."""
        for thread in self.threads:
            thread.stop(0)


class SimSteward(Steward):
    """Measures the simulated disks."""

    def measure(self, machine: Machine) -> None:
        """Measure them from now on, instead of the real directory."""

        def measured(path: str) -> int:
            if path == ".":
                return machine.shared.used_bytes
            disk = machine.disks[int(path.rpartition("_")[2])]
            return bytes_below(disk, path) if "/" in path else disk.used_bytes

        def measuring(paths: Iterable[str], without: Collection[str]) -> Generator[None, None, int]:
            yield
            return sum(map(measured, paths))

        cores = served_by(CORE, 1, len(machine.disks))
        spec = StorageSpec(
            root=".",
            cap_bytes=lambda: machine.room.cap_bytes,
            directories=lambda core: tuple(f"core_{served}" for served in cores),
            topic_directories=lambda core, topic: tuple(f"{topic}/core_{served}" for served in cores),
            measuring=measuring,
        )
        self._storage = NodeStorage(spec, [self._child], self.page, self._own)


class SimStoreNode(EmbeddedNode):
    """One open store. Owner: the simulated process."""

    def __init__(self, machine: Machine) -> None:
        """Open nothing yet: see `start`."""
        self.machine = machine
        self.faulty = CoreDisk(disk_of(CORE, 1, machine.disks), lambda: machine.shared, lambda: machine.disks)
        self.pid = os.getpid()
        self.drive = Drive(self._gave_up)
        self.data_dir = machine.run_dir
        self.is_closed = False
        self._settings = machine.settings
        self._opened = OpenedHere()
        self._ended: list[EmbeddedWorker] = []
        self._is_abandoned = False
        self._history = RestartHistory(_POLICY)
        self._started_ns = self._restart_at_ns = 0
        self._generation = machine.generation
        self._held = contextlib.ExitStack()
        self._clock = threading.current_thread()

    def start(self) -> None:
        """Recover what the machine's disks hold. Raises as the base class, or SimulatedCrash."""
        machine = self.machine
        self._steward = SimSteward(
            machine.supervisor_disk,  # type: ignore[arg-type]
            self.data_dir,
            Resolved.of(self._settings),
            self._opened,
            self._applied,
        )
        self._steward.measure(machine)
        self._start_worker()

    def rival(self) -> SimStoreWorker:
        """The worker of another process that would open the same directories."""
        machine = self.machine
        disk = CoreDisk(disk_of(CORE, 1, machine.disks), lambda: machine.shared, lambda: machine.disks)
        worker = self.drive.worker
        assert isinstance(worker, SimStoreWorker)
        return SimStoreWorker(worker.context, disk, opened=OpenedHere(), drive=lambda: None, wake=lambda: None)

    def _make_worker(self, context: WorkerContext) -> EmbeddedWorker:
        self.machine.adopted()  # a deleted topic is out of the way now
        disk = OrderMonitor(self.faulty)
        return SimStoreWorker(context, disk, opened=self._opened, drive=self.drive.drive, wake=self._hurry)

    def turn(self) -> None:
        """Let one of the threads do a job, or the clock thread what is due, and a little time pass."""
        worker = self.drive.worker
        threads = [thread for thread in worker.threads if thread.has_work] if isinstance(worker, SimStoreWorker) else []
        if threads:
            self.machine.random.choice(threads).run_next()
            self.drive.drive()
        else:
            self._step(self.machine.time.now_ns)
            self.machine.supervisor_disk.empty_deleted()
        self.machine.time.advance(_TURN_NS if threads else _IDLE_TURN_NS)

    def _drain(self) -> None:
        for _ in range(_TURNS_MAX):
            if self.drive.has_drained.is_set():
                return
            with self.drive.lock:
                self.drive.hand_on()
            self.turn()
        raise Violation("a store does not close")

    def die(self) -> None:
        """Let go of what the kernel takes back from a dead process; its disks are others already."""
        for worker in [*self._ended, self.drive.worker]:
            if isinstance(worker, SimStoreWorker):
                worker.forget_jobs()
        self.is_closed = self.drive.is_closing = True
        self.faulty.heal()
        self.faulty.crash_at(0)
        for worker in [*self._ended, self.drive.worker]:
            if worker is not None:
                worker.abandon()
        self.drive.worker = None
        self._ended.clear()
        if hasattr(self, "_steward"):
            self._steward.page.close()


class SimStoreExchange(StoreExchange):
    """An exchange whose waiting threads let the others go on."""

    def __init__(self, node: SimStoreNode) -> None:
        self._node = node
        self._turns = 0
        super().__init__(node.drive)

    def run(self, flow: Flow[T]) -> T:
        self._turns = 0
        return super().run(flow)

    def _sleep(self, bell: queue.SimpleQueue[None], deadline_ns: int) -> None:
        self._turns += 1
        if self._turns > _TURNS_MAX:
            raise Violation("a call of a store does not come to its end")
        self._node.turn()

    def call_at(self, due_at_ns: int, call: Callable[[], None]) -> None:
        """Do nothing: acknowledgements leave with the next call, or a flush."""


class SimStore(Store):
    """A store on simulated disks."""

    _node: SimStoreNode

    def _new_exchange(self) -> SimStoreExchange:
        return SimStoreExchange(self._node)
