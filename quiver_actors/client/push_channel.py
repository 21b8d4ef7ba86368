"""The producer's side of one worker connection: arena, declared schemas, and the pushes that are under way.

Used under the lock of its exchange, shared by all threads of a client. Nothing here waits.

Guarantees: a group of bundles is one Push message; its answers, its refusal or the loss of the connection reach the group; the arena is
only replaced when nothing is under way in it.

Sizes: the arena is as large as the node configured it. A bundle that is larger gets an arena of its own size, and the next group that
fits brings the configured size back; while one group waits for its arena, all others wait behind it.
"""

from __future__ import annotations

import os
import select
import time

from quiver_actors.base.protocol.lone import KIND_PUSH, LONE_MARK, LONE_PUSH, LONE_PUSH_LENGTH, LoneAck
from quiver_actors.base.protocol.messages import (
    Acked,
    AckRun,
    ArenaAttached,
    AttachArena,
    DeclareSchema,
    Message,
    Refused,
    WorkerMessage,
)
from quiver_actors.base.units import MILLISECOND_NS, format_size
from quiver_actors.client.calls import refusal_error
from quiver_actors.client.channel import Channel
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.node_view import WorkerDirectory
from quiver_actors.client.targets import Target
from quiver_actors.errors import InvalidBundle, ProtocolError, QuiverError, SharedMemoryError, WorkerUnavailable
from quiver_actors.shm.arena import ArenaProducer
from quiver_actors.shm.errors import ShmError
from quiver_actors.store.encoding.entries import PlannedBundles, PushRows
from quiver_actors.store.encoding.lone import LoneEntry
from quiver_actors.store.encoding.runs import PlannedRun
from quiver_actors.store.encoding.streams import EncodedStream

_ACK_TAG = 5
"""Place of the tag in `LoneAck`."""
CONFIGURED_ARENA_BYTES = 0
"""Asks for an arena of the size that the node is configured to give."""
DECLARED_MAX = 4096
"""Schemas that a worker remembers for a connection: with more of them it is time for a new one."""
DECLARED_BYTES_MAX = 64 << 20
"""Bytes of schema messages that a worker remembers for a connection: with more of them, too, it is time for a new one."""


class PushGroup:
    """Bundles that travel in one Push message, and the answers to it."""

    __slots__ = (
        "acked_count",
        "acks",
        "archives_as",
        "call",
        "deadline_ns",
        "error",
        "is_lost",
        "number",
        "planned",
        "size_bytes",
        "target",
        "topic",
    )

    def __init__(self, number: int, planned: PlannedBundles | PlannedRun, target: Target | None = None) -> None:
        self.target = target
        """Stage or numbered producer of the bundles; None: they are plainly pushed."""
        self.number = number
        """Number of the group within its call; the bundles of a call stay in the order of their groups."""
        self.planned = planned
        self.size_bytes = planned.size_bytes
        self.acks: list[tuple[AckRun, int]] = []
        """Acknowledged runs and their durability, in order; together they cover the first `acked_count` bundles."""
        self.acked_count = 0
        self.error: QuiverError | None = None
        """Why the bundles without an acknowledgement were refused."""
        self.deadline_ns = 0
        """Monotonic time when the call of the group times out; 0: not known yet."""
        self.call = 0
        """Number of the call that the group belongs to; sent as `Push.call`."""
        self.topic = ""
        """Topic of the group, once the group was sent."""
        self.is_lost = False
        """The connection ended first: the bundles without an acknowledgement may or may not have been stored."""
        self.archives_as = ""
        """`Acked.archives_as` of the newest acknowledgement."""

    def patience_ms(self) -> int:
        """Milliseconds that the call of the group still waits; 0: not known."""
        return max(1, (self.deadline_ns - time.monotonic_ns()) // MILLISECOND_NS) if self.deadline_ns else 0

    @property
    def is_acked(self) -> bool:
        """Whether the worker has acknowledged every bundle of the group."""
        return self.acked_count == len(self.planned)


class _One:
    """Stands for the bundle of a group of which only the answers are of interest."""

    size_bytes = 0

    def __len__(self) -> int:
        return 1


class LoneGroup(PushGroup):
    """The answers to pushes that travel alone, one after the other."""

    __slots__ = ()

    def __init__(self, topic: str) -> None:
        super().__init__(0, _One())  # type: ignore[arg-type]  # nobody asks it for the bundle
        self.topic = topic

    def begin(self) -> None:
        """Wait for the answer to the next push."""
        self.acks.clear()
        self.acked_count, self.error, self.is_lost, self.archives_as = 0, None, False, ""


class PushChannel(Channel):
    """A channel that bundles are pushed over."""

    has_lone_lane = True
    """Whether pushes may go by a `lone_lane.LoneLane`, if the worker knows it."""

    def __init__(self, exchange: Exchange, directory: WorkerDirectory, core: int, client_name: str) -> None:
        super().__init__(exchange, directory, core, client_name)
        self._groups: dict[int, PushGroup] = {}
        self._declared: set[int] = set()
        self._declared_bytes = 0
        self._arena: ArenaProducer | None = None
        self._configured_bytes = 0
        """Size of the first arena that the worker gave on this connection."""
        self._attach_tag = 0
        """Tag of the arena request that is under way; 0: none."""
        self._attach_bytes = 0
        self._reserved_for: PushGroup | None = None
        """The group that goes next, because the arena is being replaced for it."""

    def try_send(self, group: PushGroup, topic: str) -> bool:
        """Lay a group's bundles into the arena and send them; the channel must be open.

        Returns:
            False: not now, because the arena is full or being replaced. Try again when the exchange has handled something.

        Raises:
            InvalidBundle, ArrowError: a bundle could not be encoded in place, or has longer schemas than any connection takes; nothing
                was sent.
            QuiverError: the worker refused an arena for it.
        """
        if group.error is not None:
            raise group.error
        if self._reserved_for not in (None, group):
            return False
        if self._is_overdrawn_by(group):
            self._renew_for(group)
            return False
        arena = self._arena_for(group)
        offset = arena.reserve(group.size_bytes) if arena is not None else None
        if arena is None or offset is None:
            return False
        try:
            rows = group.planned.write(arena.ring, offset)
        except BaseException:
            arena.cancel()
            raise
        self._send_group(group, topic, rows, offset, arena.commit(group.size_bytes))
        return True

    def send_lone(self, group: LoneGroup, lone: LoneEntry, patience_ms: int) -> int:
        """Lay a bundle into the arena and send it as one struct, if nothing else is under way and the worker knows its schema.

        Returns:
            The tag of the push; 0: nothing has happened, and it has to go the general way.
        """
        entry, stream, crc, row_count, metadata_bytes, _, padding_bytes, item_count = lone
        arena, connection = self._arena, self._connection
        if (
            self._groups
            or self._reserved_for is not None
            or arena is None
            or connection is None
            or arena.size_bytes != self._configured_bytes
            or len(entry) > arena.size_bytes
            or stream.handle not in self._declared
        ):
            return 0
        placed = arena.put(entry)
        if placed is None:
            return 0
        tag = self._calls.next_tag()
        self._groups[tag] = group
        start = LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH, padding_bytes, crc, tag
        rest = len(entry), stream.handle, row_count, metadata_bytes, patience_ms, item_count
        if connection.send_frames(LONE_PUSH.pack(*start, *placed, *rest)):
            self._exchange.watch_writable(connection.fileno(), wanted=True)
        return tag

    def receive_lone(self, tag: int) -> LoneAck | None:
        """Read once, and return the acknowledgement of a lone push, if that is all that there is. Else handle what has come."""
        connection = self._connection
        if connection is None:
            return None
        ack = connection.receive_ack()
        if ack is not None and ack[_ACK_TAG] == tag and self._groups.pop(tag, None) is not None:
            return ack
        if ack is not None:
            self._fail_protocol(f"it acknowledged push {ack[_ACK_TAG]}, which is not what was pushed")
        self.handle_events(select.EPOLLIN)
        return None

    @property
    def number(self) -> int:
        """The number by which the exchange knows the connection; -1: there is none."""
        return -1 if self._connection is None else self._connection.fileno()

    def withdraw(self, group: PushGroup) -> None:
        """Withdraw a group for its owner. A group that was sent may still be stored; the answer will be ignored."""
        if self._reserved_for is group:
            self._reserved_for = None
            self._exchange.notify()

    def _send_group(self, group: PushGroup, topic: str, rows: PushRows, offset: int, end_position: int) -> None:
        tag = self.next_tag()
        self._groups[tag] = group
        group.topic = topic
        messages = self._declarations(rows.streams)
        push = rows.push(tag, topic, offset, group.size_bytes, end_position, group.patience_ms(), group.call)
        messages.append(group.target.of(push) if group.target else push)
        self.send(messages)
        if self._reserved_for is group:
            self._reserved_for = None
            self._exchange.notify()

    def _declarations(self, streams: set[EncodedStream]) -> list[Message]:
        """The schemas that this connection has not been told of yet."""
        new = [stream for stream in streams if stream.handle not in self._declared]
        if not new:
            return []
        self._declared.update(stream.handle for stream in new)
        self._declared_bytes += sum(len(stream.message) for stream in new)
        return [
            DeclareSchema(stream.handle, stream.topic, stream.slot_id, stream.fingerprint, stream.message)
            for stream in new
        ]

    def _is_overdrawn_by(self, group: PushGroup) -> bool:
        """Whether the group has more new schemas than the connection takes.

        Raises:
            InvalidBundle: no connection would take them.
        """
        # Without a look at them: each message stands in the group's bytes, too.
        may_have_too_many = len(self._declared) > DECLARED_MAX - group.planned.streams_max
        if not may_have_too_many and self._declared_bytes + group.size_bytes <= DECLARED_BYTES_MAX:
            return False
        new = [stream for stream in group.planned.streams if stream.handle not in self._declared]
        new_bytes = sum(len(stream.message) for stream in new)
        if new_bytes > DECLARED_BYTES_MAX:
            raise InvalidBundle(
                f"the schemas of one bundle take {new_bytes} bytes ({format_size(new_bytes)}), the limit is {DECLARED_BYTES_MAX} "
                f"({format_size(DECLARED_BYTES_MAX)}): push its slots in several bundles"
            )
        return len(self._declared) + len(new) > DECLARED_MAX or self._declared_bytes + new_bytes > DECLARED_BYTES_MAX

    def _renew_for(self, group: PushGroup) -> None:
        """Connect anew, so that the worker forgets the schemas; once nothing is under way."""
        self._reserved_for = group
        if not self._groups:
            self._lose(WorkerUnavailable("more schemas were pushed over one connection than a worker remembers"), 0)
            self.retry_at_ns = 0

    def _arena_for(self, group: PushGroup) -> ArenaProducer | None:
        """Return the arena if the group fits through it; else start to replace the arena and return None."""
        arena = self._arena
        configured_bytes = self._configured_bytes
        is_large = 0 < configured_bytes < group.size_bytes
        if (
            arena is not None
            and group.size_bytes <= arena.size_bytes
            and (arena.size_bytes > configured_bytes) == is_large
        ):
            return arena
        self._reserved_for = group
        if not self._groups and not self._attach_tag:
            self._drop_arena()
            self._attach_tag = self.next_tag()
            self._attach_bytes = group.size_bytes if is_large else CONFIGURED_ARENA_BYTES
            self.send([AttachArena(self._attach_tag, self._attach_bytes)])
        return None

    # --- what the worker says --------------------------------------------------------------------------------------------

    def _received(self, message: WorkerMessage, descriptor: int | None) -> bool:
        if isinstance(message, Acked):
            for run in message.runs:
                self._acknowledge(run, message.durability, message.archives_as)
        elif isinstance(message, ArenaAttached):
            self._attach(message, descriptor)
        elif isinstance(message, Refused):
            self._refuse(message)
        else:
            return False
        return True

    def _acknowledge(self, run: AckRun, durability: int, archives_as: str) -> None:
        group = self._groups.get(run.tag)
        if group is None or group.acked_count + run.count > len(group.planned):
            self._fail_protocol(f"it acknowledged {run.count} bundles of push {run.tag}, which is not what was pushed")
            return
        group.acks.append((run, durability))
        group.acked_count += run.count
        group.archives_as = archives_as
        if group.is_acked:
            del self._groups[run.tag]

    def _refuse(self, refused: Refused) -> None:
        error = refusal_error(refused)
        group = self._groups.pop(refused.tag, None)
        if refused.tag == self._attach_tag:
            self._attach_tag = 0
            group, self._reserved_for = self._reserved_for, None
        if group is not None:
            group.error = error
            self._note_refusal(error, group.topic)

    def _attach(self, message: ArenaAttached, descriptor: int | None) -> None:
        assert descriptor is not None, "the connection checks that this message carries a descriptor"
        if message.tag != self._attach_tag or message.size_bytes < self._attach_bytes:
            os.close(descriptor)
            self._fail_protocol(f"it gave an arena of {message.size_bytes} bytes, asked for {self._attach_bytes}")
            return
        self._attach_tag = 0
        try:
            self._arena = ArenaProducer.attach(descriptor, message.size_bytes)
        except ShmError as error:
            if self._reserved_for is not None:
                self._reserved_for.error = SharedMemoryError(f"the arena of worker {self.core} cannot be used: {error}")
                self._reserved_for = None
            return
        finally:
            os.close(descriptor)
        self._configured_bytes = self._configured_bytes or message.size_bytes

    def _fail_protocol(self, what: str) -> None:
        self._fail_connection(ProtocolError(f"worker {self.core} broke the protocol: {what}"))

    def _lost(self) -> None:
        for group in self._groups.values():
            group.is_lost = True
        self._groups.clear()
        self._declared.clear()
        self._declared_bytes = 0
        self._attach_tag = 0
        self._reserved_for = None
        self._configured_bytes = 0
        self._drop_arena()

    def _drop_arena(self) -> None:
        if self._arena is not None:
            self._arena.close()
            self._arena = None
