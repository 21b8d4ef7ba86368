"""Carries out the messages of clients. One table, one method a message; the table of rights is asked before any of them.

Owner: the loop thread. An error in a request is its refusal and leaves the connection as it was; an error in the protocol ends it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ENTRY_BODY_BYTES_MAX
from quiver_actors.base.protocol.lone import LONE_PUSHES, LoneFields
from quiver_actors.base.protocol.messages import (
    COUNTS_PRUNED,
    PROTOCOL_VERSION,
    SCHEMA_LISTS,
    AckThrough,
    ArenaAttached,
    AttachArena,
    ClaimRef,
    Credit,
    DeclareSchema,
    Extend,
    Flush,
    FlushProgress,
    GapAck,
    Hello,
    KeyedPush,
    ListSubscribers,
    ListTopics,
    Message,
    Pending,
    Push,
    Register,
    Resolve,
    Seek,
    ShareSubscriber,
    Taken,
    TopicList,
    Unreadable,
    Unregister,
    Welcome,
)
from quiver_actors.base.protocol.subscriber_messages import HEARS_TAKEN
from quiver_actors.base.units import MIB, format_size
from quiver_actors.errors import (
    ArrowError,
    BundleTooLarge,
    NotAllowed,
    ProtocolError,
    QuiverError,
    SharedMemoryError,
    StorageUnavailable,
    TopicDeleted,
    TopicRecreated,
)
from quiver_actors.node.worker.access import Guest
from quiver_actors.node.worker.archive_readers import protect_archiver
from quiver_actors.node.worker.dead_letters import dead_letter_topic
from quiver_actors.node.worker.deliveries import Deliveries
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.segment_requests import SegmentRequests
from quiver_actors.node.worker.session import EndSession, Session, SessionState
from quiver_actors.node.worker.stage_requests import StageRequests
from quiver_actors.node.worker.subscriber_quota import check_room
from quiver_actors.node.worker.threads import Submit
from quiver_actors.node.worker.topics import Topics
from quiver_actors.shm.arena import ArenaOwner
from quiver_actors.shm.errors import ShmError
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.foreign import check_schema

ARENA_BYTES_MAX = ENTRY_BODY_BYTES_MAX + MIB
"""Room for the largest bundle and its frame."""
FINGERPRINT_BYTES = 32
_HANDLE = 9
"""Place of the schema handle in `LoneFields`."""
_DONE = object()

_Handler = Callable[[Session, Any, int], Iterator[None] | None]
"""Carries a request out, or gives back an iterator that carries out a portion of it at each step."""

_OF_DELIVERIES: Mapping[type[Message], Callable[[Deliveries, Session, Any], None]] = {
    Unregister: Deliveries.unregister,
    ShareSubscriber: Deliveries.share,
    Seek: Deliveries.seek,
    Credit: Deliveries.credit,
    Taken: Deliveries.taken,
    ClaimRef: Deliveries.claim_ref,
    Resolve: Deliveries.resolve,
    Extend: Deliveries.extend,
    AckThrough: Deliveries.ack_through,
    GapAck: Deliveries.gap_ack,
    Unreadable: Deliveries.unreadable,
    FlushProgress: Deliveries.flush_progress,
}
"""Messages that the deliveries of their topic answer."""
_OF_SUBSCRIBERS = frozenset((Register, *_OF_DELIVERIES)) - {Resolve, Extend, Taken}
"""Messages by which a subscriber could be used in the archiver's place."""


class ArenaJob:
    """Making an arena allocates all its pages: too long for the loop."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self.arena: ArenaOwner | None = None
        self.descriptor = -1
        """Descriptor to send to the producer; -1: none."""
        self.error: str = ""

    def run(self) -> None:
        """Create the arena and allocate its pages on a thread; sets `arena` and `descriptor`, or `error`."""
        try:
            self.arena = ArenaOwner.create(self._size_bytes)
            self.descriptor = os.dup(self.arena.fd)
        except (ShmError, OSError) as error:
            self.error = str(error)
            self.discard()

    def discard(self) -> None:
        """Close arena and descriptor, if they were made."""
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Requests:
    """Handles each message of a client: checks the table of rights, then calls the method of the message."""

    def __init__(
        self,
        topics: Topics,
        *,
        core: int,
        arena_bytes: int,
        background: Submit,
        own_log: str,
        ask: Submit,
        count_pruned: Callable[[int], None],
    ) -> None:
        """
        Args:
            arena_bytes: ring size for clients that leave the choice to the worker, unless the list of topics says another.
            background: where arenas are made.
            own_log: the node's own decision log of transactions.
            ask: where decision logs are asked.
            count_pruned: counts the segments that readers leave out.
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
            KeyedPush: self.push,
            Flush: self._flush,
            Register: self._register,
            Pending: lambda session, message, _: self._host(message.topic, session).deliveries.questions.pending(
                session, message
            ),
            ListSubscribers: lambda session, message, _: self._host(
                message.topic, session
            ).deliveries.questions.list_all(session, message.tag),
            ListTopics: self._list_topics,
            **{kind: self._to_deliveries(method) for kind, method in _OF_DELIVERIES.items()},
            **SegmentRequests(self._host, count_pruned).handlers(),
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
            if session.guest is not None:
                self._check_rights(session, session.guest, message)
            if type(message) in _OF_SUBSCRIBERS and getattr(message, "subscriber", "") == ARCHIVE_SUBSCRIBER:
                self._protect_archiver(session, message)
            work = self._handlers[type(message)](session, message, now_ns)
        except ProtocolError as error:
            raise EndSession(error, _tag_of(message)) from error
        except QuiverError as error:
            session.refuse(_tag_of(message), error)
        else:
            if work is not None:
                session.work = self._in_portions(session, work, _tag_of(message))

    def go_on(self, session: Session) -> None:
        """Carry out the next portion of the request that the session is at."""
        if session.work is not None and next(session.work, _DONE) is _DONE:
            session.work = None

    @staticmethod
    def _in_portions(session: Session, work: Iterator[None], tag: int) -> Iterator[None]:
        try:
            yield from work
        except QuiverError as error:
            session.refuse(tag, error)

    def _protect_archiver(self, session: Session, message: Message) -> None:
        host = self._topics.hosts.get(getattr(message, "topic", ""))
        protect_archiver(
            message,
            is_archiver=session.is_archiver,
            is_guest=session.guest is not None,
            is_enabled=host is not None and host.engine.settings.archive.enabled,
        )

    def _check_rights(self, session: Session, guest: Guest, message: Message) -> None:
        """Ask the table of rights.

        Raises:
            NotAllowed: the message is not carried out.
            EndSession: nor is what follows it, as that relies on it.
        """
        # One that does not exist is the handler's to tell of.
        host = self._topics.hosts.get(getattr(message, "topic", ""))
        subscriber: str = getattr(message, "subscriber", "")
        settings = host.engine.settings if host is not None else None
        ownership = host.engine.registrations.ownership_of(subscriber) if host is not None and subscriber else None
        try:
            guest.check(message, settings, subscriber, ownership)
        except NotAllowed as error:
            if isinstance(message, Push):
                session.arena.release(message)
            if isinstance(message, DeclareSchema):
                raise EndSession(error) from error
            raise

    def push(self, session: Session, push: Push, now_ns: int) -> None:
        """The hot one: the loop calls it without the detour through `handle`.

        Raises:
            ProtocolError: the connection must end.
        """
        try:
            host = self._topics.host(push.topic, session)
        except QuiverError as error:
            session.arena.release(push)
            session.refuse(push.tag, error)
            return
        host.ingest.push(session, push, now_ns)
        host.touch_push()

    def lone(self, session: Session, fields: LoneFields, now_ns: int) -> bool:
        """Take a lone push of the node's own user the short way. False: nothing has happened, and it has to go the general way."""
        known = session.schemas.lone.get(fields[_HANDLE])
        if known is None:
            return False
        topic, stream = known
        try:
            host = self._topics.host(topic, session)
        except QuiverError:
            return False
        return not (host.is_given_up or host.is_failed) and host.lone.push(session, stream, fields, now_ns)

    # --- connection ----------------------------------------------------------------------------------------------------

    def _hello(self, session: Session, message: Hello, now_ns: int) -> None:
        session.greet(message)
        session.topics_version = self._topics.catalogue.version
        incarnation, infos = self._incarnation, self._topics.infos(session)
        features = LONE_PUSHES | HEARS_TAKEN | SCHEMA_LISTS | COUNTS_PRUNED
        session.send(Welcome(PROTOCOL_VERSION, self._core, incarnation, os.getpid(), infos, features))

    def _list_topics(self, session: Session, message: ListTopics, now_ns: int) -> None:
        session.send(TopicList(message.tag, self._topics.infos(session)))

    def _attach_arena(self, session: Session, message: AttachArena, now_ns: int) -> None:
        if message.size_bytes > ARENA_BYTES_MAX:
            raise BundleTooLarge(
                f"an arena of {format_size(message.size_bytes)} is over the limit of {format_size(ARENA_BYTES_MAX)}:"
                f" one bundle holds at most {format_size(ENTRY_BODY_BYTES_MAX)}"
            )
        size_bytes = max(message.size_bytes, 0) or self._topics.catalogue.arena_bytes or self._arena_bytes
        session.arena.expect(size_bytes)
        job = ArenaJob(size_bytes)
        self._background(job, lambda: self._arena_made(session, message.tag, job))

    def _arena_made(self, session: Session, tag: int, job: ArenaJob) -> None:
        if job.arena is None:
            session.arena.give_up()
            session.refuse(tag, SharedMemoryError(f"no shared memory for this connection: {job.error}"))
        elif session.is_closed:
            job.discard()
        else:
            session.arena.attach(job.arena)
            session.send_with_descriptor(ArenaAttached(tag, job.arena.size_bytes), job.descriptor)

    def _declare_schema(self, session: Session, message: DeclareSchema, now_ns: int) -> None:
        """Refusals end the connection: pushes that name the handle may be behind this message already.

        A topic that cannot be opened now is none: its pushes are refused one by one, and may use the handle once it is open.
        """
        try:
            with contextlib.suppress(StorageUnavailable):
                self._host(message.topic, session)
            self._topics.slot_table(message.topic).resolve(message.slot_id)
        except (TopicDeleted, TopicRecreated):
            # The push that is behind it is refused with that reason, which need not end the connection.
            return
        except QuiverError as error:
            raise EndSession(error) from error
        if len(message.fingerprint) != FINGERPRINT_BYTES or not 0 <= message.handle < 1 << 32:
            raise ProtocolError(
                f"schema handle {message.handle}: expected a handle of 32 bits and a fingerprint of {FINGERPRINT_BYTES} bytes"
            )
        _check_schema(message, is_guest=session.guest is not None)
        session.schemas.declare(
            message.topic, message.handle, StreamSchema(message.slot_id, message.fingerprint, message.schema)
        )

    # --- one topic -----------------------------------------------------------------------------------------------------

    def _flush(self, session: Session, message: Flush, now_ns: int) -> None:
        self._host(message.topic, session).ingest.flush(session, message, now_ns)

    def _register(self, session: Session, message: Register, now_ns: int) -> None:
        host = self._host(message.topic, session)
        known_as = self._topics.incarnation(message.topic)
        if message.incarnation and known_as and message.incarnation != known_as:
            raise TopicRecreated(
                f"topic {message.topic!r} was deleted and created anew since this subscriber was attached to it: bundles that it "
                "had not received are gone; subscribe again to receive new ones"
            )
        self._prepare_letters(session, message)
        check_room(host, message.subscriber, session.guest, self._topics.hosts.values())
        if session.guest is not None:
            session.guest.attach(message.topic, message.subscriber)
        host.deliveries.register(session, message)

    def _prepare_letters(self, session: Session, message: Register) -> None:
        """There must be a topic for the dead letters that the terms speak of, and the caller must be allowed to push to it.

        Raises:
            NotAllowed, UnknownTopic: it is not, or there is none that it may make.
        """
        letters = dead_letter_topic(message.topic, message.terms)
        if letters is None:
            return
        if letters in self._topics.hosts or message.terms.dead_letter_topic:
            self._host(letters, session)
            return
        if session.guest is not None:
            raise NotAllowed(f"topic {letters!r} for dead letters does not exist: ask the node's operator to create it")
        # New connections hear of it.
        self._topics.open_like(letters, message.topic)

    def _to_deliveries(self, method: Callable[[Deliveries, Session, Any], None]) -> _Handler:
        return lambda session, message, _: method(self._host(message.topic, session).deliveries, session, message)

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
        raise ProtocolError(f"schema handle {message.handle} is not an Arrow schema message: {error}") from error


def _tag_of(message: Message) -> int:
    return getattr(message, "tag", 0)
