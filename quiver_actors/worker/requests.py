"""What each message of a client does. One table, one method a message.

Owner: the loop thread. An error in a request is its refusal and leaves the connection as it was; an error in the protocol ends it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from quiver_actors.config import TopicSettings
from quiver_actors.errors import BundleTooLarge, ProtocolError, QuiverError, SharedMemoryError, UnknownTopic
from quiver_actors.model import ENTRY_BODY_BYTES_MAX, SlotTable, check_id
from quiver_actors.protocol.messages import (
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
    Message,
    OpenSegment,
    Pending,
    Push,
    Register,
    Resolve,
    Seek,
    SegmentList,
    SegmentOpened,
    TopicInfo,
    Unreadable,
    Unregister,
    Welcome,
)
from quiver_actors.segment.builder import StreamSchema
from quiver_actors.shm.arena import ArenaOwner
from quiver_actors.shm.errors import ShmError
from quiver_actors.units import MIB, format_size
from quiver_actors.worker.dead_letters import dead_letter_topic
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.session import EndSession, Session, SessionState
from quiver_actors.worker.stage_requests import StageRequests
from quiver_actors.worker.threads import Submit

ARENA_BYTES_MAX = ENTRY_BODY_BYTES_MAX + MIB
"""Room for the largest bundle and its frame."""
FINGERPRINT_BYTES = 32

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
        self,
        hosts: Mapping[str, EngineHost],
        *,
        welcome: Welcome,
        arena_bytes: int,
        background: Submit,
        open_host: Callable[[str, TopicSettings], None],
        own_log: str,
        ask: Submit,
    ) -> None:
        """
        Args:
            open_host: adds a topic, with the settings of another one, to `hosts`.
            arena_bytes: ring size for clients that leave the choice to the worker.
            background: where arenas are made.
            own_log: the node's own decision log of transactions.
            ask: where decision logs are asked.
        """
        self._hosts = hosts
        self._slot_tables: dict[str, SlotTable] = {
            name: host.engine.settings.slot_table() for name, host in hosts.items()
        }
        self._welcome = welcome
        self._arena_bytes = arena_bytes
        self._background = background
        self._open_host = open_host
        self._handlers: dict[type[Message], _Handler] = {
            Hello: self._hello,
            AttachArena: self._attach_arena,
            DeclareSchema: self._declare_schema,
            Push: self.push,
            KeyedPush: self.push,
            Flush: self._flush,
            ListSegments: self._list_segments,
            OpenSegment: self._open_segment,
            Register: self._register,
            Unregister: self._unregister,
            Credit: self._credit,
            Resolve: self._resolve,
            FlushProgress: self._flush_progress,
            Extend: lambda session, message, _: self._host(message.topic).deliveries.extend(session, message),
            ClaimRef: lambda session, message, _: self._host(message.topic).deliveries.claim_ref(session, message),
            AckThrough: lambda session, message, _: self._host(message.topic).deliveries.ack_through(session, message),
            GapAck: lambda session, message, _: self._host(message.topic).deliveries.gap_ack(session, message),
            Pending: lambda session, message, _: self._host(message.topic).deliveries.pending(session, message),
            ListSubscribers: lambda session, message, _: self._host(message.topic).deliveries.list_all(
                session, message.tag
            ),
            Unreadable: lambda session, message, _: self._host(message.topic).deliveries.unreadable(session, message),
            BundleTime: self._bundle_time,
            Seek: self._seek,
            **StageRequests(lambda topic: self._host(topic).staging, own_log, ask).handlers(),
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
        host = self._hosts.get(push.topic)
        if host is None:
            session.release(push)
            session.refuse(push.tag, self._unknown_topic(push.topic))
            return
        host.ingest.push(session, push, now_ns)
        host.touch_push()

    # --- connection ----------------------------------------------------------------------------------------------------

    def _hello(self, session: Session, message: Hello, now_ns: int) -> None:
        session.greet(message)
        session.send(self._welcome)

    def _attach_arena(self, session: Session, message: AttachArena, now_ns: int) -> None:
        if message.size_bytes > ARENA_BYTES_MAX:
            raise BundleTooLarge(
                f"an arena of {format_size(message.size_bytes)} is over the limit of {format_size(ARENA_BYTES_MAX)}:"
                f" one bundle holds at most {format_size(ENTRY_BODY_BYTES_MAX)}"
            )
        session.expect_arena()
        job = ArenaJob(message.size_bytes if message.size_bytes > 0 else self._arena_bytes)
        self._background(job, lambda: self._arena_made(session, message.tag, job))

    def _arena_made(self, session: Session, tag: int, job: ArenaJob) -> None:
        if job.arena is None:
            session.arena_is_coming = False
            session.refuse(tag, SharedMemoryError(f"no shared memory for this connection: {job.error}"))
        elif session.is_closed:
            job.discard()
        else:
            session.attach(job.arena)
            session.send_with_descriptor(ArenaAttached(tag, job.arena.size_bytes), job.descriptor)

    def _declare_schema(self, session: Session, message: DeclareSchema, now_ns: int) -> None:
        """Refusals end the connection: pushes that name the handle may be behind this message already."""
        try:
            self._host(message.topic)
            self._slot_tables[message.topic].resolve(message.slot_id)
        except QuiverError as error:
            raise EndSession(error) from error
        if len(message.fingerprint) != FINGERPRINT_BYTES or not 0 <= message.handle < 1 << 32:
            raise ProtocolError(f"schema handle {message.handle}: fingerprint or handle is not what it should be")
        _check_schema(message)
        session.declare(
            message.topic, message.handle, StreamSchema(message.slot_id, message.fingerprint, message.schema)
        )

    # --- one topic -----------------------------------------------------------------------------------------------------

    def _flush(self, session: Session, message: Flush, now_ns: int) -> None:
        self._host(message.topic).ingest.flush(session, message, now_ns)

    def _list_segments(self, session: Session, message: ListSegments, now_ns: int) -> None:
        session.send(SegmentList(message.tag, self._host(message.topic).engine.segments()))

    def _open_segment(self, session: Session, message: OpenSegment, now_ns: int) -> None:
        descriptor, size_bytes = self._host(message.topic).engine.open_segment(message.segment_seq)
        opened = SegmentOpened(message.tag, message.topic, message.segment_seq, size_bytes)
        session.send_with_descriptor(opened, descriptor)

    def _register(self, session: Session, message: Register, now_ns: int) -> None:
        host = self._host(message.topic)
        letters = dead_letter_topic(message.topic, message.terms)
        if letters is not None and letters not in self._hosts:
            if message.terms.dead_letter_topic:
                raise self._unknown_topic(letters)
            self._open_topic(letters, message.topic)
        host.deliveries.register(session, message)

    def _open_topic(self, topic: str, like: str) -> None:
        """Make a topic that is not configured; new connections hear of it.

        Raises:
            QuiverError: its name is not allowed, or its directory cannot be opened.
        """
        check_id("topic", topic)
        settings = self._hosts[like].engine.settings
        self._open_host(topic, settings)
        self._slot_tables[topic] = settings.slot_table()
        info = TopicInfo(topic, settings.slots, settings.durability, settings.wal.flush_interval_ns)
        self._welcome = msgspec.structs.replace(self._welcome, topics=[*self._welcome.topics, info])

    def _unregister(self, session: Session, message: Unregister, now_ns: int) -> None:
        self._host(message.topic).deliveries.unregister(session, message)

    def _seek(self, session: Session, message: Seek, now_ns: int) -> None:
        self._host(message.topic).deliveries.seek(session, message)

    def _credit(self, session: Session, message: Credit, now_ns: int) -> None:
        self._host(message.topic).deliveries.credit(session, message)

    def _resolve(self, session: Session, message: Resolve, now_ns: int) -> None:
        self._host(message.topic).deliveries.resolve(session, message)

    def _flush_progress(self, session: Session, message: FlushProgress, now_ns: int) -> None:
        self._host(message.topic).deliveries.flush_progress(session, message)

    def _bundle_time(self, session: Session, message: BundleTime, now_ns: int) -> None:
        engine = self._host(message.topic).engine
        session.send(Done(message.tag, engine.bundle_time(message.segment_seq, message.bundle_index)))

    def _host(self, topic: str) -> EngineHost:
        host = self._hosts.get(topic)
        if host is None:
            raise self._unknown_topic(topic)
        host.touch()
        return host

    def _unknown_topic(self, topic: str) -> UnknownTopic:
        return UnknownTopic(f"topic {topic!r} does not exist on this node: expected one of {', '.join(self._hosts)}")


def _check_schema(message: DeclareSchema) -> None:
    """A schema that no reader understands would make every segment it goes into unreadable."""
    try:
        pa.ipc.read_schema(pa.py_buffer(message.schema))
    except (pa.ArrowException, OSError) as error:
        raise ProtocolError(f"schema handle {message.handle} is no Arrow schema message: {error}") from error


def _tag_of(message: Message) -> int:
    return getattr(message, "tag", 0)
