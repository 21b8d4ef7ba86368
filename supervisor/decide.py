"""Decides what to do about the children: a pure state machine over events and a clock that is passed in.

Owner: the supervisor's loop, which carries out the actions and reports back what came of them. Nothing here forks, signals,
reads a clock or logs, so the whole policy is tested without a process.

Invariants:
- A child changes its state only through `state.advance`.
- A process is signalled only while its child's state has one.
- After `Finish` nothing more is decided.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable, Sequence

import msgspec

from .exitcodes import ChildExit, ExitCode, describe_wait_status
from .figures import NodeState
from .restart import RestartHistory
from .spec import ChildSpec, Patience
from .state import FINAL, HAS_PROCESS, ChildEvent, ChildState, advance

STOP_INTAKE_SIGNAL = signal.SIGUSR1
"""Sent to ready children only: they have a handler for it, and children that are starting would die of it."""

MISSED_LOOKS_MAX = 4
"""Looks at the heartbeats that may fail to happen before the supervisor suspects itself: stopped by job control, a suspended
virtual machine. Old heartbeats are then no evidence against the children."""

# --- what happened -------------------------------------------------------------------------------------------------------


class Forked(msgspec.Struct, frozen=True):
    """Event: a child's process was started."""

    index: int
    pid: int


class ForkFailed(msgspec.Struct, frozen=True):
    """Event: a child's process could not be started."""

    index: int
    reason: str


class Observed(msgspec.Struct, frozen=True):
    """One look at a child's region and at its process."""

    index: int
    ready: bool
    heartbeat_ns: int
    stopped: bool
    """Whether SIGSTOP or a debugger has stopped it: an operator's doing, never a reason to kill."""
    in_disk: bool = False
    """Whether its main thread waits in the kernel for a disk: no signal reaches it before the disk answers."""


class Exited(msgspec.Struct, frozen=True):
    """Event: a child's process has ended, with its status as `waitpid` returns it."""

    index: int
    wait_status: int


class StopRequested(msgspec.Struct, frozen=True):
    """Drain the children and stop; a second request, or `at_once`, kills them."""

    reason: str
    at_once: bool = False


class IntakeStopRequested(msgspec.Struct, frozen=True):
    """Ingest nothing more, on any child, until the node ends."""

    reason: str


Event = Forked | ForkFailed | Observed | Exited | StopRequested | IntakeStopRequested

# --- what to do ----------------------------------------------------------------------------------------------------------


class Fork(msgspec.Struct, frozen=True):
    """Fork this child, and answer with `Forked` or `ForkFailed`."""

    index: int


class Signal(msgspec.Struct, frozen=True):
    """Action: send a signal to the process of a child."""

    index: int
    signal_number: int


class Report(msgspec.Struct, frozen=True):
    """One log line."""

    event: str
    fields: dict[str, object]
    level: int = logging.INFO


class AnnounceReady(msgspec.Struct, frozen=True):
    """All children are ready or failed, for the first time."""


class AnnounceStopping(msgspec.Struct, frozen=True):
    """Action: tell the service manager that the node is stopping."""


class Finish(msgspec.Struct, frozen=True):
    """Action: end the supervisor with this exit code."""

    exit_code: ExitCode


Action = Fork | Signal | Report | AnnounceReady | AnnounceStopping | Finish


class Child:
    """The state of one child in the supervisor. Mutated by `Supervision` only; others read."""

    __slots__ = (
        "due_ns",
        "excused_ns",
        "forked_ns",
        "history",
        "kill_due_ns",
        "last_wait_status",
        "pid",
        "restarts",
        "spec",
        "state",
        "stopped",
    )

    def __init__(self, spec: ChildSpec, patience: Patience, now_ns: int) -> None:
        self.spec = spec
        self.state = ChildState.BACKOFF
        self.pid = 0
        self.restarts = 0
        self.due_ns = now_ns
        self.forked_ns = 0
        self.excused_ns = 0
        self.kill_due_ns: int | None = None
        self.last_wait_status: int | None = None
        self.stopped = False
        self.history = RestartHistory(patience.restart)

    @property
    def has_process(self) -> bool:
        """Whether the child has a process in its present state."""
        return self.state in HAS_PROCESS


class Supervision:
    """All children of a node, and the node's own state."""

    def __init__(self, specs: Sequence[ChildSpec], patience: Patience, now_ns: int) -> None:
        self.patience = patience
        self.children = [Child(spec, patience, now_ns) for spec in specs]
        self.state = NodeState.STARTING
        self.exit_code = ExitCode.CLEAN
        self.intake_is_stopped = False
        self._by_index = {child.spec.index: child for child in self.children}
        self._drain_deadline_ns: int | None = None
        self._looked_ns = now_ns

    def child(self, index: int) -> Child:
        """Return the child with this index."""
        return self._by_index[index]

    @property
    def stopping(self) -> bool:
        """Whether the node is draining its children, killing them, or stopped."""
        return self.state in (NodeState.DRAINING, NodeState.KILLING, NodeState.STOPPED)

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event; the actions are to be carried out in order."""
        match event:
            case Forked(index, pid):
                actions = self._forked(self.child(index), pid, now_ns)
            case ForkFailed(index, reason):
                actions = self._fork_failed(self.child(index), reason, now_ns)
            case Observed():
                actions = self._observed(self.child(event.index), event, now_ns)
            case Exited(index, wait_status):
                actions = self._exited(self.child(index), wait_status, now_ns)
            case StopRequested(reason, at_once):
                actions = self._stop_requested(reason, at_once, now_ns)
            case IntakeStopRequested(reason):
                actions = self._intake_stop_requested(reason)
        return actions + self._advance_node()

    def tick(self, now_ns: int) -> list[Action]:
        """Do what has become due: starts, kills."""
        actions: list[Action] = []
        for child in self.children:
            if child.state is ChildState.BACKOFF and child.due_ns <= now_ns:
                actions.append(Fork(child.spec.index))
            elif child.kill_due_ns is not None and child.kill_due_ns <= now_ns:
                child.kill_due_ns = None
                actions += [
                    _report(child, "kill", logging.ERROR, reason="did not abort"),
                    _signal(child, signal.SIGKILL),
                ]
        if self._drain_deadline_ns is not None and self._drain_deadline_ns <= now_ns:
            actions += self._drain_timed_out()
        return actions

    def begin_look(self, now_ns: int) -> None:
        """Say that all children are about to be observed: notices looks that should have been and were not."""
        if now_ns - self._looked_ns > MISSED_LOOKS_MAX * self.patience.observe_interval_ns:
            for child in self.children:
                child.excused_ns = now_ns
        self._looked_ns = now_ns

    def next_deadline_ns(self) -> int | None:
        """When `tick` has something to do, if nothing happens before."""
        due = [child.due_ns for child in self.children if child.state is ChildState.BACKOFF]
        due += [child.kill_due_ns for child in self.children if child.kill_due_ns is not None]
        if self._drain_deadline_ns is not None:
            due.append(self._drain_deadline_ns)
        return min(due, default=None)

    # --- one child -------------------------------------------------------------------------------------------------------

    def _forked(self, child: Child, pid: int, now_ns: int) -> list[Action]:
        child.state = advance(child.state, ChildEvent.FORKED)
        child.pid, child.forked_ns, child.stopped = pid, now_ns, False
        return [_report(child, "start", restarts=child.restarts)]

    def _fork_failed(self, child: Child, reason: str, now_ns: int) -> list[Action]:
        failure = _report(child, "fork_failed", logging.ERROR, reason=reason)
        return [failure, *self._restart_or_give_up(child, 0, now_ns)]

    def _observed(self, child: Child, seen: Observed, now_ns: int) -> list[Action]:
        if child.state is ChildState.STARTING and seen.ready:
            child.state = advance(child.state, ChildEvent.BECAME_READY)
            child.excused_ns = now_ns
            ready = _report(child, "ready", after_ms=(now_ns - child.forked_ns) // 1_000_000)
            return [ready, *([_signal(child, STOP_INTAKE_SIGNAL)] if self.intake_is_stopped else [])]
        actions = self._note_stopped(child, seen.stopped, now_ns)
        age_ns = now_ns - max(seen.heartbeat_ns, child.excused_ns)
        if child.state is ChildState.READY and not seen.stopped and age_ns > self.patience.heartbeat_timeout_ns:
            if seen.in_disk:
                child.excused_ns = now_ns  # when the disk answers it has the whole timeout before it
                age_ms = (now_ns - seen.heartbeat_ns) // 1_000_000
                actions.append(_report(child, "in_disk", logging.WARNING, heartbeat_age_ms=age_ms))
            else:
                actions += self._heartbeat_lost(child, age_ns, now_ns)
        return actions

    def _note_stopped(self, child: Child, stopped: bool, now_ns: int) -> list[Action]:
        if stopped:
            child.excused_ns = now_ns  # when it goes on it has the whole timeout before it
        if stopped == child.stopped:
            return []
        child.stopped = stopped
        return [_report(child, "suspended" if stopped else "resumed", logging.WARNING)]

    def _heartbeat_lost(self, child: Child, age_ns: int, now_ns: int) -> list[Action]:
        child.state = advance(child.state, ChildEvent.HEARTBEAT_LOST)
        child.kill_due_ns = now_ns + self.patience.abort_grace_ns
        report = _report(child, "hung", logging.ERROR, heartbeat_age_ms=age_ns // 1_000_000)
        return [report, _signal(child, signal.SIGABRT)]

    def _exited(self, child: Child, wait_status: int, now_ns: int) -> list[Action]:
        lived_ns = now_ns - child.forked_ns
        report = self._exit_report(child, wait_status, lived_ns)
        draining = child.state is ChildState.DRAINING
        child.pid, child.last_wait_status, child.kill_due_ns, child.stopped = 0, wait_status, None, False
        if not draining:
            return [report, *self._restart_or_give_up(child, lived_ns, now_ns)]
        child.state = advance(child.state, ChildEvent.ENDED)
        if self.state is NodeState.DRAINING and not _ended_well(wait_status):
            self.exit_code = ExitCode.UNEXPECTED
        return [report]

    def _exit_report(self, child: Child, wait_status: int, lived_ns: int) -> Report:
        fields: dict[str, object] = {"status": describe_wait_status(wait_status), "lived_ms": lived_ns // 1_000_000}
        expected = child.state is ChildState.DRAINING and (_ended_well(wait_status) or self.state is NodeState.KILLING)
        if not expected and child.state is not ChildState.HUNG and _killed_by(wait_status, signal.SIGKILL):
            fields["hint"] = "killed from outside: out of memory?"
        return _report(child, "exit", logging.INFO if expected else logging.WARNING, **fields)

    def _restart_or_give_up(self, child: Child, lived_ns: int, now_ns: int) -> list[Action]:
        delay_ns = child.history.died(now_ns, lived_ns)
        if delay_ns is None:
            child.state = advance(child.state, ChildEvent.GAVE_UP)
            window_s = self.patience.restart.intensity_window_ns // 1_000_000_000
            deaths = self.patience.restart.intensity_count + 1
            return [_report(child, "failed", logging.ERROR, deaths=deaths, window_s=window_s)]
        child.state = advance(child.state, ChildEvent.DIED)
        child.restarts += 1
        child.due_ns = now_ns + delay_ns
        return [_report(child, "backoff", delay_ms=delay_ns // 1_000_000, restarts=child.restarts)]

    # --- the node --------------------------------------------------------------------------------------------------------

    def _stop_requested(self, reason: str, at_once: bool, now_ns: int) -> list[Action]:
        if at_once or self.stopping:
            return self._force(reason)
        self.state = NodeState.DRAINING
        self._drain_deadline_ns = now_ns + self.patience.drain_timeout_ns
        actions: list[Action] = [AnnounceStopping(), Report("node.drain", {"reason": reason})]
        for child in self._told_to_drain():
            # A child that an operator has stopped cannot drain: it has to go on first.
            actions += [_signal(child, signal.SIGTERM), _signal(child, signal.SIGCONT)]
        return actions

    def _intake_stop_requested(self, reason: str) -> list[Action]:
        if self.intake_is_stopped or self.stopping:
            return []
        self.intake_is_stopped = True
        ready = [child for child in self.children if child.state is ChildState.READY]
        return [
            Report("node.intake_stop", {"reason": reason}),
            *(_signal(child, STOP_INTAKE_SIGNAL) for child in ready),
        ]

    def _force(self, reason: str) -> list[Action]:
        if self.state is NodeState.KILLING:
            return []
        announcement: list[Action] = [] if self.stopping else [AnnounceStopping()]
        self.exit_code = ExitCode.FORCED
        return [*announcement, Report("node.kill", {"reason": reason}, logging.WARNING), *self._kill_all()]

    def _drain_timed_out(self) -> list[Action]:
        self.exit_code = ExitCode.UNEXPECTED
        names = ",".join(child.spec.name for child in self.children if child.has_process)
        return [Report("node.drain_timeout", {"waiting_for": names}, logging.ERROR), *self._kill_all()]

    def _kill_all(self) -> list[Action]:
        self.state = NodeState.KILLING
        self._drain_deadline_ns = None
        self._told_to_drain()
        return [_signal(child, signal.SIGKILL) for child in self.children if child.has_process]

    def _told_to_drain(self) -> list[Child]:
        """Move every child towards its end; returns those that have a process to tell."""
        for child in self.children:
            if child.state is not ChildState.DRAINING and child.state not in FINAL:
                child.state = advance(child.state, ChildEvent.DRAIN)
        return [child for child in self.children if child.has_process]

    def _advance_node(self) -> list[Action]:
        """Derive the node's state from its children's."""
        states = [child.state for child in self.children]
        if self.state is NodeState.STOPPED:
            return []
        if self.stopping:
            return self._finish(self.exit_code) if _all_in(states, FINAL) else []
        if _all_in(states, [ChildState.FAILED]):
            return [
                AnnounceStopping(),
                Report("node.failed", {"reason": "every worker died too often"}, logging.ERROR),
                *self._finish(ExitCode.ALL_FAILED),
            ]
        if self.state is NodeState.STARTING and not _all_in(states, [ChildState.READY, ChildState.FAILED]):
            return []
        first_time = self.state is NodeState.STARTING
        self.state = NodeState.READY if _all_in(states, [ChildState.READY]) else NodeState.DEGRADED
        return [AnnounceReady()] if first_time else []

    def _finish(self, exit_code: ExitCode) -> list[Action]:
        self.state = NodeState.STOPPED
        return [Finish(exit_code)]


def _all_in(states: Iterable[ChildState], wanted: Iterable[ChildState]) -> bool:
    return set(states) <= set(wanted)


def _killed_by(wait_status: int, signal_number: int) -> bool:
    return os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal_number


def _ended_well(wait_status: int) -> bool:
    """Whether the child drained, or was told to stop before it could listen: then it had ingested nothing."""
    drained = os.WIFEXITED(wait_status) and os.WEXITSTATUS(wait_status) == ChildExit.DRAINED
    return drained or _killed_by(wait_status, signal.SIGTERM)


def _signal(child: Child, signal_number: int) -> Signal:
    return Signal(child.spec.index, signal_number)


def _report(child: Child, event: str, level: int = logging.INFO, **fields: object) -> Report:
    named: dict[str, object] = {"worker": child.spec.name, "pid": child.pid or None}
    return Report(f"worker.{event}", {**named, **fields}, level)
