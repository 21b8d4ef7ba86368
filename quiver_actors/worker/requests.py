"""What each message of a client does. One table, one method a message.

Owner: the loop thread. An error in a request is its refusal and leaves the connection as it was; an error in the protocol ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from quiver_actors.errors import (
    ArrowError,
    BundleTooLarge,
    NotAllowed,
    ProtocolError,
    QuiverError,
    QuotaExceeded,
    SharedMemoryError,
    TopicDeleted,
    TopicRecreated,
)
from quiver_actors.model import ENTRY_BODY_BYTES_MAX
from quiver_actors.protocol.messages import (
    PROTOCOL_VERSION,
    AckThrough,
    ArenaAttached,
    AttachArena,
    BundleTime,
    ClaimRef,
    Credit,
    DeclareSchema,
    Done,
    Extend,
    Flush,
    FlushProgress,
    GapAck,
    Hello,
    KeyedPush,
    ListSegments,
    ListSubscribers,
    ListTopics,
    Message,
    OpenSegment,
    Pending,
    Push,
    Register,
    Resolve,
    Seek,
    SegmentList,
    SegmentOpened,
    TopicList,
    Unreadable,
    Unregister,
    Welcome,
)
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.shm.arena import ArenaOwner
from quiver_actors.shm.errors import ShmError
from quiver_actors.units import MIB, format_size
from quiver_actors.wal.foreign import check_schema
from quiver_actors.worker.dead_letters import dead_letter_topic
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.session import EndSession, Session, SessionState
from quiver_actors.worker.stage_requests import StageRequests
from quiver_actors.worker.threads import Submit
from quiver_actors.worker.topics import Topics

ARENA_BYTES_MAX = ENTRY_BODY_BYTES_MAX + MIB
"""Room for the largest bundle and its frame."""
FINGERPRINT_BYTES = 32
SUBSCRIBERS_MAX = 1024
"""Of one topic: each costs memory, a file, and a look at every bundle."""

_Handler = Callable[[Session, Any, int], None]


class ArenaJob:
    """Making an arena allocates all its pages: too long for the loop."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self.arena: ArenaOwner | None = None
        self.descriptor = -1
        """To be sent to the producer."""
        self.error: str = ""

    def run(self) -> None:
        try:
            self.arena = ArenaOwner.create(self._size_bytes)
            self.descriptor = os.dup(self.arena.fd)
        except (ShmError, OSError) as error:
            self.error = str(error)
            self.discard()

    def discard(self) -> None:
        """Give the memory back."""
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Requests:
    """See the module."""

    def __init__(
        self, topics: Topics, *, core: int, arena_bytes: int, background: Submit, own_log: str, ask: Submit
    ) -> None:
        """
        Args:
            arena_bytes: ring size for clients that leave the choice to the worker, unless the list of topics says another.
            background: where arenas are made.
            own_log: the node's own decision log of transactions.
            ask: where decision logs are asked.
        """
        self._topics = topics
        self._core = core
        self._incarnation = os.urandom(16).hex()
        self._arena_bytes = arena_bytes
        self._background = background
        self._handlers: dict[type[Message], _Handler] = {
            Hello: self._hello,
            AttachArena: self._attach_arena,
            DeclareSchema: self._declare_schema,
            Push: self.push,
            KeyedPush: self._keyed_push,
            Flush: self._flush,
            ListSegments: self._list_segments,
            OpenSegment: self._open_segment,
            Register: self._register,
            Unregister: self._unregister,
            Credit: self._credit,
            Resolve: self._resolve,
            FlushProgress: self._flush_progress,
            Extend: lambda session, message, _: self._host(message.topic, session).deliveries.extend(session, message),
            ClaimRef: lambda session, message, _: self._host(message.topic, session).deliveries.claim_ref(
                session, message
            ),
            AckThrough: lambda session, message, _: self._host(message.topic, session).deliveries.ack_through(
                session, message
            ),
            GapAck: lambda session, message, _: self._host(message.topic, session).deliveries.gap_ack(session, message),
            Pending: lambda session, message, _: self._host(message.topic, session).deliveries.pending(
                session, message
            ),
            ListSubscribers: lambda session, message, _: self._host(message.topic, session).deliveries.list_all(
                session, message.tag
            ),
            Unreadable: lambda session, message, _: self._host(message.topic, session).deliveries.unreadable(
                session, message
            ),
            ListTopics: self._list_topics,
            BundleTime: self._bundle_time,
            Seek: self._seek,
            **StageRequests(lambda topic, session: self._host(topic, session).staging, own_log, ask).handlers(),
        }

    def handle(self, session: Session, message: Message, now_ns: int) -> None:
        """Carry out a request, or refuse it.

        Raises:
            EndSession: the connection must end.
            ProtocolError: likewise.
        """
        if session.state is SessionState.GREETING and type(message) is not Hello:
            raise ProtocolError(f"{type(message).__name__} before Hello")
        try:
            self._handlers[type(message)](session, message, now_ns)
        except ProtocolError as error:
            raise EndSession(error, _tag_of(message)) from error
        except QuiverError as error:
            session.refuse(_tag_of(message), error)

    def push(self, session: Session, push: Push, now_ns: int) -> None:
        """The hot one: the loop calls it without the detour through `handle`.

        Raises:
            ProtocolError: the connection must end.
        """
        try:
            host = self._topics.host(push.topic, session)
        except QuiverError as error:
            session.release(push)
            session.refuse(push.tag, error)
            return
        host.ingest.push(session, push, now_ns)
        host.touch_push()

    def _keyed_push(self, session: Session, push: KeyedPush, now_ns: int) -> None:
        """For the node's own user: the numbers of a producer are a promise to all its processes, which nobody else may spoil."""
        if session.guest is not None:
            session.release(push)
            raise NotAllowed(
                "idempotent pushes are for the node's own user: push without producer, or run as that user"
            )
        self.push(session, push, now_ns)

    # --- connection ----------------------------------------------------------------------------------------------------

    def _hello(self, session: Session, message: Hello, now_ns: int) -> None:
        session.greet(message)
        session.topics_version = self._topics.version
        incarnation, infos = self._incarnation, self._topics.infos(session)
        session.send(Welcome(PROTOCOL_VERSION, self._core, incarnation, os.getpid(), infos))

    def _list_topics(self, session: Session, message: ListTopics, now_ns: int) -> None:
        session.send(TopicList(message.tag, self._topics.infos(session)))

    def _attach_arena(self, session: Session, message: AttachArena, now_ns: int) -> None:
        if message.size_bytes > ARENA_BYTES_MAX:
            raise BundleTooLarge(
                f"an arena of {format_size(message.size_bytes)} is over the limit of {format_size(ARENA_BYTES_MAX)}:"
                f" one bundle holds at most {format_size(ENTRY_BODY_BYTES_MAX)}"
            )
        size_bytes = max(message.size_bytes, 0) or self._topics.arena_bytes or self._arena_bytes
        session.expect_arena(size_bytes)
        job = ArenaJob(size_bytes)
        self._background(job, lambda: self._arena_made(session, message.tag, job))

    def _arena_made(self, session: Session, tag: int, job: ArenaJob) -> None:
        if job.arena is None:
            session.give_up_arena()
            session.refuse(tag, SharedMemoryError(f"no shared memory for this connection: {job.error}"))
        elif session.is_closed:
            job.discard()
        else:
            session.attach(job.arena)
            session.send_with_descriptor(ArenaAttached(tag, job.arena.size_bytes), job.descriptor)

    def _declare_schema(self, session: Session, message: DeclareSchema, now_ns: int) -> None:
        """Refusals end the connection: pushes that name the handle may be behind this message already."""
        try:
            self._host(message.topic, session)
            self._topics.slot_table(message.topic).resolve(message.slot_id)
        except (TopicDeleted, TopicRecreated):
            # The push that is behind it is refused with that reason, which need not end the connection.
            return
        except QuiverError as error:
            raise EndSession(error) from error
        if len(message.fingerprint) != FINGERPRINT_BYTES or not 0 <= message.handle < 1 << 32:
            raise ProtocolError(f"schema handle {message.handle}: fingerprint or handle is not what it should be")
        _check_schema(message, is_guest=session.guest is not None)
        session.declare(
            message.topic, message.handle, StreamSchema(message.slot_id, message.fingerprint, message.schema)
        )

    # --- one topic -----------------------------------------------------------------------------------------------------

    def _flush(self, session: Session, message: Flush, now_ns: int) -> None:
        self._host(message.topic, session).ingest.flush(session, message, now_ns)

    def _list_segments(self, session: Session, message: ListSegments, now_ns: int) -> None:
        engine = self._host(message.topic, session).engine
        unlisted = tuple(engine.unlisted_segments())
        incarnation = engine.incarnation.hex()
        session.send(SegmentList(message.tag, engine.segments(), unlisted, engine.next_segment_seq, incarnation))

    def _open_segment(self, session: Session, message: OpenSegment, now_ns: int) -> None:
        descriptor, size_bytes = self._host(message.topic, session).engine.open_segment(message.segment_seq)
        opened = SegmentOpened(message.tag, message.topic, message.segment_seq, size_bytes)
        session.send_with_descriptor(opened, descriptor)

    def _register(self, session: Session, message: Register, now_ns: int) -> None:
        host = self._host(message.topic, session)
        known_as = self._topics.incarnation(message.topic)
        if message.incarnation and known_as and message.incarnation != known_as:
            raise TopicRecreated(
                f"topic {message.topic!r} was deleted and created anew since this subscriber was attached to it: what it had not got is "
                "gone; subscribe again to get what comes now"
            )
        letters = dead_letter_topic(message.topic, message.terms)
        if letters is not None and letters not in self._topics:
            if message.terms.dead_letter_topic:
                self._host(letters, session)
            if session.guest is not None:
                raise NotAllowed(
                    f"topic {letters!r} for dead letters does not exist: ask the node's operator to create it"
                )
            # New connections hear of it.
            self._topics.open_like(letters, message.topic)
        known = host.engine.subscribers()
        if message.subscriber not in known and len(known) >= SUBSCRIBERS_MAX:
            raise QuotaExceeded(
                f"topic {message.topic!r} has {SUBSCRIBERS_MAX} subscribers, as many as it can: drop some"
            )
        if session.guest is not None:
            session.guest.attach(message.topic, message.subscriber)
        host.deliveries.register(session, message)

    def _unregister(self, session: Session, message: Unregister, now_ns: int) -> None:
        host = self._host(message.topic, session)
        if session.guest is not None:
            session.guest.check_owner(host.engine.settings, "drop subscribers")
        host.deliveries.unregister(session, message)

    def _seek(self, session: Session, message: Seek, now_ns: int) -> None:
        host = self._host(message.topic, session)
        if session.guest is not None:
            session.guest.check_owner(host.engine.settings, "move subscribers")
        host.deliveries.seek(session, message)

    def _credit(self, session: Session, message: Credit, now_ns: int) -> None:
        self._host(message.topic, session).deliveries.credit(session, message)

    def _resolve(self, session: Session, message: Resolve, now_ns: int) -> None:
        self._host(message.topic, session).deliveries.resolve(session, message)

    def _flush_progress(self, session: Session, message: FlushProgress, now_ns: int) -> None:
        self._host(message.topic, session).deliveries.flush_progress(session, message)

    def _bundle_time(self, session: Session, message: BundleTime, now_ns: int) -> None:
        engine = self._host(message.topic, session).engine
        session.send(Done(message.tag, engine.bundle_time(message.segment_seq, message.bundle_index)))

    def _host(self, topic: str, session: Session) -> EngineHost:
        host = self._topics.host(topic, session)
        host.touch()
        return host


def _check_schema(message: DeclareSchema, *, is_guest: bool = False) -> None:
    """A schema that no reader understands would make every segment it goes into unreadable."""
    try:
        if is_guest:
            check_schema(message.schema)
        pa.ipc.read_schema(pa.py_buffer(message.schema))
    except (ArrowError, pa.ArrowException, OSError) as error:
        raise ProtocolError(f"schema handle {message.handle} is no Arrow schema message: {error}") from error


def _tag_of(message: Message) -> int:
    return getattr(message, "tag", 0)
