"""A small worker over real sockets that does what a test tells it to: the other end of the client's connections.

One thread a connection, blocking. It gives real arenas and real descriptors and parses every push; what it answers can be held back,
replaced, or cut off in the middle. All that clients sent is kept in `received`.
"""

from __future__ import annotations

import array
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from quiver_actors.base.protocol.framing import FrameReader, decode_client_message, encode_frame
from quiver_actors.base.protocol.lone import LonePush
from quiver_actors.base.protocol.messages import (
    ENTRY_ROW,
    PROTOCOL_VERSION,
    SLOT_ROW,
    Acked,
    AckRun,
    AckThrough,
    ArenaAttached,
    AttachArena,
    BeginStage,
    BundleTime,
    ClientMessage,
    DeclareSchema,
    Done,
    Extend,
    Extended,
    Flush,
    FlushProgress,
    GapAck,
    Hello,
    ListSegments,
    ListTopics,
    Message,
    Push,
    Refused,
    Register,
    SegmentList,
    TopicInfo,
    TopicList,
    Unregister,
    Welcome,
)
from quiver_actors.shm.arena import ArenaOwner
from tests.unit.client.entries import ParsedEntry, parse_span

TOPICS = [
    TopicInfo("default", {}, "wal", 0),
    TopicInfo("travel", {"flights": 3, "weather": 7}, "wal", 0),
]
DEADLINE_SECONDS = 60.0


def write_node_file(run_dir: Path, cores: int, *, adopted: Collection[int] = ()) -> None:
    entries = [{"core": core, "socket": f"core_{core}.sock", "adopted": core in adopted} for core in range(cores)]
    document = {
        "version": 1,
        "pid": os.getpid(),
        "data_dir": "unused",
        "counters": "/none",
        "started_unix_ns": 1,
        "cores": entries,
        "topics": [],
    }
    (run_dir / "node.json").write_text(json.dumps(document))


@dataclass
class Stored:
    """One bundle that the peer took in."""

    core: int
    topic: str
    entry: ParsedEntry


@dataclass(eq=False)
class PeerSession:
    """One accepted connection."""

    peer: Peer
    core: int
    socket: socket.socket
    pid: int = 0
    schemas: dict[int, DeclareSchema] = field(default_factory=dict)
    arena: ArenaOwner | None = None
    is_closed: bool = False

    def send(self, *messages: Message) -> None:
        self.socket.sendall(b"".join(map(encode_frame, messages)))

    def send_with_descriptors(self, messages: list[Message], *descriptors: int) -> None:
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        self.socket.sendmsg([b"".join(map(encode_frame, messages))], ancillary)

    def close(self) -> None:
        self.is_closed = True
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def run(self) -> None:
        reader = FrameReader()
        try:
            while size := self.socket.recv_into(reader.writable()):
                reader.advance(size)
                for frame in reader.frames():
                    if not self.is_closed:
                        message = decode_client_message(frame)
                        assert not isinstance(message, LonePush), "this peer does not say that it knows them"
                        self.peer.handle(self, message)
        except OSError:
            pass
        finally:
            self.socket.close()
            if self.arena is not None:
                self.arena.close()
            self.peer.ended(self)


Handler = Callable[[PeerSession, "ClientMessage"], bool]

Sent = TypeVar("Sent", bound=Message)


class Peer:
    """All workers of a node in one object. Use as a context manager."""

    def __init__(self, run_dir: Path, cores: int = 1, *, arena_bytes: int = 1 << 20) -> None:
        self.run_dir = run_dir
        self.cores = cores
        self.arena_bytes = arena_bytes
        self.version = PROTOCOL_VERSION
        self.features = 0
        """Bits of `Welcome.features`."""
        self.changed = threading.Condition()
        self.received: list[tuple[int, ClientMessage]] = []
        self.sessions: list[PeerSession] = []
        self.stored: list[Stored] = []
        self.unacknowledged: list[tuple[PeerSession, Push]] = []
        self.holds_acks = False
        self.holds_credit = False
        self.handlers: dict[type[Message], Handler] = {}
        """What to do instead of the usual; True: that was all."""
        self._listeners: dict[int, socket.socket] = {}
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Peer:
        write_node_file(self.run_dir, self.cores)
        for core in range(self.cores):
            self.listen(core)
        return self

    def __exit__(self, *_: object) -> None:
        for core in list(self._listeners):
            self.kill(core)
        for thread in self._threads:
            thread.join(DEADLINE_SECONDS)
            assert not thread.is_alive()

    def listen(self, core: int) -> None:
        """Start serving a core."""
        path = self.run_dir / f"core_{core}.sock"
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen()
        self._listeners[core] = listener
        self._start(lambda: self._accept(core, listener))

    def kill(self, core: int) -> None:
        """End a core's worker: its listener and all its connections. The socket file stays, as after SIGKILL."""
        listener = self._listeners.pop(core)
        listener.shutdown(socket.SHUT_RDWR)
        with self.changed:
            sessions = [session for session in self.sessions if session.core == core]
        for session in sessions:
            session.close()
        self.wait_for(lambda: not any(session.core == core for session in self.sessions))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until something that clients did makes the condition true."""
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_SECONDS), "the client did not do that in time"

    def of_type(self, kind: type[Sent]) -> list[Sent]:
        with self.changed:
            return [message for _, message in self.received if isinstance(message, kind)]

    def acknowledge(self, count: int | None = None) -> None:
        """Answer pushes that were held back, oldest first."""
        with self.changed:
            held, self.unacknowledged = self.unacknowledged[:count], self.unacknowledged[count:] if count else []
        for session, push in held:
            session.send(self.acked(session, push))

    def acked(self, session: PeerSession, push: Push, durability: int = 3) -> Acked:
        pushes = self.of_type(Push)
        sequence = 1000 * next(index for index, message in enumerate(pushes) if message is push)
        return Acked(durability, [AckRun(push.tag, 5, 100, sequence, len(push.entries) // ENTRY_ROW.size)])

    def ended(self, session: PeerSession) -> None:
        with self.changed:
            self.sessions.remove(session)
            self.changed.notify_all()

    def handle(self, session: PeerSession, message: ClientMessage) -> None:
        with self.changed:
            self.received.append((session.core, message))
        handler = self.handlers.get(type(message))
        if handler is None or not handler(session, message):
            self._usual(session, message)
        with self.changed:
            self.changed.notify_all()

    def _usual(self, session: PeerSession, message: ClientMessage) -> None:
        if isinstance(message, Hello):
            session.pid = message.pid
            session.send(Welcome(self.version, session.core, "00" * 16, os.getpid(), TOPICS, self.features))
        elif isinstance(message, AttachArena):
            self.attach_arena(session, message)
        elif isinstance(message, DeclareSchema):
            assert message.handle not in session.schemas, "a handle is declared once"
            session.schemas[message.handle] = message
        elif isinstance(message, Push):
            self._push(session, message)
        elif isinstance(message, ListTopics):
            session.send(TopicList(message.tag, TOPICS))
        elif isinstance(message, ListSegments):
            session.send(SegmentList(message.tag, []))
        elif isinstance(message, BundleTime):
            session.send(Done(message.tag, 777))
        elif isinstance(message, Extend):
            session.send(Extended(message.tag, time.monotonic_ns() + 30_000_000_000, b""))
        elif isinstance(message, Register | Unregister | Flush | FlushProgress | AckThrough | GapAck):
            session.send(Done(message.tag))

    def attach_arena(self, session: PeerSession, message: AttachArena) -> None:
        assert not any(held is session for held, _ in self.unacknowledged), "nothing is in flight"
        if session.arena is not None:
            session.arena.close()
        session.arena = ArenaOwner.create(message.size_bytes or self.arena_bytes)
        session.send_with_descriptors([ArenaAttached(message.tag, session.arena.size_bytes)], session.arena.fd)

    def _push(self, session: PeerSession, push: Push) -> None:
        assert session.arena is not None
        span = bytes(session.arena.span(push.offset, push.length))
        entries = parse_span(span, push.entries, push.slots, push.dictionaries)
        self._check_declared(session, push, entries)
        if not self.holds_credit:
            session.arena.publish_released(push.end_position)
        with self.changed:
            self.stored += [Stored(session.core, push.topic, entry) for entry in entries]
            # Asked once: a test may let go of the answers at any moment.
            is_held = self.holds_acks
            if is_held:
                self.unacknowledged.append((session, push))
        if not is_held:
            session.send(self.acked(session, push))

    def _check_declared(self, session: PeerSession, push: Push, entries: list[ParsedEntry]) -> None:
        handles = iter([row[0] for row in SLOT_ROW.iter_unpack(push.slots)])
        for entry in entries:
            for slot_id in entry.batches:
                schema = session.schemas[next(handles)]
                assert (schema.topic, schema.slot_id) == (push.topic, slot_id)
                assert schema.schema == entry.schema_messages[slot_id]
                assert schema.fingerprint == entry.fingerprints[slot_id]

    def _accept(self, core: int, listener: socket.socket) -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                listener.close()
                return
            session = PeerSession(self, core, connected)
            with self.changed:
                self.sessions.append(session)
                self.changed.notify_all()
            self._start(session.run)

    def _start(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()


def begin_stage(session: PeerSession, message: ClientMessage) -> bool:
    """A handler that begins stage 7."""
    assert isinstance(message, BeginStage)
    session.send(Done(message.tag, 7))
    return True


def refuse(code: str, message: str = "no") -> Handler:
    """A handler that refuses."""

    def handler(session: PeerSession, request: ClientMessage) -> bool:
        if isinstance(request, Push) and session.arena is not None:
            session.arena.publish_released(request.end_position)
        session.send(Refused(msgspec.structs.asdict(request).get("tag", 0), code, message))
        return True

    return handler


class Background:
    """Runs a call in a thread and gives back its result or error; joined at the latest when it is asked."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._outcome: list[object] = []
        self._error: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - given back by `result`
            self._error.append(error)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def ends_within(self, seconds: float) -> bool:
        """Whether it ends in that time: for what must not happen."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def result(self) -> object:
        self._thread.join(DEADLINE_SECONDS)
        assert not self._thread.is_alive(), "the call did not return"
        if self._error:
            raise self._error[0]
        return self._outcome[0]
