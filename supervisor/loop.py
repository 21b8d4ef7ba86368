"""The supervisor's loop: waits for signals, ended children, requests and deadlines, and carries out what `decide` says.

Owner: one thread, the main one, of a process that has no other. Holds no policy: every decision is in `decide`.

A turn: wait, read what is there, look at the children when it is time, let `decide` act, publish the supervisor's own figures.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence

from ..shm.counters import CountersPage
from . import control
from .control import ControlServer
from .decide import (
    AnnounceReady,
    AnnounceStopping,
    Child,
    Event,
    Exited,
    Finish,
    Fork,
    Forked,
    ForkFailed,
    IntakeStopRequested,
    Observed,
    Report,
    Signal,
    StopRequested,
    Supervision,
)
from .exitcodes import ExitCode, describe_wait_status
from .figures import CHILD_ROW, SUPERVISOR_REGION, ChildFigure, region_of
from .log import log_event
from .node_storage import NodeStorage
from .notify import Notifier
from .process import IN_DISK_STATE, STOPPED_STATES, process_state
from .signals import SignalPipe
from .spawn import fork_child
from .spec import READY_STATES, STARTING_STATE, ChildContext, ChildSpec, Patience, Steward
from .storage import StorageSpec
from .wakeups import WakeupPipe


class Supervisor:
    """Runs `specs` until it is told to stop.

    Args:
        specs: children, with distinct indexes; child `index` writes region `index + 1` of `page`.
        page: created by the caller, who begins the supervisor's region and also unlinks the page.
        control_path: where the control socket is made.
        control_gid: group whose members may ask the steward too.
        on_ready: called once, when every child is ready or failed.
        release_in_child: closes, in a child, what the caller holds open and children must not.
        storage: the disk that the children share; None: each takes what it likes.
        steward: the node's own work in this loop, if there is any.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        page: CountersPage,
        patience: Patience,
        *,
        control_path: str,
        control_gid: int | None = None,
        notifier: Notifier,
        on_ready: Callable[[], None],
        release_in_child: Callable[[], None],
        storage: StorageSpec | None = None,
        steward: Steward | None = None,
    ) -> None:
        self._page = page
        self._steward = steward
        self._steward_due_ns: int | None = 0
        self._notifier = notifier
        self._on_ready = on_ready
        self._release_callers_in_child = release_in_child
        self._supervision = Supervision(specs, patience, time.monotonic_ns())
        self._look_due_ns = 0
        self._watchdog_due_ns = 0
        self._exit_code: ExitCode | None = None
        self._pidfds: dict[int, int] = {}
        self._own = page.writer(SUPERVISOR_REGION)
        self._rows = {spec.index: self._own.row(CHILD_ROW, spec.name) for spec in specs}
        self._regions = {spec.index: page.writer(region_of(spec.index)) for spec in specs}
        children = self._supervision.children
        self._storage = None if storage is None else NodeStorage(storage, children, page, self._own)
        self._started_unix_ns = dict.fromkeys(self._rows, 0)
        self._selector = selectors.DefaultSelector()
        self._signals = SignalPipe()
        self._wakeups = WakeupPipe()
        self._selector.register(self._signals, selectors.EVENT_READ, self._take_signals)
        self._selector.register(self._wakeups, selectors.EVENT_READ, self._take_wakeups)
        self._control = ControlServer(control_path, self._selector, self._take_request, control_gid)

    def run(self) -> ExitCode:
        """Supervise until every child has ended, or failed for good."""
        try:
            while self._exit_code is None:
                self._turn()
            return self._exit_code
        finally:
            self._kill_what_is_left()
            self._close()

    def _turn(self) -> None:
        for key, _ in self._selector.select(self._wait_seconds()):
            key.data()
        now_ns = time.monotonic_ns()
        if now_ns >= self._look_due_ns:
            self._look(now_ns)
        self._act(self._supervision.tick(time.monotonic_ns()))
        if self._storage is not None:
            self._storage.turn(self._supervision.children)
        if self._steward is not None and self._steward_due_ns is not None and now_ns >= self._steward_due_ns:
            self._steward_due_ns = self._steward.step(now_ns)
        if self._storage is not None:
            self._storage.follow_cap()
        self._publish()

    def _wait_seconds(self) -> float:
        due = [self._look_due_ns, self._supervision.next_deadline_ns(), self._steward_due_ns]
        if self._notifier.watchdog_interval_ns:
            due.append(self._watchdog_due_ns)
        if self._storage is not None:
            due.append(self._storage.next_deadline_ns())
        nearest = min(when for when in due if when is not None)
        return max(0, nearest - time.monotonic_ns()) / 1e9

    # --- what happens ----------------------------------------------------------------------------------------------------

    def _take_signals(self) -> None:
        for number in self._signals.drain():
            name = signal.Signals(number).name
            if number == signal.SIGHUP:
                self._reload()
            else:
                self._feed(StopRequested(name))

    def _reload(self) -> None:
        if self._steward is not None:
            self._steward_due_ns = 0
            self._steward.reload()

    def _ask(self, request: control.Ask, uid: int) -> control.Reply:
        if self._steward is None:
            return control.Refused(reason="this node takes no such requests")
        self._steward_due_ns = 0
        try:
            return control.Told(body=self._steward.answer(request.subject, request.body, uid))
        except ValueError as error:
            return control.Refused(reason=f"not understood: {error}")

    def _take_wakeups(self) -> None:
        self._wakeups.drain()
        self._look_due_ns = 0
        if self._storage is not None:
            self._storage.wake()

    def _take_request(self, request: control.Request, uid: int) -> control.Reply:
        if not isinstance(request, control.Ask) and not control.is_trusted(uid):
            return control.Refused(reason=f"user {uid} may not do that: it is for the node's own user")
        match request:
            case control.Ping():
                return control.Pong(pid=os.getpid())
            case control.Status():
                return self._status()
            case control.Drain():
                if not self._supervision.stopping:  # two who drain a node want the same; a second signal is impatience
                    self._feed(StopRequested("control drain"))
            case control.StopIntake():
                self._feed(IntakeStopRequested("control stop intake"))
            case control.Stop():
                self._feed(StopRequested("control stop", at_once=True))
            case control.Ask():
                return self._ask(request, uid)
        return control.Accepted()

    def _look(self, now_ns: int) -> None:
        supervision = self._supervision
        self._look_due_ns = now_ns + supervision.patience.observe_interval_ns
        supervision.begin_look(now_ns)
        self._reap()
        for child in supervision.children:
            if child.has_process:
                self._observe(child)

    def _observe(self, child: Child) -> None:
        seen = self._page.read_head(region_of(child.spec.index))
        try:
            state = process_state(child.pid) or ""
        except OSError:
            return  # out of descriptors: no evidence against it, and looked at again soon
        if seen.pid == child.pid:  # else it has not begun its region yet: what is there is its predecessor's
            stopped, in_disk = state in STOPPED_STATES, state == IN_DISK_STATE
            self._feed(Observed(child.spec.index, seen.state in READY_STATES, seen.heartbeat_ns, stopped, in_disk))

    def _reap(self) -> None:
        """Collect every ended child; also strangers, whom process 1 of a container inherits."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._reaped(pid, wait_status)

    def _reaped(self, pid: int, wait_status: int) -> None:
        for child in self._supervision.children:
            if child.pid == pid:
                pidfd = self._pidfds.pop(child.spec.index)
                self._selector.unregister(pidfd)
                os.close(pidfd)
                self._feed(Exited(child.spec.index, wait_status))
                return

    # --- what is done about it -------------------------------------------------------------------------------------------

    def _feed(self, event: Event) -> None:
        self._act(self._supervision.handle(event, time.monotonic_ns()))

    def _act(self, actions: Sequence[object]) -> None:
        for action in actions:
            match action:
                case Fork(index):
                    self._fork(self._supervision.child(index))
                case Signal(index, number):
                    self._signal(index, number)
                case Report(event, fields, level):
                    log_event(event, fields, level)
                case AnnounceReady():
                    self._announce_ready()
                case AnnounceStopping():
                    self._notifier.stopping()
                case Finish(exit_code):
                    self._exit_code = exit_code

    def _fork(self, child: Child) -> None:
        spec = child.spec
        try:
            pid = fork_child(spec.name, spec.cpu, self._release_in_child, lambda: self._live(child))
        except OSError as error:
            self._feed(ForkFailed(spec.index, str(error.strerror)))
            return
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            # It could not be watched.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            self._feed(ForkFailed(spec.index, str(error.strerror)))
            return
        self._started_unix_ns[spec.index] = time.time_ns()
        self._pidfds[spec.index] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, self._reap)
        self._feed(Forked(spec.index, pid))

    def _live(self, child: Child) -> int:
        """Run in the child: begin its region of the page, then call what it is there for."""
        region = self._regions[child.spec.index]
        region.begin(os.getpid(), time.time_ns())
        region.set_state(STARTING_STATE)
        region.heartbeat(time.monotonic_ns())
        context = ChildContext(
            index=child.spec.index,
            incarnation=child.restarts,
            region=region,
            page=self._page,
            wakeup_fd=self._wakeups.writer,
        )
        return child.spec.run(context)

    def _release_in_child(self) -> None:
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._selector.close()
        self._control.close_in_child()
        self._signals.close_in_child()
        self._wakeups.close_in_child()
        self._release_callers_in_child()

    def _signal(self, index: int, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and will be reaped in a moment
            signal.pidfd_send_signal(self._pidfds[index], number)

    def _announce_ready(self) -> None:
        failed = [child.spec.name for child in self._supervision.children if child.state.name == "FAILED"]
        level = logging.WARNING if failed else logging.INFO
        log_event("node.ready", {"state": self._supervision.state.name, "failed": ",".join(failed) or None}, level)
        self._notifier.ready(self._supervision.state.name.lower())
        self._on_ready()

    # --- what others see -------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        now_ns = time.monotonic_ns()
        for child in self._supervision.children:
            self._publish_child(child)
        self._own.set_state(int(self._supervision.state))
        self._own.heartbeat(now_ns)
        if self._notifier.watchdog_interval_ns and now_ns >= self._watchdog_due_ns:
            self._watchdog_due_ns = now_ns + self._notifier.watchdog_interval_ns
            self._notifier.watchdog()

    def _publish_child(self, child: Child) -> None:
        row = self._rows[child.spec.index]
        row.set(ChildFigure.PID, child.pid)
        row.set(ChildFigure.STATE, child.state)
        row.set(ChildFigure.RESTARTS, child.restarts)
        row.set(ChildFigure.STARTED_UNIX_NS, self._started_unix_ns[child.spec.index] if child.has_process else 0)
        row.set(ChildFigure.LAST_EXIT, 0 if child.last_wait_status is None else child.last_wait_status + 1)
        row.set(ChildFigure.CPU, 0 if child.spec.cpu is None else child.spec.cpu + 1)

    def _status(self) -> control.NodeStatus:
        children = [
            control.ChildStatus(
                name=child.spec.name,
                index=child.spec.index,
                state=child.state.name.lower(),
                pid=child.pid,
                restarts=child.restarts,
                cpu=child.spec.cpu,
                last_exit=None if child.last_wait_status is None else describe_wait_status(child.last_wait_status),
            )
            for child in self._supervision.children
        ]
        return control.NodeStatus(pid=os.getpid(), state=self._supervision.state.name.lower(), children=children)

    def _kill_what_is_left(self) -> None:
        """Kill children that are left if an error of ours ended the loop: none may go on unwatched while the node is taken down."""
        for index, pidfd in self._pidfds.items():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(self._supervision.child(index).pid, 0)

    def _close(self) -> None:
        self._control.close()
        self._signals.close()
        for pidfd in self._pidfds.values():
            os.close(pidfd)
        self._pidfds.clear()
        self._wakeups.close()
        self._selector.close()
