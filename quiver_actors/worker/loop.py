"""A worker's event loop: everything that happens in its one loop thread, turn by turn.

A turn: finish the jobs that the threads have done (acknowledgements leave at once), read what has arrived, let every engine that was
asked for something write, start jobs and answer, and send. All frames of a read are handled before anything is written or
sent, so the cost of a turn is shared by all messages that arrived during the one before.

Guarantees: nothing here blocks but `epoll`; a connection that misbehaves, does not read or goes away costs its own bundles and claims
only; after `request_drain` the loop ends when every engine is sealed and every answer is sent.
"""

from __future__ import annotations

import enum
import logging
import os
import select
import socket
from collections.abc import Mapping, Sequence
from time import monotonic_ns

from quiver_actors.engine import EngineState
from quiver_actors.errors import Draining, ProtocolError, QuiverError, WorkerUnavailable
from quiver_actors.metrics.figures import WorkerState
from quiver_actors.protocol.framing import decode_client_message
from quiver_actors.protocol.messages import Push
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.units import MIB, SECOND_NS
from quiver_actors.worker.access import Access
from quiver_actors.worker.adoption import AdoptedCore, Adoption
from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.connection import Connection
from quiver_actors.worker.figures import PUBLISH_INTERVAL_NS, FigurePublisher, LoopFigures
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.listener import Listener
from quiver_actors.worker.load import Load
from quiver_actors.worker.peer import peer_of
from quiver_actors.worker.requests import Requests
from quiver_actors.worker.session import GREETING_BYTES_MAX, EndSession, Session, SessionState
from quiver_actors.worker.storage import StorageShare
from quiver_actors.worker.threads import JobThread
from quiver_actors.worker.topics import Topics

SESSIONS_MAX = 1024
HELLO_PATIENCE_NS = 10 * SECOND_NS
"""A client that has not introduced itself by then is cut off."""
TURN_PUSH_BYTES = 8 * MIB
"""After this much from one connection the others have their turn."""
FAILING_PATIENCE_NS = 10 * SECOND_NS
"""How long a worker with a failed engine waits for the last commits of its healthy ones."""
FAREWELL_PATIENCE_NS = 2 * SECOND_NS
"""How long the last answers may take to leave."""

_ACCEPTS_PER_TURN = 64
_SENT_BEFORE_COMMIT_MAX = 4
_EVENTS_PER_TURN = 256
_PUBLISH_EARLY_NS = PUBLISH_INTERVAL_NS // 20
"""A turn that comes so little too early publishes: an idle worker wakes up once for several things."""
_SWEEP_INTERVAL_NS = SECOND_NS
_THREAD_STOP_SECONDS = 5.0
_NS_PER_SECOND = 1e9
_OPEN = SessionState.OPEN
"""As the names of phases below: CPython 3.11 takes longer to look up a member of an enum than to call a function."""


class Phase(enum.Enum):
    SERVING = "serving"
    DRAINING = "draining"
    """Told to stop: takes nothing more, seals everything."""
    FAILING = "failing"
    """An engine has failed: the others commit what they have taken, then the supervisor starts a new worker."""
    LEAVING = "leaving"
    """All work is done, the last answers leave."""


PHASE_TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    Phase.SERVING: frozenset([Phase.DRAINING, Phase.FAILING]),
    Phase.DRAINING: frozenset([Phase.LEAVING]),
    Phase.FAILING: frozenset([Phase.LEAVING]),
    Phase.LEAVING: frozenset(),
}


_SERVING, _LEAVING = Phase.SERVING, Phase.LEAVING


class WorkerLoop:
    """See the module. Takes over the listener, the threads and `wake_fd`; engines and figures stay the caller's."""

    def __init__(
        self,
        *,
        listener: Listener,
        access: Access,
        topics: Topics,
        adoption: Adoption,
        agenda: Agenda,
        requests: Requests,
        threads: Sequence[JobThread],
        wake_fd: int,
        figures: FigurePublisher,
        journal: Journal,
        share: StorageShare,
        load: Load,
    ) -> None:
        """
        Args:
            wake_fd: eventfd that the threads raise.
        """
        self._listener = listener
        self._access = access
        self._topics = topics
        self._adoption = self._hosts = adoption
        self._foreign: dict[Session, AdoptedCore] = {}
        """Connections to an adopted core."""
        self._agenda = agenda
        self._turned: list[EngineHost] = []
        """Of this turn."""
        self._full: set[EngineHost] = set()
        self._requests = requests
        self._threads = threads
        self._wake_fd = wake_fd
        self._figures = figures
        self._journal = journal
        self._share = share
        self._load = load
        self._phase = Phase.SERVING
        self._phase_since_ns = 0
        self._drain_is_requested = False
        self._intake_stop_is_requested = False
        self._intake_is_stopped = False
        self._sessions: dict[int, Session] = {}
        self._unsent: set[Session] = set()
        """Have answers that were not tried to be sent."""
        self._paused: set[Session] = set()
        """Are not read from until they must no longer pause."""
        self._unfinished: set[Session] = set()
        """May have whole frames in their buffer."""
        self._publish_at_ns = 0
        self._sweep_at_ns = 0
        self._is_accepting = False
        self._turns = 0
        self._gap_ns_max = 0
        self._gap_ns_max_before = 0
        self.threads_stopped = False
        """After `run`: no job is running any more."""
        self._epoll = select.epoll()
        # Edge-triggered: each write wakes the loop once, and nobody has to read the counter back.
        self._epoll.register(wake_fd, select.EPOLLIN | select.EPOLLET)
        self._set_accepting(True)

    # --- from outside --------------------------------------------------------------------------------------------------

    def request_drain(self) -> None:
        """Stop in good order. May be called by a signal handler or another thread."""
        self._drain_is_requested = True
        os.eventfd_write(self._wake_fd, 1)

    def request_intake_stop(self) -> None:
        """Take no more pushes, go on with everything else. May be called by a signal handler or another thread."""
        self._intake_stop_is_requested = True
        os.eventfd_write(self._wake_fd, 1)

    def run(self) -> ChildExit:
        """Serve until told to drain or until an engine has failed."""
        try:
            while self.step():
                continue
            return self.outcome
        finally:
            self.close()

    def step(self, *, waits: bool = True) -> bool:
        """One turn, at once or when there is something to do; False: the loop has ended."""
        if self._phase is _LEAVING and self._has_ended():
            return False
        ready = self._epoll.poll(self._timeout_seconds() if waits else 0, _EVENTS_PER_TURN)
        started_ns = monotonic_ns()
        self._turn(ready, started_ns)
        took_ns = monotonic_ns() - started_ns
        if took_ns > self._gap_ns_max:
            self._gap_ns_max = took_ns
        return True

    @property
    def outcome(self) -> ChildExit:
        """What the end of the loop means."""
        failed = any(host.is_failed for host in self._hosts.values())
        return ChildExit.ENGINE_FAILED if failed else ChildExit.DRAINED

    # --- one turn ------------------------------------------------------------------------------------------------------

    def _turn(self, ready: Sequence[tuple[int, int]], now_ns: int) -> None:
        self._turns += 1
        for thread in self._threads:
            if thread.done:
                thread.finish_jobs()
                self._acknowledge_and_commit()
        for fd, mask in ready:
            session = self._sessions.get(fd)
            if session is not None:
                if mask & select.EPOLLOUT:
                    self._unsent.add(session)
                if mask & ~select.EPOLLOUT:
                    self._read(session, mask, now_ns)
            elif fd != self._wake_fd:
                self._open_door(fd, now_ns)
        if self._unfinished:
            for session in list(self._unfinished - self._paused):
                self._parse(session, now_ns)
        self._turned = self._agenda.due(now_ns)
        for host in self._turned:
            host.turn(now_ns)
            self._agenda.note(host)
        if self._unsent:
            self._flush()
        if self._paused:
            self._resume_paused()
        self._advance_phase(now_ns)
        if now_ns >= self._share.early_ns:
            self._share.turn(now_ns)
        if now_ns >= self._publish_at_ns - _PUBLISH_EARLY_NS:
            self._publish(now_ns)

    def _acknowledge_and_commit(self) -> None:
        """Send what the finished jobs allow, and let the disk go on. A few answers leave first: the thread that a commit wakes takes this
        core before they do. With many the disk would wait for them, and goes first."""
        if len(self._unsent) <= _SENT_BEFORE_COMMIT_MAX:
            self._flush()
        for host in self._agenda.take_committed():
            host.start_commit()
        if self._unsent:
            self._flush()

    def _open_door(self, fd: int, now_ns: int) -> None:
        if fd == self._listener.fd:
            self._accept(now_ns, self._listener, None)
        else:
            for adopted in self._adoption.cores:
                if fd == adopted.listener.fd:
                    self._accept(now_ns, adopted.listener, adopted)

    def _timeout_seconds(self) -> float:
        if self._unfinished and self._unfinished - self._paused:
            return 0.0
        wait_ns = self._agenda.next_ns(min(self._publish_at_ns, self._share.deadline_ns)) - monotonic_ns()
        return wait_ns / _NS_PER_SECOND if wait_ns > 0 else 0.0

    # --- connections ---------------------------------------------------------------------------------------------------

    def _accept(self, now_ns: int, listener: Listener, adopted: AdoptedCore | None) -> None:
        try:
            for _ in range(_ACCEPTS_PER_TURN):
                accepted = listener.accept()
                if accepted is None:
                    return
                self._admit(accepted, now_ns, adopted)
        except OSError as error:
            # Out of descriptors: those who wait keep waiting until the next sweep.
            self._journal.error("session.accept_failed", f"no connection can be accepted: {error.strerror}")
            self._set_accepting(False)

    def _admit(self, accepted: socket.socket, now_ns: int, adopted: AdoptedCore | None) -> None:
        peer = peer_of(accepted)
        session = Session(Connection(accepted, frame_bytes_max=GREETING_BYTES_MAX), peer, now_ns, self._unsent)
        try:
            if len(self._sessions) >= SESSIONS_MAX:
                raise WorkerUnavailable(f"this worker has {SESSIONS_MAX} connections and takes no more: close some")
            session.guest = self._access.admit(peer, (host.engine.settings for host in self._hosts.values()))
        except QuiverError as error:
            self._part(session, error, 0)
            return
        self._sessions[session.connection.fd] = session
        if adopted is not None:
            self._foreign[session] = adopted
        session.watched = select.EPOLLIN
        self._epoll.register(session.connection.fd, session.watched)

    def _read(self, session: Session, mask: int, now_ns: int) -> None:
        if session in self._paused:
            # Not read from, so what woke the loop is the end of the connection, or something to read from before it paused in this turn.
            if mask & (select.EPOLLHUP | select.EPOLLERR):
                self._end(session)
            return
        if session in self._unfinished:
            return
        try:
            is_connected = session.connection.receive()
        except ProtocolError as error:
            self._end(session, error)
            return
        self._parse(session, now_ns)
        if not is_connected:
            self._end(session)

    def _parse(self, session: Session, now_ns: int) -> None:
        """Handle every whole frame, up to a fair share."""
        self._unfinished.discard(session)
        budget_bytes = TURN_PUSH_BYTES
        adopted = self._foreign.get(session) if self._foreign else None
        requests = self._requests if adopted is None else adopted.requests
        push, handle = requests.push, requests.handle
        try:
            for frame in session.connection.reader.frames():
                message = decode_client_message(frame)
                if type(message) is Push and session.state is _OPEN:
                    push(session, message, now_ns)
                    budget_bytes -= message.length
                else:
                    handle(session, message, now_ns)
                if budget_bytes <= 0 or session.must_pause:
                    self._unfinished.add(session)
                    self._watch(session)
                    self._figures.heartbeat()
                    break
        except ProtocolError as error:
            self._end(session, error)
        except EndSession as ending:
            self._end(session, ending.error, ending.tag)

    def _flush(self) -> None:
        """One send a session that has something to say."""
        while self._unsent:
            session = self._unsent.pop()
            if not session.connection.flush():
                self._end(session)
            elif session.connection.unsent_bytes or session.watched != select.EPOLLIN:
                self._watch(session)

    def _watch(self, session: Session) -> None:
        """Wait for what the session can go on with: room to send, something to read."""
        if session.must_pause:
            self._paused.add(session)
        wanted = select.EPOLLOUT if session.connection.unsent_bytes else 0
        if session not in self._paused:
            wanted |= select.EPOLLIN
        if wanted != session.watched:
            session.watched = wanted
            self._epoll.modify(session.connection.fd, wanted)

    def _resume_paused(self) -> None:
        for session in [session for session in self._paused if not session.must_pause]:
            self._paused.discard(session)
            self._unfinished.add(session)
            self._watch(session)

    def _end(self, session: Session, error: QuiverError | None = None, tag: int = 0) -> None:
        """The connection is over: tell why if there is a why, and give back whatever it held."""
        if session.is_closed:
            return
        del self._sessions[session.connection.fd]
        self._epoll.unregister(session.connection.fd)
        self._part(session, error, tag)
        self._paused.discard(session)
        self._unfinished.discard(session)
        self._foreign.pop(session, None)
        for host in session.hosts:
            if not host.is_given_up:
                host.detach(session)

    def _part(self, session: Session, error: QuiverError | None, tag: int) -> None:
        if error is not None:
            self._journal.event(
                "session.refused", level=logging.WARNING, pid=session.peer.pid, code=error.code, reason=str(error)
            )
            session.refuse(tag, error)
            session.connection.flush()
        session.close()

    # --- life of the worker --------------------------------------------------------------------------------------------

    def _advance_phase(self, now_ns: int) -> None:
        if self._phase is _SERVING:
            for host in self._turned:
                if host.is_failed:
                    self._begin_failing(host, now_ns)
                    return
            if self._drain_is_requested:
                self._begin_draining(now_ns)
            elif self._intake_stop_is_requested and not self._intake_is_stopped:
                self._stop_intake()
        elif self._phase is Phase.DRAINING:
            if all(host.is_drained for host in self._hosts.values()):
                self._enter(Phase.LEAVING, now_ns)
        elif self._phase is Phase.FAILING and (
            all(host.is_settled for host in self._hosts.values()) or now_ns - self._phase_since_ns > FAILING_PATIENCE_NS
        ):
            self._enter(Phase.LEAVING, now_ns)

    def _begin_draining(self, now_ns: int) -> None:
        self._enter(Phase.DRAINING, now_ns)
        self._figures.set_state(WorkerState.DRAINING)
        self._topics.freeze()
        self._stop_listening()
        for host in self._hosts.values():
            host.drain()

    def _stop_intake(self) -> None:
        self._intake_is_stopped = True
        self._journal.event("worker.intake_stop", sessions=len(self._sessions))
        reason = Draining("the node is being drained: it takes no more bundles until it is started again")
        self._topics.stop_intake(reason)
        for host in self._hosts.values():
            host.stop_intake(reason)

    def _begin_failing(self, failed: EngineHost, now_ns: int) -> None:
        self._enter(Phase.FAILING, now_ns)
        self._figures.set_state(WorkerState.FAILED)
        self._topics.freeze()
        self._stop_listening()
        reason = Draining(f"the worker restarts because its topic {failed.engine.topic!r} has failed: push again")
        for host in self._hosts.values():
            host.stop_taking(reason)

    def _enter(self, phase: Phase, now_ns: int) -> None:
        assert phase in PHASE_TRANSITIONS[self._phase], f"{self._phase} to {phase}"
        self._phase = phase
        self._phase_since_ns = now_ns
        self._journal.event(f"worker.{phase.value}", sessions=len(self._sessions))

    def _has_ended(self) -> bool:
        if not any(session.connection.unsent_bytes for session in self._sessions.values()):
            return True
        return monotonic_ns() - self._phase_since_ns > FAREWELL_PATIENCE_NS

    def _set_accepting(self, is_accepting: bool) -> None:
        """At all doors alike."""
        if is_accepting == self._is_accepting:
            return
        self._is_accepting = is_accepting
        for listener in [self._listener, *(adopted.listener for adopted in self._adoption.cores)]:
            if listener.fd < 0:
                continue
            if is_accepting:
                self._epoll.register(listener.fd, select.EPOLLIN)
            else:
                self._epoll.unregister(listener.fd)

    def _stop_listening(self) -> None:
        self._set_accepting(False)
        self._listener.close()
        for adopted in self._adoption.cores:
            self._close_door(adopted)

    def _close_door(self, adopted: AdoptedCore) -> None:
        if adopted.listener.fd >= 0 and self._is_accepting:
            self._epoll.unregister(adopted.listener.fd)
        adopted.listener.close()

    def _end_adopted(self, adopted: AdoptedCore) -> None:
        """Nobody is owed anything of it any more."""
        self._close_door(adopted)
        for session in [session for session, door in self._foreign.items() if door is adopted]:
            self._end(session)

    def _publish(self, now_ns: int) -> None:
        self._publish_at_ns = now_ns + PUBLISH_INTERVAL_NS
        recent = self._agenda.take_recent()
        if self._phase is Phase.SERVING:
            self._adoption.look(now_ns)
            self._show_health(recent)
        arenas = [session.arena for session in self._sessions.values() if session.arena is not None]
        figures = LoopFigures(
            sessions=len(self._sessions),
            arena_bytes=sum(arena.size_bytes for arena in arenas),
            arena_used_bytes=sum(arena.used_bytes() for arena in arenas),
            loop_gap_ns_max=max(self._gap_ns_max, self._gap_ns_max_before),
            turns=self._turns,
            intake_stopped=self._intake_is_stopped,
            topics_version=self._adoption.applied_version,
        )
        self._load.sample(
            self._hosts.values(),
            recent,
            arena_bytes=figures.arena_bytes,
            arena_used_bytes=figures.arena_used_bytes,
            cap_fraction=self._share.cap_fraction,
        )
        self._share.show_pressure(self._load.pressure)
        self._figures.publish(figures, self._hosts, recent)
        if now_ns >= self._sweep_at_ns:
            self._sweep(now_ns)

    def _show_health(self, recent: set[EngineHost]) -> None:
        self._full = {host for host in self._full | recent if host.engine.state is EngineState.FULL}
        full = sorted(host.engine.topic for host in self._full)
        state = WorkerState.DEGRADED if full else WorkerState.READY
        if self._figures.state is not state:
            self._figures.set_state(state)
            self._journal.event(
                f"worker.{state.name.lower()}", level=logging.WARNING, full_topics=",".join(full) or None
            )

    def _sweep(self, now_ns: int) -> None:
        """What needs to be looked at now and then."""
        self._sweep_at_ns = now_ns + _SWEEP_INTERVAL_NS
        self._gap_ns_max_before, self._gap_ns_max = self._gap_ns_max, 0
        self._set_accepting(True)
        if self._adoption.cores and self._phase is Phase.SERVING:
            self._adoption.sweep(self._end_adopted)
        for host in self._agenda.take_unswept(now_ns):
            self._agenda.note_sweep(host, host.sweep(now_ns))
        for session in list(self._sessions.values()):
            session.forget_gone_hosts()
            if session.state is SessionState.GREETING and now_ns - session.opened_ns > HELLO_PATIENCE_NS:
                self._end(session, ProtocolError("no Hello came in time"))

    def close(self) -> None:
        """Let everything go at once. `run` does it at its end."""
        self._stop_listening()
        for session in list(self._sessions.values()):
            session.close()
        self._sessions.clear()
        stopped = [thread.stop(_THREAD_STOP_SECONDS) for thread in self._threads]
        self.threads_stopped = all(stopped)
        self._epoll.close()
        if self.threads_stopped:
            os.close(self._wake_fd)
