"""A worker in a thread of the test process, and a bare client that speaks its protocol: real sockets, arenas, engines and files."""

from __future__ import annotations

import array
import contextlib
import os
import select
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import NodeSettings, TopicSettings
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import FrameReader, decode_worker_message, encode_frame
from quiver_actors.errors import HardPressed
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.node.worker.entry import Worker
from quiver_actors.node.worker.figures import FigurePublisher
from quiver_actors.node.worker.journal import Journal
from quiver_actors.shm.arena import ArenaProducer
from quiver_actors.shm.counters import CountersPage, RegionSnapshot
from quiver_actors.shm.names import new_name
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.node.worker.received_files import ReceivedFiles, ReceivedLog
from tests.unit.node.worker.spans import Span, fingerprint_of

PATIENCE_SECONDS = 60.0

Answer = TypeVar("Answer", bound=m.Message)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition that another thread or process brings about."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        select.select([], [], [], 0.005)


def table(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


class WireClient:
    """One connection. Blocking; every wait has a deadline."""

    def __init__(self, path: str, *, greet: bool = True, name: str = "test") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(PATIENCE_SECONDS)
        self.reader = FrameReader()
        self.received: deque[m.Message] = deque()
        self.descriptors: deque[int] = deque()
        self.segments = ReceivedFiles()
        self.runs: dict[int, tuple[m.AckRun, int]] = {}
        self.pushed: dict[int, tuple[Span, str]] = {}
        """Pushes that are not answered yet, by tag, with their topic."""
        self.arena: ArenaProducer | None = None
        self.tag = 100
        self.credits: Counter[tuple[str, str]] = Counter()
        self.welcome: m.Welcome | None = None
        try:
            self.socket.connect(path)
            if greet:
                # A worker that takes nobody has closed this end already; why stands in its answer.
                with contextlib.suppress(BrokenPipeError):
                    self.send(m.Hello(m.PROTOCOL_VERSION, os.getpid(), name))
                self.welcome = self.expect(m.Welcome)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> WireClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()
        if self.arena is not None:
            self.arena.close()
            self.arena = None
        while self.descriptors:
            os.close(self.descriptors.popleft())

    # --- messages ------------------------------------------------------------------------------------------------------

    def send(self, *sent: m.Message) -> None:
        self.socket.sendall(b"".join(map(encode_frame, sent)))

    def next_tag(self) -> int:
        self.tag += 1
        return self.tag

    def receive(self) -> m.Message | None:
        """The next message, None at the end of the connection."""
        while not self.received:
            try:
                data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(4))
            except ConnectionResetError:
                return None
            if not data:
                return None
            for _, _, payload in ancillary:
                self.descriptors.extend(array.array("i", payload))
            self.reader.feed(data)
            self.received.extend(map(decode_worker_message, self.reader.frames()))
        return self.received.popleft()

    def expect(self, kind: type[Answer], matching: Callable[[Answer], bool] = lambda _: True) -> Answer:
        """The next message of that kind; others stay in line. A refusal or the end of the connection fails the test."""
        passed: deque[m.Message] = deque()
        while True:
            message = self.receive()
            assert message is not None, f"connection ended before {kind.__name__}; got {passed}"
            if isinstance(message, kind) and matching(message):
                self.received.extendleft(reversed(passed))
                return message
            if kind is m.Refused or not isinstance(message, m.Refused):
                passed.append(message)
            else:
                self._push_again(message)

    def _push_again(self, refused: m.Refused) -> None:
        """Push again after a refusal by a hard-pressed worker, as clients do: a sync on a shared disk took half a second."""
        assert refused.code == HardPressed.code, refused
        assert refused.tag in self.pushed, refused
        select.select([], [], [], 0.05)
        span, topic = self.pushed[refused.tag]
        self.send(msgspec.structs.replace(self.place(span, topic), tag=refused.tag))

    def expect_end(self) -> None:
        while (message := self.receive()) is not None:
            assert not isinstance(message, m.Refused), message

    def done(self, tag: int) -> None:
        self.expect(m.Done, lambda done: done.tag == tag)

    # --- pushing -------------------------------------------------------------------------------------------------------

    def attach_arena(self, size_bytes: int = 1 << 20) -> None:
        tag = self.next_tag()
        self.send(m.AttachArena(tag, size_bytes))
        attached = self.expect(m.ArenaAttached, lambda attached: attached.tag == tag)
        descriptor = self.descriptors.popleft()
        if self.arena is not None:
            self.arena.close()
        self.arena = ArenaProducer.attach(descriptor, attached.size_bytes)
        os.close(descriptor)

    def declare(self, handle: int, schema: pa.Schema, *, slot_id: int = 0, topic: str = "default") -> None:
        self.send(m.DeclareSchema(handle, topic, slot_id, fingerprint_of(schema), schema.serialize().to_pybytes()))

    def place(self, span: Span, topic: str = "default") -> m.Push:
        """Put a span into the arena, waiting for credit, and make its Push."""
        assert self.arena is not None
        arena = self.arena
        until(lambda: arena.free_bytes() == arena.size_bytes or arena.free_bytes() > 2 * len(span.data), "credit")
        offset = arena.reserve(len(span.data))
        assert offset is not None, "the ring is in use and no piece of it is large enough"
        arena.ring[offset : offset + len(span.data)] = span.data
        end = arena.commit(len(span.data))
        return m.Push(self.next_tag(), topic, offset, len(span.data), end, span.entries, span.slots, b"")

    def push(self, *batches: pa.RecordBatch, handle: int = 0, slot_id: int = 0, topic: str = "default") -> m.Push:
        """Send one Push of one-slot bundles; does not wait for its answer."""
        span = Span()
        for batch in batches:
            span.add([(handle, slot_id, batch)])
        push = self.place(span, topic)
        self.pushed[push.tag] = (span, topic)
        self.send(push)
        return push

    def acked(self, push: m.Push) -> tuple[m.AckRun, int]:
        """Wait for the acknowledgement of a push: its run and the durability."""
        while push.tag not in self.runs:
            found = self.expect(m.Acked)
            self.runs.update({run.tag: (run, found.durability) for run in found.runs})
        self.pushed.pop(push.tag, None)
        return self.runs.pop(push.tag)

    def push_and_wait(self, *batches: pa.RecordBatch, **options: Any) -> m.AckRun:
        return self.acked(self.push(*batches, **options))[0]

    # --- subscribing ---------------------------------------------------------------------------------------------------

    def flush(self, topic: str = "default") -> None:
        tag = self.next_tag()
        self.send(m.Flush(tag, topic))
        self.done(tag)

    def register(
        self,
        subscriber: str,
        *,
        topic: str = "default",
        start: str = "earliest",
        credit: int = 0,
        terms: m.Terms | None = None,
    ) -> None:
        tag = self.next_tag()
        self.send(m.Register(tag, topic, subscriber, start, terms or m.Terms()))
        self.done(tag)
        if credit:
            self.credit(subscriber, credit, topic=topic)

    def credit(self, subscriber: str, bundles: int, *, topic: str = "default") -> None:
        """Let so many more bundles come (fewer, if negative)."""
        self.credits[topic, subscriber] += bundles
        self.send(m.Credit(topic, subscriber, self.credits[topic, subscriber]))

    def delivered(self, subscriber: str | None = None) -> tuple[m.Deliver, list[int]]:
        """The next delivery and its bundle indexes; its segment is open in `segments`."""
        passed: deque[m.Message] = deque()
        while True:
            message = self.receive()
            assert message is not None, "connection ended before a delivery"
            if isinstance(message, m.SegmentOpened):
                self.open_received(message)
            elif isinstance(message, m.Deliver) and subscriber in (None, message.subscriber):
                self.received.extendleft(reversed(passed))
                return message, self.segments.delivered(message)
            else:
                passed.append(message)

    def open_received(self, opened: m.SegmentOpened) -> SegmentReader | ReceivedLog:
        return self.segments.opened(opened, self.descriptors.popleft())

    def values(
        self, count: int, subscriber: str | None = None, slot: int = 0
    ) -> list[tuple[m.Deliver, int, list[int]]]:
        """Deliveries with at least `count` bundles in all: (delivery, bundle index, values of column x)."""
        found: list[tuple[m.Deliver, int, list[int]]] = []
        while len(found) < count:
            deliver, indexes = self.delivered(subscriber)
            reader = self.segments[deliver.topic, deliver.segment_seq]
            found += [(deliver, index, reader.bundle(index)[slot].column("x").to_pylist()) for index in indexes]
        return found

    def resolve(self, deliver: m.Deliver, indexes: Sequence[int], outcome: str = "ack", delay_ns: int = 0) -> int:
        tag = self.next_tag()
        packed = array.array("I", indexes).tobytes()
        names = (deliver.topic, deliver.subscriber, deliver.segment_seq, deliver.token)
        self.send(m.Resolve(tag, *names, outcome, packed, delay_ns))
        return tag

    def flush_progress(self, subscriber: str, topic: str = "default") -> None:
        tag = self.next_tag()
        self.send(m.FlushProgress(tag, topic, subscriber))
        self.done(tag)


class WorkerThread:
    """A worker whose loop runs in a thread of this process."""

    def __init__(
        self, root: Path, settings: NodeSettings, disk: Disk | None = None, kind: type[Worker] = Worker
    ) -> None:
        self.data_dir, self.run_dir = root / "data", root / "run"
        self.data_dir.mkdir(exist_ok=True)
        self.run_dir.mkdir(exist_ok=True)
        self.socket_path = str(self.run_dir / "core_0.sock")
        self._page = CountersPage.create(new_name(), 2, 64, FIGURES_VERSION)
        region = self._page.writer(1)
        region.begin(os.getpid(), time.time_ns())
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._disk = PosixDisk(str(self.data_dir))
        context = WorkerContext(
            core=0,
            cores=1,
            settings=settings,
            data_dir=str(self.data_dir),
            run_dir=str(self.run_dir),
            region=region,
            wakeup_fd=self._pipe[1],
        )
        journal = Journal(0)
        figures = FigurePublisher(region, 0, SystemClock(), journal)
        self.worker = kind(context, disk or self._disk, SystemClock(), figures, journal)
        self.worker.open()
        self.exit_code: int | None = None
        self._clients: list[WireClient] = []
        self._thread = threading.Thread(target=self._serve, name="loop")
        self._thread.start()

    def _serve(self) -> None:
        self.exit_code = int(self.worker.serve())

    def connect(self, *, greet: bool = True, name: str = "test") -> WireClient:
        client = WireClient(self.socket_path, greet=greet, name=name)
        self._clients.append(client)
        return client

    def producer(self, *, topic: str = "default", arena_bytes: int = 1 << 20) -> WireClient:
        """A client with an arena and the schema of `table()` declared under handle 0."""
        client = self.connect()
        client.attach_arena(arena_bytes)
        client.declare(0, table().schema, topic=topic)
        return client

    def region(self) -> RegionSnapshot:
        return self._page.read_region(1)

    def stop(self) -> int:
        """Drain; returns the exit code."""
        self.worker.loop.request_drain()
        return self.wait()

    def wait(self) -> int:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the worker did not end"
        assert self.exit_code is not None, "the worker crashed"
        return self.exit_code

    def close(self) -> None:
        try:
            if self._thread.is_alive():
                self.stop()
        finally:
            for client in self._clients:
                client.close()
            self._disk.close()
            for fd in self._pipe:
                os.close(fd)
            self._page.unlink()
            self._page.close()


def settings(*topics: TopicSettings, arena_bytes: int = 1 << 20) -> NodeSettings:
    return NodeSettings(topics={topic.name: topic for topic in topics}, arena_bytes=arena_bytes)


def topic(name: str = "default", **changes: Any) -> TopicSettings:
    """Settings with fields replaced; `segment__target_size_bytes=...` reaches into a section."""
    base = TopicSettings(name=name)
    for key, value in changes.items():
        section, _, field = key.partition("__")
        if field:
            value = msgspec.structs.replace(getattr(base, section), **{field: value})
        base = msgspec.structs.replace(base, **{section: value})
    return base


@contextlib.contextmanager
def running(
    root: Path, node: NodeSettings | None = None, disk: Disk | None = None, kind: type[Worker] = Worker
) -> Iterator[WorkerThread]:
    worker = WorkerThread(root, node or settings(), disk, kind)
    try:
        yield worker
    finally:
        worker.close()
