"""The two small files of transactions in an engine's directory. Pure codec.

Source: docs/formats.md section 10, "Transactions".

`staged/<16 digits>.prepared`: one prepared stage. Its name makes the stage durable: without it the parts of the stage are nothing.
`quiver.transactions`: what the engine has to remember of stages that are no longer there, and of those that it is publishing.

Both are one frame: a header, a body, and the CRC-32 of both. The body is one msgpack map, keys as the fields below; unknown ones are
skipped.

The parts of a stage are log files (`store.wal.layout`) with entries of type 2, `staged/<16 digits>.<4 digits>.stage`, under segment
number 0. An entry of type 2 says its place in its file instead of a sequence: 0, 1, 2, ... So publishing only has to write a new header,
and no byte of an entry is ever written twice. Bundle i of the published segment has the sequence `first_sequence + i`, as in all segments.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import InvalidFormat
from quiver_actors.store.format.fields import Field, FieldTable
from quiver_actors.store.format.framing import Framing, Place

STAGE_MAGIC = b"QUIVSTG\0"
JOURNAL_MAGIC = b"QUIVTXN\0"
DROPPED_MAX = 10_000
"""How many dropped stages are remembered one by one."""
PUBLISHED_MAX = 512
"""How many published stages are remembered with their segments, for a restore."""
RECORD_TABLE = FieldTable(
    "record",
    Field("magic", "8s", "the kind of record"),
    Field("version", "H", constant=1),
    Field("header_size", "H", "a reader skips what it does not know", 16),
    Field("body_bytes", "I", "bytes of the msgpack behind the header"),
)


class StageOrder(msgspec.Struct, frozen=True):
    """The purpose of a stage: transaction, epoch, partition and attempt."""

    txn_id: str
    epoch: int
    partition: int
    attempt: int
    decisions: str
    """Where the decision about the stage is made; empty: in the node's own log."""
    ttl_ns: int


class PartRecord(msgspec.Struct, frozen=True):
    """One file of a stage, complete."""

    bundles: int
    rows: int
    size_bytes: int
    """Where the last entry ends; what follows in the file does not belong to the stage."""
    crc32: int
    """CRC-32 of all entries; the header in front of them is written anew when the part is published."""
    item_counts: bytes = b""
    """i64 array, -1 where unknown; empty if none is known."""


class PreparedRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One prepared stage."""

    number: int
    order: StageOrder
    incarnation: bytes
    cfg_hash: bytes
    """`segment_cfg_hash` of the topic when it was staged."""
    parts: list[PartRecord]
    prepared_unix_ns: int
    expires_unix_ns: int
    is_awaited: bool = False
    """Somebody waits until its bundles are in the archive: the archiver uploads them at once."""


class PublishingRecord(msgspec.Struct, frozen=True):
    """Where one part of a stage becomes visible. Once it is durable, the part does."""

    number: int
    part: int
    segment_seq: int
    first_sequence: int
    position_start: int


class DroppedRecord(msgspec.Struct, frozen=True):
    """A stage that was prepared and will never be visible."""

    number: int
    txn_id: str
    epoch: int
    reason: str
    dropped_unix_ns: int


class PublishedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Where a stage has become visible, or is about to: a restore compares it with what was archived."""

    number: int
    first_segment_seq: int
    last_segment_seq: int
    """The segments of its parts follow each other."""


class JournalRecord(msgspec.Struct, frozen=True):
    """`quiver.transactions`. A number below `next_number` that is neither prepared nor dropped was published."""

    next_number: int = 1
    publishing: list[PublishingRecord] = []
    dropped: list[DroppedRecord] = []
    """The newest dropped stages, by rising number."""
    dropped_floor: int = 0
    """Dropped stages with lower numbers have no record any more."""
    carried: list[int] = []
    """Numbers below `dropped_floor` of stages that `quiver restore` has brought back: what became of each of them is known."""
    published: list[PublishedRecord] = []
    """The newest published stages, in the order of their segments."""
    restored_as_of_unix_ns: int = 0
    """UNIX time of the state from which `quiver restore` has made the directory; 0: it was never restored."""

    def was_published(self, number: int) -> bool | None:
        """Whether a stage that is not prepared any more was published; None: nobody can tell."""
        if any(record.number == number for record in self.dropped):
            return False
        is_known = self.dropped_floor <= number < self.next_number or number in self.carried
        return True if is_known or any(record.number == number for record in self.published) else None

    def why_unknown(self, number: int) -> str:
        """Say why nobody can tell what became of a stage, and what to do."""
        if not self.restored_as_of_unix_ns:
            return f"stage {number} is too old to tell whether it was published or dropped"
        as_of = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.restored_as_of_unix_ns / SECOND_NS))
        return (
            f"stage {number} is of the node that died: its directory was restored from its archive as of {as_of}, which does not say what "
            "became of the stage. It was published long before, or came too late to be archived and is lost. What other workers and nodes "
            "have of its transaction may be visible. Look which of its rows are there, and store those that are missing under another "
            "transaction id; a streaming query goes on from a new checkpoint"
        )

    def with_published(self, places: Iterable[PublishingRecord]) -> JournalRecord:
        """The record with stages as published at these places. The oldest are forgotten where there are too many."""
        found = {record.number: record for record in self.published}
        for place in places:
            first = last = place.segment_seq
            if place.number in found:
                first = min(first, found[place.number].first_segment_seq)
                last = max(last, found[place.number].last_segment_seq)
            found[place.number] = PublishedRecord(place.number, first, last)
        if found.keys() == {record.number for record in self.published}:
            return self
        ordered = sorted(found.values(), key=lambda record: record.first_segment_seq)
        return msgspec.structs.replace(self, published=ordered[-PUBLISHED_MAX:])

    def with_dropped(self, new: Iterable[DroppedRecord]) -> JournalRecord:
        """The record with more stages as dropped. The oldest are forgotten where there are too many."""
        ordered = sorted([*self.dropped, *new], key=lambda record: record.number)
        kept = ordered[-DROPPED_MAX:]
        forgotten = {record.number for record in ordered[: len(ordered) - len(kept)]}
        gone = {record.number for record in ordered} if self.published else set()
        return msgspec.structs.replace(
            self,
            dropped=kept,
            dropped_floor=max(self.dropped_floor, kept[0].number) if forgotten else self.dropped_floor,
            carried=[number for number in self.carried if number not in forgotten],
            published=[record for record in self.published if record.number not in gone],
        )


R = TypeVar("R", PreparedRecord, JournalRecord)


def encode_prepared(record: PreparedRecord) -> bytes:
    """Return the content of a `.prepared` file."""
    return encode_frame(STAGE_MAGIC, record)


def decode_prepared(data: bytes) -> PreparedRecord:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    return _decode(STAGE_MAGIC, data, PreparedRecord)


def encode_journal(record: JournalRecord) -> bytes:
    """Return the content of `quiver.transactions`."""
    return encode_frame(JOURNAL_MAGIC, record)


def decode_journal(data: bytes) -> JournalRecord:
    """Raises Truncated, InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    return _decode(JOURNAL_MAGIC, data, JournalRecord)


def encode_frame(magic: bytes, content: object) -> bytes:
    """A frame as drawn above around any content that msgpack can hold."""
    body = msgspec.msgpack.encode(content)
    framing = record_framing(magic, "")
    return framing.seal(framing.table.pack(body_bytes=len(body)) + body)


def decode_frame(magic: bytes, data: bytes, name: str) -> memoryview:
    """The content of a frame, as msgpack. Raises as `Framing.open`."""
    framing = record_framing(magic, name)
    return framing.open(data)[framing.table.unpack(data)["header_size"] :]


def record_framing(magic: bytes, name: str) -> Framing:
    """Return the framing of the records with that magic; `name` is for messages."""
    first, *others = RECORD_TABLE.fields
    return Framing(name, FieldTable(RECORD_TABLE.name, first._replace(constant=magic), *others), Place.BODY)


def _decode(magic: bytes, data: bytes, kind: type[R]) -> R:
    try:
        return msgspec.msgpack.decode(decode_frame(magic, data, kind.__name__), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{kind.__name__}: {error}") from error
