"""Specimens of control messages, schemas and pushes, and how a changed push is mended."""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.base.protocol import messages
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.base.protocol.lone import (
    KIND_ACK,
    KIND_PUSH,
    LONE_ACK,
    LONE_ACK_LENGTH,
    LONE_MARK,
    LONE_PUSH,
    LONE_PUSH_LENGTH,
)
from quiver_actors.base.protocol.messages import ENTRY_ROW, Message, Push
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal import layout
from tests.disks.simulated import SimDisk
from tests.fuzz.corpus import DIRECTORY, U32, Specimen, small_bundles
from tests.support.engine_driver import EngineDriver

_PUSH_HEAD = struct.Struct("<4I")


@functools.cache
def frame_specimens() -> list[Specimen]:
    """A client's and a worker's side of a conversation, all kinds of messages in each."""
    return [_frames(_client_messages()), _frames(_worker_messages())]


def _frames(spoken: Sequence[Message | bytes]) -> Specimen:
    frames = [encode_frame(message) if isinstance(message, Message) else message for message in spoken]
    starts = [sum(map(len, frames[:number])) for number in range(len(frames))]
    return Specimen(b"".join(frames), [(start, 4) for start in starts], lambda mutant: None)


def _client_messages() -> list[Message | bytes]:
    return [
        messages.Hello(1, 4711, "client"),
        messages.AttachArena(1, 1 << 20),
        messages.DeclareSchema(1, "default", 0, bytes(32), bytes(64)),
        Push(2, "default", 0, 64, 64, bytes(40), bytes(40), b""),
        messages.Flush(3, "default"),
        messages.ListSegments(4, "default"),
        messages.OpenSegment(5, "default", 7),
        messages.CheckSegment(6, "default", 7, "checksum"),
        messages.CountPruned(6, "default", 12),
        messages.Register(6, "default", "reader", "earliest"),
        messages.Unregister(7, "default", "reader"),
        messages.Credit("default", "reader", 64),
        messages.Resolve(8, "default", "reader", 7, 4711, "ack", bytes(8), 5),
        messages.FlushProgress(9, "default", "reader"),
        messages.Taken("default", "reader", 7, 4711, bytes(8)),
        messages.Extend(10, "default", "reader", bytes(16)),
        messages.ClaimRef(11, "default", "reader", 7, 1),
        messages.AckThrough(12, "default", "reader", 7, 1),
        messages.GapAck(13, "default", "reader", 3),
        messages.Pending(14, "default", "reader"),
        messages.ListSubscribers(15, "default"),
        LONE_PUSH.pack(LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH, 0, 1, 2, 0, 128, 128, 1, 3, 64, 1000, -1),
    ]


def _worker_messages() -> list[Message | bytes]:
    return [
        messages.Welcome(1, 0, "00" * 16, 4711, [messages.TopicInfo("default", {"a": 1}, "wal", 0)]),
        messages.ArenaAttached(1, 1 << 20),
        messages.Acked(1, [messages.AckRun(1, 2, 3, 4, 5)]),
        messages.Refused(1, "storage_full", "no room", 5),
        messages.Done(1),
        LONE_ACK.pack(LONE_ACK_LENGTH, LONE_MARK, KIND_ACK, 1, 0, 2, 3, 4),
        messages.SegmentList(1, [messages.SegmentInfo(1, 2, 3, 4, 5, 6)]),
        messages.SegmentOpened(1, "default", 7, 4096),
        messages.Deliver("default", "reader", 7, bytes(8), 4711, bytes(4)),
        messages.SegmentRetired("default", "reader", 7),
        messages.Gap("default", "reader", 3, 7, 1, 2, 2, -1, "damaged"),
    ]


def _laid_out() -> tuple[memoryview, Push, dict[int, StreamSchema]]:
    return EngineDriver(SimDisk(), directory=DIRECTORY).layout(small_bundles())


@functools.cache
def schema_specimens() -> list[Specimen]:
    """Schema messages as clients declare them."""
    nested = pa.struct([pa.field("d", pa.dictionary(pa.int8(), pa.string())), pa.field("l", pa.list_(pa.int64()))])
    wide = pa.schema([("s", nested), ("m", pa.map_(pa.string(), nested))], metadata={"owner": "tests"})
    encoded = [schema.message for schema in push_schemas().values()]
    return [_words_of(message) for message in [*encoded, wide.serialize().to_pybytes()]]


def _words_of(content: bytes) -> Specimen:
    return Specimen(content, [(at, 4) for at in range(0, len(content) - 4, 4)], lambda mutant: None)


@functools.cache
def push_schemas() -> dict[int, StreamSchema]:
    """What the connection of `push_specimens` has declared, by handle."""
    return _laid_out_once()[2]


@functools.cache
def _laid_out_once() -> tuple[memoryview, Push, dict[int, StreamSchema]]:
    return _laid_out()


@functools.cache
def push_specimens() -> list[Specimen]:
    """Rows and span of one push behind each other; four lengths in front say where each ends."""
    span, push, _ = _laid_out_once()
    head = _PUSH_HEAD.pack(len(push.entries), len(push.slots), len(push.dictionaries), len(span))
    content = head + push.entries + push.slots + push.dictionaries + bytes(span)
    rows_end = len(content) - len(span)
    return [Specimen(content, [(at, 4) for at in range(16, rows_end, 4)], mend_push)]


def split_push(content: bytes) -> tuple[memoryview, Push]:
    """A mutant of `push_specimens` as a worker sees it."""
    if len(content) < _PUSH_HEAD.size:
        content = content.ljust(_PUSH_HEAD.size, b"\0")
    sizes = [min(size, len(content)) for size in _PUSH_HEAD.unpack_from(content)]
    parts, at = [], _PUSH_HEAD.size
    for size in sizes:
        parts.append(content[at : at + size])
        at += size
    span = memoryview(bytearray(parts[3]))
    return span, Push(1, "default", 0, len(span), len(span), parts[0], parts[1], parts[2])


def mend_push(content: bytearray) -> None:
    """Give each entry row the CRC of the slots that it stands for."""
    if len(content) < _PUSH_HEAD.size:
        return
    entries, slots, dictionaries, span_bytes = _PUSH_HEAD.unpack_from(content)
    at = _PUSH_HEAD.size + entries + slots + dictionaries
    end = min(len(content), at + span_bytes)
    rows_end = min(_PUSH_HEAD.size + entries, len(content))
    for row in range(_PUSH_HEAD.size, rows_end - ENTRY_ROW.size + 1, ENTRY_ROW.size):
        (entry_bytes,) = U32.unpack_from(content, row)
        if at + entry_bytes > end or entry_bytes < 33:
            return
        slots_bytes = memoryview(content)[at + layout.ENTRY_HEAD.size : at + entry_bytes - 4]
        U32.pack_into(content, row + 4, crc32(slots_bytes))
        at += entry_bytes
