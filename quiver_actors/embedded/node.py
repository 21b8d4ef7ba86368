"""The life of a store: opened, recovered where its worker fails, closed.

    open --> serving --an engine failed, or a turn was broken off--> recovering --> serving ... --close--> closed

Owner of the directory's lock and of the clock thread, which does what is due by the clock, closes workers whose life is over and begins
the next one, keeps the list of topics and the size cap.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

import msgspec

from quiver_actors.base.config.reading import Resolved
from quiver_actors.base.core_dirs import find_core_dirs
from quiver_actors.base.locks import new_lock
from quiver_actors.base.protocol.topic_requests import Request, TopicReply
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client.exchange import Flow, deadline_after
from quiver_actors.embedded.drive import FOREVER_NS, Drive
from quiver_actors.embedded.steward import CORE, Steward
from quiver_actors.embedded.worker import EmbeddedWorker, OpenedHere
from quiver_actors.errors import DiskError, QuiverError, WorkerUnavailable
from quiver_actors.node.core_generation import begin_with
from quiver_actors.node.node_dirs import bring_data_version_up_to_date, hold_data_dir, make_data_dir
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.shm.counters import RegionSnapshot
from quiver_actors.store.disk.posix import PosixDisk, PosixLock
from quiver_actors.supervisor.log import log_event
from quiver_actors.supervisor.restart import RestartHistory
from quiver_actors.supervisor.spec import RestartPolicy

if TYPE_CHECKING:
    from quiver_actors.store.status.node_status import NodeStatus

_APPLYING_LOOK_NS = 5 * MILLISECOND_NS
_DRAIN_SECONDS = 60.0
"""How long closing waits until everything is sealed; what is not is recovered by the next open."""
_CLOSE_SECONDS = _DRAIN_SECONDS + 30.0
"""How long who closes waits for the clock thread, which has threads to end as well."""
_DRAIN_LOOK_SECONDS = 0.005
_POLICY = RestartPolicy()


class StoreDisk(PosixDisk):
    """The disk of a store, which can let go of its locks in a forked child."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._locks: weakref.WeakSet[PosixLock] = weakref.WeakSet()
        _disks.add(self)

    def lock(self, path: str, wait_seconds: float = 0.0) -> PosixLock | None:
        """Take a lock like the base class, and remember it."""
        taken = super().lock(path, wait_seconds)
        if taken is not None:
            self._locks.add(taken)
        return taken

    def let_go_in_child(self) -> None:
        """Close the child's copies of all locks: the parent's hold on."""
        for lock in list(self._locks):
            lock.release()


_disks: weakref.WeakSet[StoreDisk] = weakref.WeakSet()
"""Disks of all stores of this process, those that are being opened too."""


def let_go_of_disks_in_child() -> None:
    """Close a forked child's copies of the locks of all stores."""
    for disk in list(_disks):
        disk.let_go_in_child()


class EmbeddedNode:
    """One open store.

    Closing is the clock thread's work: an interrupt of who waits for it changes nothing.
    """

    has_let_go = False
    """Whether the directory was given back."""

    def __init__(self, resolved: Resolved) -> None:
        """Lock, recover and serve the directory that the settings name. Blocking.

        Args:
            resolved: settings with an absolute `data_dir` and one core.

        Raises:
            AlreadyRunning: a node or another store has it open; names the process.
            ConfigError, UnsupportedVersion, FormatError, DiskError, StorageFull: it cannot be opened.
        """
        self.pid = os.getpid()
        self.drive = Drive(self._gave_up)
        self.data_dir = make_data_dir(resolved.settings.data_dir)
        self.is_closed = False
        self._settings = resolved.settings
        self._opened = OpenedHere()
        self._ended: list[EmbeddedWorker] = []
        """Workers whose life is over and whose files are still open."""
        self._is_abandoned = False
        self._history = RestartHistory(_POLICY)
        self._started_ns = self._restart_at_ns = 0
        with contextlib.ExitStack() as held:
            self._life_lock = held.enter_context(hold_data_dir(self.data_dir))
            bring_data_version_up_to_date(self.data_dir)
            self._disk = held.enter_context(contextlib.closing(StoreDisk(self.data_dir)))
            self._generation = begin_with(self._disk, 1, time.time_ns(), is_new=not find_core_dirs(self.data_dir))
            self._steward = Steward(self._disk, self.data_dir, resolved, self._opened, self._applied)
            self._start_worker()
            self._held = held.pop_all()
        self._clock = threading.Thread(target=self._tick, name="quiver-clock", daemon=True)
        self._clock.start()

    # --- workers ---------------------------------------------------------------------------------------------------------

    def _start_worker(self) -> None:
        """Recover the directory. Without the lock: until it is done nobody else sees the worker. Raises QuiverError."""
        context = WorkerContext(
            core=CORE,
            cores=1,
            settings=self._settings,
            data_dir=self.data_dir,
            run_dir=self.data_dir,
            region=self._steward.begin_worker(),
            page=self._steward.page,
            wakeup_fd=-1,
            generation=self._generation,
        )
        drive, worker = self.drive, self._make_worker(context)
        try:
            worker.open()
            worker.become_ready()
            self._steward.worker_is_ready()
        except OSError as error:
            worker.abandon()
            raise DiskError(
                "open", self.data_dir, error.errno or 0, "close files, or raise the limit (ulimit -n)"
            ) from error
        except BaseException:
            worker.abandon()
            raise
        self._started_ns = time.monotonic_ns()
        drive.worker = worker

    def _make_worker(self, context: WorkerContext) -> EmbeddedWorker:
        return EmbeddedWorker(context, self._disk, opened=self._opened, drive=self.drive.drive, wake=self._hurry)

    def _hurry(self) -> None:
        self._steward.hurry()
        self.drive.wake()

    def _gave_up(self, worker: EmbeddedWorker, why: str, at_once: bool) -> None:
        self._ended.append(worker)
        log_event("store.recovers", {"data_dir": self.data_dir, "reason": why}, logging.ERROR)
        now_ns = self._restart_at_ns = time.monotonic_ns()
        if not at_once:
            wait_ns = self._history.died(now_ns, now_ns - self._started_ns)
            self._restart_at_ns += _POLICY.backoff_max_ns if wait_ns is None else wait_ns
        self._steward.worker_has_ended()
        self.drive.wake()

    def _bury(self) -> None:
        """Close what ended workers have left open, without the lock: their threads may want it."""
        while self._ended:
            worker = self._ended[0]
            try:
                worker.abandon()
            except Exception as error:  # noqa: BLE001 - it was broken off anywhere; recovery decides from the files
                log_event("store.not_closed_well", {"reason": repr(error)}, logging.WARNING)
            with self.drive.lock:
                self._ended.remove(worker)
                self.drive.hand_over(worker)

    # --- the clock thread ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        while not self.is_closed:
            try:
                due_ns = self._step(time.monotonic_ns())
            except BaseException as error:  # noqa: BLE001 - this thread goes on, whatever a turn has raised
                log_event("store.clock", {"reason": repr(error)}, logging.ERROR)
                due_ns = time.monotonic_ns() + SECOND_NS
            if not self.is_closed:
                self.drive.alarm.sleep_until(due_ns)

    def _step(self, now_ns: int) -> int:
        """Do what is due, and return when to look again."""
        if self._is_abandoned:
            self._close()
            return FOREVER_NS
        return self._do_what_is_due(now_ns)

    def _do_what_is_due(self, now_ns: int) -> int:
        drive = self.drive
        drive.drive()
        self._bury()
        if drive.worker is None:
            if drive.is_closing:
                drive.has_drained.set()
                return FOREVER_NS
            return self._try_again(now_ns)
        steward_due_ns = self._steward.step(now_ns)
        with drive.lock:
            drive.hand_on()
            return min(steward_due_ns, drive.worker.loop.next_turn_ns() if drive.worker is not None else 0)

    def _try_again(self, now_ns: int) -> int:
        if now_ns < self._restart_at_ns:
            return self._restart_at_ns
        try:
            self._start_worker()
        except QuiverError as error:
            log_event("store.cannot_recover", {"reason": str(error)}, logging.ERROR)
            self._restart_at_ns = time.monotonic_ns() + SECOND_NS
        return self._restart_at_ns if self.drive.worker is None else 0

    def figures(self) -> list[RegionSnapshot]:
        """The figures of the store, as a node's counters page has them. Without the lock."""
        self._steward.step(time.monotonic_ns())
        self.drive.drive()
        return self._steward.page.read()

    def status(self) -> NodeStatus:
        """How the store is, as `quiver status --json` says it of a node. Without the lock."""
        from quiver_actors.store.status.node_status import NodeStatus
        from quiver_actors.store.status.status_view import status_from

        record = {"data_dir": self.data_dir, "topics": self._steward.topics()}
        return NodeStatus.of(status_from(self.data_dir, record, self.figures()))

    # --- topics --------------------------------------------------------------------------------------------------------------

    def change_topics(self, request: Request) -> TopicReply:
        """Carry out a request about topics, durably. Without the lock. Raises QuiverError: it is refused."""
        reply = self._steward.change_topics(request)
        self.drive.wake()
        return reply

    def applying(self, version: int, gone: str, timeout_seconds: float) -> Flow[None]:
        """Wait until the worker has that version of the list of topics, and the directory of a deleted topic is out of the way.

        Raises:
            WorkerUnavailable: not in time; it will.
        """
        deadline_ns = deadline_after(timeout_seconds)
        while True:
            if self.drive.worker is not None:
                self.drive.worker.look_at_topics()
            applied = self._applied()
            if applied is not None and applied >= version and self._steward.is_put_aside(gone):
                return
            now_ns = time.monotonic_ns()
            if now_ns >= deadline_ns:
                raise WorkerUnavailable(
                    f"the change is durable, but was not taken up after {timeout_seconds:.0f} s: the disk may be slow or full"
                )
            self.drive.wake()
            yield min(deadline_ns, now_ns + _APPLYING_LOOK_NS)

    def _applied(self) -> int | None:
        worker = self.drive.worker
        return worker.applied_version if worker is not None else None

    # --- the end -------------------------------------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        """Whether the store is being closed, or was closed."""
        return self._is_abandoned or self.drive.is_closing

    def close(self) -> None:
        """Seal what is open, make all progress durable, and give the directory back. Idempotent.

        What could not be done, as the disk fails, is recovered by the next open. Where an interrupt comes, the store is closed all the
        same, a little later; calling this again waits for that.
        """
        if os.getpid() != self.pid:
            return
        if threading.current_thread() is self._clock:
            self._close()
            return
        self.abandon()
        self._clock.join(_CLOSE_SECONDS)

    def _close(self) -> None:
        drive = self.drive
        try:
            with drive.lock:
                drive.is_closing = True
                if drive.worker is not None:
                    drive.worker.loop.request_drain()
                    drive.turn()
                    drive.hand_on()
                else:
                    drive.has_drained.set()
            self._drain()
        finally:
            self._end()

    def _drain(self) -> None:
        deadline, drive = time.monotonic() + _DRAIN_SECONDS, self.drive
        while not drive.has_drained.is_set() and time.monotonic() < deadline:
            self._do_what_is_due(time.monotonic_ns())
            with drive.lock:
                drive.hand_on()
            drive.has_drained.wait(_DRAIN_LOOK_SECONDS)

    def _end(self) -> None:
        self.is_closed = True
        with self.drive.lock:
            if self.drive.worker is not None:
                self._ended.append(self.drive.worker)
                self.drive.worker = None
        self._bury()
        self._held.close()
        self.has_let_go = True

    def abandon(self) -> None:
        """Have the clock thread close the store: nobody uses it any more. May be called while an object is collected."""
        if os.getpid() == self.pid:
            self._is_abandoned = True
            self.drive.wake()

    def let_go_in_child(self) -> None:
        """Drop, in a forked child, what must be the parent's alone."""
        self.is_closed = self.has_let_go = True
        self.drive.lock = new_lock()
        self.drive.is_closing = True
        self._life_lock.release()


def with_one_core(resolved: Resolved, data_dir: str) -> Resolved:
    """Return the settings for a store in that directory."""
    settings = msgspec.structs.replace(resolved.settings, data_dir=data_dir, cores=1)
    return msgspec.structs.replace(resolved, settings=settings)
