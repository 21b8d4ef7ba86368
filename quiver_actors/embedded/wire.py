"""Connections inside one process: messages and descriptors are handed over as they are.

Both ends belong to whoever holds the store's lock. What one end sends arrives in order; nothing is encoded, and no memory is copied: a
push refers to the private memory that its bundles were laid out in, which nobody changes afterwards.
"""

from __future__ import annotations

import itertools
import os
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from quiver_actors.base.protocol.lone import LoneFields
from quiver_actors.base.protocol.messages import ClientMessage, Message, Push, WorkerMessage
from quiver_actors.client.connection import Received
from quiver_actors.errors import ProtocolError, QuiverError, WorkerUnavailable
from quiver_actors.node.worker.access import Guest
from quiver_actors.node.worker.connection import NO_LIMIT
from quiver_actors.node.worker.session_arena import HeldSpan
from quiver_actors.shm.arena import ArenaOwner

PASSED_BYTES_MAX = 64 << 20
"""Most bytes of bundles that one connection has under way and the worker has not taken yet; a single push may be larger."""

_numbers = itertools.count(1 << 40)
"""Numbers of ends: above those of all descriptors."""


class Wire:
    """All connections between the clients and the worker of one store. Stands in for the poll of the worker's loop.

    Attributes:
        heard: client ends that have got something, in order.
        is_attended: whether a turn follows anyhow, so that nobody has to be woken for one.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        """
        Args:
            wake: sees to it that a turn follows; called by any thread.
        """
        self.is_attended = False
        self._wake = wake
        self.heard: dict[ClientEnd, None] = {}
        self._masks: dict[int, int] = {}
        self._ready: dict[int, int] = {}

    @property
    def has_input(self) -> bool:
        """Whether a door or a connection has something for the worker."""
        return bool(self._ready)

    def raise_events(self, number: int, events: int) -> None:
        """Note that there is something to read, or that the client is gone. Any thread may call it."""
        self._ready[number] = self._ready.get(number, 0) | events
        if not self.is_attended:
            self._wake()

    def quiet(self, number: int) -> None:
        """Note that nothing is left to read."""
        if self._ready.get(number) == select.EPOLLIN:
            del self._ready[number]

    # --- as `doors.Poll` -----------------------------------------------------------------------------------------------

    def register(self, fd: int, eventmask: int, /) -> None:
        """Begin to look at a door or connection."""
        self._masks[fd] = eventmask

    def modify(self, fd: int, eventmask: int, /) -> None:
        """Look for other events of it."""
        self._masks[fd] = eventmask

    def unregister(self, fd: int, /) -> None:
        """Watch a descriptor no more."""
        self._masks.pop(fd, None)
        self._ready.pop(fd, None)

    def poll(self, timeout: float | None = None, maxevents: int = -1, /) -> list[tuple[int, int]]:
        """Return what is ready, without waiting."""
        if not self._ready:
            return []
        masks = self._masks
        found = [(fd, events & (masks.get(fd, 0) | select.EPOLLHUP)) for fd, events in list(self._ready.items())]
        return [(fd, events) for fd, events in found if events and fd in masks]

    def close(self) -> None:
        """Watch no descriptor any more."""
        self._masks.clear()
        self._ready.clear()


class PassedSpans:
    """The memory of pushes that were passed over and not taken yet. See `session_arena.Spans`."""

    def __init__(self) -> None:
        self.held: deque[HeldSpan] = deque()
        self.size_bytes = 0
        self._memory: dict[int, memoryview] = {}
        self._last = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of pushes that were not taken yet."""
        return self.size_bytes

    def pass_over(self, memory: memoryview) -> int:
        """Hand memory to the worker, and return its number, which a push names as its offset."""
        self._last += 1
        self._memory[self._last] = memory
        self.size_bytes += len(memory)
        return self._last

    def expect(self, size_bytes: int) -> None:
        """Refuse: there is no arena. Raises ProtocolError."""
        raise ProtocolError("AttachArena to an embedded store: it has no arenas")

    def give_up(self) -> None:
        """Do nothing: no memory was expected."""

    def attach(self, memory: ArenaOwner) -> None:
        """Do nothing: no memory was expected."""

    def close(self) -> None:
        """Let go of all memory that was passed."""
        self._memory.clear()
        self.held.clear()
        self.size_bytes = 0

    def span(self, push: Push) -> memoryview:
        """The bytes of a push. Raises ProtocolError: it was taken before."""
        found = self._memory.get(push.offset)
        if found is None or len(found) != push.length:
            raise ProtocolError(f"push {push.tag}: no memory of {push.length} bytes was passed over with it")
        return found

    def lone_span(self, offset: int, length: int, end_position: int) -> None:
        """Return none: lone pushes go another way here (`lane`)."""

    def release_lone(self, end_position: int) -> None:
        """Do nothing: there was no span."""

    def hold(self, push: Push) -> HeldSpan:
        """The push waits: its memory stays."""
        held = HeldSpan(push.offset)
        self.held.append(held)
        return held

    def release(self, push: Push) -> None:
        """Drop the memory of a push."""
        self._drop(push.offset)

    def release_held(self, held: HeldSpan) -> None:
        """Drop the memory of a push that waited."""
        if held in self.held:
            self.held.remove(held)
        self._drop(held.end_position)

    def release_refused(self, held: HeldSpan) -> None:
        """Drop the memory of a push that was refused."""
        self.release_held(held)

    def _drop(self, number: int) -> None:
        memory = self._memory.pop(number, None)
        if memory is not None:
            self.size_bytes -= len(memory)


class WorkerEnd:
    """The worker's end of a connection. See `node.worker.connection.ClientConnection`."""

    __slots__ = (
        "_client",
        "_in",
        "_out",
        "_wire",
        "descriptors_max",
        "descriptors_out",
        "fd",
        "is_hung_up",
        "is_one_way",
        "passed",
    )

    unsent_bytes = 0
    is_congested = False
    memory_bytes = 0

    def __init__(self, wire: Wire, client: ClientEnd) -> None:
        self.fd = next(_numbers)
        self.descriptors_out = 0
        self.descriptors_max = NO_LIMIT
        self.passed = PassedSpans()
        self.is_hung_up = False
        """Whether the client has let go of the connection."""
        self.is_one_way = False
        """Whether no answer is sent any more."""
        self._wire = wire
        self._client: ClientEnd | None = client
        self._in: deque[ClientMessage] = deque()
        self._out: list[Received] = []

    def limit_frames(self, frame_bytes_max: int) -> None:
        """Do nothing: there are no frames."""

    def spans(self, guest: Guest | None) -> PassedSpans:
        """Return the memory that clients pass over."""
        return self.passed

    def hear(self, messages: Iterable[Message]) -> None:
        """Take messages of the client."""
        self._in.extend(messages)  # type: ignore[arg-type]  # a client sends the messages of clients only
        self._wire.raise_events(self.fd, select.EPOLLIN)

    def hang_up(self) -> None:
        """Note that the client is gone. Any thread may call it."""
        self.is_hung_up = True
        self._wire.raise_events(self.fd, select.EPOLLIN | select.EPOLLHUP)

    def receive(self) -> bool:
        """Return whether the client is still there."""
        return not self.is_hung_up

    def receive_lone(self) -> bool:
        """Return the same as `receive`: here lone pushes go another way (`lane`)."""
        return not self.is_hung_up

    def put_back(self, fields: LoneFields) -> NoReturn:
        """Not to be called: `receive_lone` returns none."""
        raise AssertionError(f"a lone push {fields} inside of one process")

    def messages(self) -> Iterator[ClientMessage]:
        """Yield what the client has sent."""
        waiting = self._in
        while waiting:
            yield waiting.popleft()
        self._wire.quiet(self.fd)

    def send(self, message: Message) -> None:
        """Queue a message for the next `flush()`."""
        self._out.append((message, None))  # type: ignore[arg-type]  # a worker sends the messages of workers only

    def send_frame(self, frame: bytes) -> NoReturn:
        """Not to be called: nobody has sent a frame."""
        raise AssertionError(f"a frame of {len(frame)} bytes inside of one process")

    def send_at_once(self, message: Message) -> bool:
        """Hand a message over, unless others wait in front of it: it is queued then, and this returns False."""
        client = self._client
        if self._out or client is None or self.is_hung_up:
            self.send(message)
            return False
        client.hear([(message, None)])  # type: ignore[list-item]  # a worker sends the messages of workers only
        return True

    def send_with_descriptor(self, message: Message, descriptor: int) -> None:
        """Queue a message with a descriptor, which goes to the client as it is."""
        self._out.append((message, descriptor))  # type: ignore[arg-type]

    def flush(self) -> bool:
        """Hand over what is queued; False when the client is gone."""
        client = self._client
        if self.is_hung_up or client is None:
            return False
        out, self._out = self._out, []
        client.hear(out)
        return True

    def stop_sending(self) -> None:
        """Drop answers that are queued. Idempotent."""
        self.is_one_way = True
        self._drop_unsent()

    def _drop_unsent(self) -> None:
        for _, descriptor in self._out:
            if descriptor is not None:
                os.close(descriptor)
        self._out.clear()

    def close(self) -> None:
        """Let go of the connection; the client hears of it. Idempotent."""
        self._drop_unsent()
        self._in.clear()
        client, self._client = self._client, None
        if client is not None and not self.is_hung_up:
            client.lose(WorkerUnavailable("the worker closed the connection"))


class ClientEnd:
    """A client's end of a connection. See `client.connection.WorkerConnection`."""

    wants_to_write = False

    def __init__(self, wire: Wire) -> None:
        self.worker = WorkerEnd(wire, self)
        self._wire = wire
        self._number = next(_numbers)
        self._received: list[Received] = []
        self._lost: QuiverError | None = None

    @property
    def lost(self) -> QuiverError | None:
        """Why nothing more will come or go, None while the connection stands."""
        return self._lost

    def fileno(self) -> int:
        """Return the number by which an exchange knows the connection."""
        return self._number

    def send(self, messages: Iterable[Message]) -> None:
        """Hand messages to the worker, which handles them in its next turn."""
        if self._lost is None:
            self.worker.hear(messages)

    def send_frames(self, frames: bytes) -> NoReturn:
        """Not to be called: there are no frames inside of one process."""
        raise AssertionError(f"{len(frames)} bytes of frames inside of one process")

    def receive_ack(self) -> None:
        """Return none: lone pushes go another way here (`lane`)."""

    def flush(self) -> None:
        """Do nothing: messages were handed over when they were sent."""

    def hear(self, messages: list[Received]) -> None:
        """Take messages of the worker."""
        self._received += messages
        self._wire.heard[self] = None

    def receive(self) -> list[tuple[WorkerMessage, int | None]]:
        """Return what the worker has sent."""
        received, self._received = self._received, []
        return received

    def lose(self, error: QuiverError) -> None:
        """Note that the worker is gone, and why."""
        if self._lost is None:
            self._lost = error
        self._wire.heard[self] = None

    def fail(self, error: QuiverError) -> None:
        """End the connection for that reason; messages received before count. The owner still has to close it."""
        if self._lost is None or isinstance(self._lost, WorkerUnavailable):
            self._lost = error

    def close(self) -> None:
        """Let go of the connection and of descriptors that nobody took. Idempotent."""
        if self._lost is None:
            self._lost = WorkerUnavailable("the connection was closed")
        for _, descriptor in self.receive():
            if descriptor is not None:
                os.close(descriptor)
        self._wire.heard.pop(self, None)
        self.worker.hang_up()

    def __del__(self) -> None:
        # None where an interrupt came before there was one.
        worker: WorkerEnd | None = self.__dict__.get("worker")
        if worker is not None:
            worker.hang_up()


class InnerDoor:
    """A door of the worker that clients of the same process come in by. See `node.worker.listener.Door`."""

    def __init__(self, wire: Wire) -> None:
        self.fd = next(_numbers)
        self._wire = wire
        self._waiting: deque[WorkerEnd] = deque()

    def connect(self) -> ClientEnd:
        """Come in. Raises WorkerUnavailable: the door is closed."""
        if self.fd < 0:
            raise WorkerUnavailable("the store's worker is ending")
        client = ClientEnd(self._wire)
        self._waiting.append(client.worker)
        self._wire.raise_events(self.fd, select.EPOLLIN)
        return client

    def accept(self) -> WorkerEnd | None:
        """The next client that has come, None if there is none."""
        if self._waiting:
            return self._waiting.popleft()
        self._wire.quiet(self.fd)
        return None

    def close(self) -> None:
        """Let nobody in any more; whoever waits is told. Idempotent."""
        if self.fd >= 0:
            self._wire.unregister(self.fd)
            self.fd = -1
            while self._waiting:
                self._waiting.popleft().close()
