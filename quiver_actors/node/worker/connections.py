"""The connections of a worker: who is let in, what is taken from each of them and when, what is sent, and how each of them ends.

Owner: the loop thread. Connections of the node's own user are served as soon as something arrives; those of other users last in a turn,
within the budgets of `node.worker.budgets`, so that what they ask costs the node's own user no more than a part of a turn. Of what does
not fit a budget the rest is carried over. The heartbeat goes on between the portions of a turn, whatever its length.

Guarantees: a connection that does not read its answers, or to which too many answers are owed, is not read from; one that misbehaves or
goes away costs its own bundles and claims only. What a client of the node's own user had sent before it went is handled.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Sequence
from time import monotonic_ns
from typing import Any

from quiver_actors.base.protocol.costs import CONNECTION_COST_NS, UNDECODABLE_COST_NS, least_cost_ns
from quiver_actors.base.protocol.lone import LonePush
from quiver_actors.base.protocol.messages import ClientMessage, Push
from quiver_actors.base.units import MIB, MICROSECOND_NS, MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import ProtocolError, QuiverError, QuotaExceeded, WorkerUnavailable
from quiver_actors.node.worker.access import Access
from quiver_actors.node.worker.adoption import AdoptedCore, Adoption
from quiver_actors.node.worker.budgets import NEVER_NS, Budgets
from quiver_actors.node.worker.connection import DESCRIPTORS_UNREAD_MAX, ClientConnection, Connection
from quiver_actors.node.worker.doors import Doors, Poll
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.listener import Door
from quiver_actors.node.worker.peer import Peer, peer_of
from quiver_actors.node.worker.requests import Requests
from quiver_actors.node.worker.session import GREETING_BYTES_MAX, EndSession, Session, SessionState

SESSIONS_MAX = 1024
GUEST_SESSIONS_MAX = SESSIONS_MAX * 3 // 4
"""Number of connections above which other users get no more, so that there is always room for the node's own user."""
HELLO_PATIENCE_NS = 10 * SECOND_NS
"""A client that has not introduced itself by then is cut off."""
LAST_READS_MAX = 64
"""Reads from a connection whose client takes no more answers; a socket holds less of a client that is gone."""
TURN_PUSH_BYTES = 8 * MIB
"""Bytes that are read from one connection before the others have their turn."""

_ACCEPT_TURN_NS = 200 * MICROSECOND_NS
"""Longest time for which one turn accepts new connections; it accepts at least one."""
_LONG_DEBT_NS = MILLISECOND_NS
"""The poll is not asked about a connection that waits longer for a budget: it would say at once that there is something to read."""
_OPEN = SessionState.OPEN
"""CPython 3.11 takes longer to look up a member of an enum than to call a function."""


class Connections:
    """All connections of a worker: accepts, reads, sends and closes them. Takes over the listener.

    Attributes:
        sessions: by descriptor.
        doors: where clients come in.
        unsent: sessions with answers that no send was tried for yet.
        paused: sessions that are not read from until they may go on.
        unfinished: sessions of the node's own user with postponed frames, the next one to serve first.
        budgets: of the users; other users wait in them for their turn.
        peer_of: asks the kernel who is at the other end; a simulation has no kernel with several users.
    """

    def __init__(
        self,
        poll: Poll,
        listener: Door,
        access: Access,
        adoption: Adoption,
        requests: Requests,
        figures: FigurePublisher,
        journal: Journal,
    ) -> None:
        """
        Args:
            poll: of the loop: says what `take` is given.
        """
        self.sessions: dict[int, Session] = {}
        self.unsent: set[Session] = set()
        self.paused: set[Session] = set()
        self.peer_of = peer_of
        self._epoll = poll
        self.doors = Doors(poll, listener, adoption)
        self._access = access
        self._adoption = adoption
        self._requests = requests
        self._figures = figures
        self._journal = journal
        self._foreign: dict[Session, AdoptedCore] = {}
        """Connections to an adopted core."""
        self._reads_left: dict[Session, int] = {}
        """How often sessions of the node's own user are still read from whose clients take no more answers."""
        self.unfinished: dict[Session, None] = {}
        self.budgets: Budgets[Session] = Budgets()
        self._turn = 0

    # --- one turn ------------------------------------------------------------------------------------------------------

    def take(self, ready: Sequence[tuple[int, int]], now_ns: int) -> None:
        """Read from connections of the node's own user, and note which connections of other users have data.

        Args:
            ready: (descriptor, event mask) pairs of the poll; descriptors of other owners are passed over.
        """
        self._turn += 1
        sessions = self.sessions
        for fd, mask in ready:
            session = sessions.get(fd)
            if session is not None:
                if mask & select.EPOLLOUT:
                    self.unsent.add(session)
                if mask & ~select.EPOLLOUT:
                    if session.guest is None:
                        self._read(session, mask, now_ns)
                    else:
                        self._note_guest(session, mask, now_ns)
            elif (door := self.doors.at(fd)) is not None:
                self._accept(now_ns, *door)
        if self.unfinished:
            for session in [session for session in self.unfinished if session not in self.paused]:
                self._parse(session, now_ns)

    @property
    def due_ns(self) -> int:
        """Monotonic time when there is work although nothing arrives: not after now if there is some already."""
        if self.unfinished and not self.unfinished.keys() <= self.paused:
            return 0
        return self.budgets.due_ns if self.budgets.in_turn else NEVER_NS

    def serve_guests(self) -> None:
        """Serve other users within their budgets. Last in a turn: their pushes are written in the next turn, which follows at once."""
        if self.budgets.in_turn:
            self.budgets.serve(monotonic_ns(), self._serve_guest)
            if self.unsent:
                self.flush()

    def flush(self) -> None:
        """Send what is unsent, with one call for each session."""
        while self.unsent:
            session = self.unsent.pop()
            if not session.connection.flush():
                self._hear_out(session)
            elif session.connection.unsent_bytes or session.watched != select.EPOLLIN:
                self._watch(session)

    def resume_paused(self) -> None:
        """Go on with those that must no longer pause."""
        for session in [session for session in self.paused if not session.must_pause]:
            self.paused.discard(session)
            self._put_off(session)

    def sweep(self, now_ns: int) -> None:
        """Accept clients, and end connections that sent no Hello in time. To be called now and then."""
        self.doors.accept(is_wanted=True)
        for session in list(self.sessions.values()):
            session.forget_gone_hosts()
            if session.state is SessionState.GREETING and now_ns - session.opened_ns > HELLO_PATIENCE_NS:
                self._end(session, ProtocolError("no Hello came in time"))
            elif session in self._reads_left and not session.is_unfinished:
                self._read(session, select.EPOLLIN, now_ns)

    def oldest_topics_version(self) -> int | None:
        """Return the oldest version of the list of topics that an introduced connection knows; None without such a connection."""
        greeted = (session for session in self.sessions.values() if session.state is not SessionState.GREETING)
        return min((session.topics_version for session in greeted), default=None)

    def close(self) -> None:
        """Let everything go at once."""
        self.doors.close()
        for session in list(self.sessions.values()):
            session.close()
        self.sessions.clear()

    def end_adopted(self, adopted: AdoptedCore) -> None:
        """Close the connections of an adopted core of which nobody is owed anything."""
        self.doors.close_of(adopted)
        for session in [session for session, door in self._foreign.items() if door is adopted]:
            self._end(session)

    # --- one connection ------------------------------------------------------------------------------------------------

    def _accept(self, now_ns: int, listener: Door, adopted: AdoptedCore | None) -> None:
        stop_ns = monotonic_ns() + _ACCEPT_TURN_NS
        try:
            while (accepted := listener.accept()) is not None:
                self._admit(accepted, now_ns, adopted)
                if monotonic_ns() >= stop_ns:
                    self._figures.beat()
                    return
        except OSError as error:
            # Out of descriptors: those who wait keep waiting until the next sweep.
            self._journal.error("session.accept_failed", f"no connection can be accepted: {error.strerror}")
            self.doors.accept(is_wanted=False)

    def _admit(self, accepted: Any, now_ns: int, adopted: AdoptedCore | None) -> None:
        connection, peer = self._connection_of(accepted)
        budget = self.budgets.of(peer.uid, is_guest=not self._access.trusts(peer))
        budget.left_ns -= CONNECTION_COST_NS
        guest, refusal = None, None
        try:
            if len(self.sessions) >= SESSIONS_MAX:
                raise WorkerUnavailable(f"this worker has {SESSIONS_MAX} connections and takes no more: close some")
            guest = self._access.admit(peer, (host.engine.settings for host in self._adoption.values()))
            if guest is not None and len(self.sessions) >= GUEST_SESSIONS_MAX:
                raise WorkerUnavailable(
                    f"this worker has {len(self.sessions)} connections and takes no more of other users: try again later"
                )
        except QuiverError as error:
            refusal = error
        session = Session(connection, peer, now_ns, self.unsent, budget, guest)
        if refusal is not None:
            self._part(session, refusal, 0)
            return
        if guest is not None:
            connection.descriptors_max = DESCRIPTORS_UNREAD_MAX
        self.sessions[session.connection.fd] = session
        if adopted is not None:
            self._foreign[session] = adopted
        session.watched = select.EPOLLIN
        self._epoll.register(session.connection.fd, session.watched)

    def _connection_of(self, accepted: Any) -> tuple[ClientConnection, Peer]:
        """Wrap an accepted socket; returns the connection and the identity of its peer."""
        return Connection(accepted, frame_bytes_max=GREETING_BYTES_MAX), self.peer_of(accepted)

    def _note_guest(self, session: Session, mask: int, now_ns: int) -> None:
        """Note that a guest's connection has data or has ended; the guest waits for its turn."""
        if session in self.paused or session.is_unheard:
            if mask & (select.EPOLLHUP | select.EPOLLERR):
                self._end(session)
            return
        self.budgets.want(session)
        if session.budget.due_ns > now_ns + _LONG_DEBT_NS:
            session.is_unheard = True
            self._watch(session)

    def _serve_guest(self, session: Session) -> None:
        """Serve a guest, and charge it for the time taken where its requests did not cost more."""
        if session in self.paused:
            return
        if session.is_unheard:
            session.is_unheard = False
            self._watch(session)
        now_ns, left_ns = monotonic_ns(), session.budget.left_ns
        if session.is_unfinished:
            self._parse(session, now_ns)
        else:
            self._read(session, select.EPOLLIN, now_ns)
        self._count_memory(session)
        session.budget.left_ns = min(session.budget.left_ns, left_ns + now_ns - monotonic_ns())
        self._figures.beat()

    def _count_memory(self, session: Session) -> None:
        if session.guest is not None and not session.is_closed:
            try:
                session.guest.has_memory(session.memory_bytes)
            except QuotaExceeded as error:
                self._end(session, error)

    def _read(self, session: Session, mask: int, now_ns: int) -> None:
        if session in self.paused:
            # The loop reads nothing from it. It woke for the end of the connection, or for data from before the pause in this turn.
            if mask & (select.EPOLLHUP | select.EPOLLERR):
                self._hear_out(session)
            return
        if session.is_unfinished:
            return
        if session in self._reads_left:
            self._reads_left[session] -= 1
            if self._reads_left[session] < 0:
                self._end(session)
                return
        try:
            if session.guest is None and session.schemas.lone:
                found = session.connection.receive_lone()
            else:
                found = session.connection.receive()
        except ProtocolError as error:
            self._end(session, error)
            return
        if type(found) is tuple:
            if not self._foreign and session.state is _OPEN and self._requests.lone(session, found, now_ns):
                return
            session.connection.put_back(found)
        self._parse(session, now_ns)
        if not found and not session.is_unfinished:
            self._end(session)

    def _parse(self, session: Session, now_ns: int) -> None:
        """Handle every whole frame, up to a fair share."""
        budget, budget_bytes = session.budget, TURN_PUSH_BYTES
        budget.begin(self._turn)
        self.unfinished.pop(session, None)
        if session.waits_for_budget and budget.left_ns <= 0:
            self._put_off(session)
            return
        session.is_unfinished = session.waits_for_budget = False
        adopted = self._foreign.get(session) if self._foreign else None
        requests = self._requests if adopted is None else adopted.requests
        push, is_own = requests.push, session.guest is None
        try:
            if session.work is not None and not self._go_on(session, requests):
                self._put_off(session)
                return
            for received in session.connection.messages():
                message = session.schemas.push_of(received) if isinstance(received, LonePush) else received
                if is_own and type(message) is Push and session.state is _OPEN:
                    push(session, message, now_ns)
                    budget_bytes -= message.length
                    if budget_bytes > 0 and not session.must_pause:
                        continue
                elif self._request(session, requests, message) and not session.must_pause:
                    continue
                self._put_off(session)
                break
        except ProtocolError as error:
            budget.left_ns -= UNDECODABLE_COST_NS
            self._end(session, error)
        except EndSession as ending:
            self._end(session, ending.error, ending.tag)

    def _request(self, session: Session, requests: Requests, message: ClientMessage) -> bool:
        """Carry out a request, or the first portion of it. Returns whether this turn may take the next one."""
        started_ns = monotonic_ns()
        requests.handle(session, message, started_ns)
        took_ns = monotonic_ns() - started_ns
        session.budget.left_ns -= took_ns if session.guest is None else max(least_cost_ns(message), took_ns)
        return self._go_on(session, requests)

    def _go_on(self, session: Session, requests: Requests) -> bool:
        """Do the next portions of a long request. True if the request is complete and a part of the budget is left."""
        while session.work is not None and session.budget.left_ns > 0:
            started_ns = monotonic_ns()
            requests.go_on(session)
            session.budget.left_ns -= monotonic_ns() - started_ns
        return session.work is None and session.budget.left_ns > 0

    def _watch(self, session: Session) -> None:
        """Wait for what the session can go on with: room to send, something to read."""
        if session.must_pause:
            self.paused.add(session)
        wanted = select.EPOLLOUT if session.connection.unsent_bytes else 0
        if session not in self.paused and not session.is_unheard:
            wanted |= select.EPOLLIN
        if wanted != session.watched:
            session.watched = wanted
            self._epoll.modify(session.connection.fd, wanted)

    def _hear_out(self, session: Session) -> None:
        """Its client is gone: handle in the next turns what a client of the node's own user has sent before, such as acknowledgements."""
        if session.guest is not None:
            self._end(session)
        elif not session.is_closed and session not in self._reads_left:
            self._reads_left[session] = LAST_READS_MAX
            session.connection.stop_sending()
            if session in self.paused:
                self.paused.discard(session)
                self._put_off(session)
            else:
                self._watch(session)

    def _put_off(self, session: Session) -> None:
        """Postpone the rest of a session's frames or of its request to a later turn, or until the session may go on."""
        session.is_unfinished = True
        session.waits_for_budget = session.budget.left_ns <= 0
        if session.guest is None:
            self.unfinished[session] = None
        else:
            self.budgets.want(session)
        self._watch(session)
        self._figures.beat()

    def _end(self, session: Session, error: QuiverError | None = None, tag: int = 0) -> None:
        """The connection is over: tell why if there is a why, and give back whatever it held."""
        if session.is_closed:
            return
        del self.sessions[session.connection.fd]
        self._epoll.unregister(session.connection.fd)
        self._part(session, error, tag)
        self.paused.discard(session)
        self._reads_left.pop(session, None)
        self.unfinished.pop(session, None)
        self.budgets.leave(session)
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
