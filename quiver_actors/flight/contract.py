"""What is asked of a node, wherever it is: requests and answers as they travel (JSON), and the interface of both sides.

`LocalNode` carries them out with a client of this host's workers, `RemoteNode` sends them to the Flight server of another host, which
hands them to a `LocalNode` there. Reads are tickets of `DoGet`; everything else is an action named after the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from quiver_actors.protocol.messages import Gap, SegmentInfo


class BundleRange(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Bundles `[bundle_start, bundle_end)` of one segment."""

    core: int
    segment_seq: int
    bundle_start: int
    bundle_end: int


class HoldTerms(msgspec.Struct, frozen=True):
    """A subscriber that keeps what it has not acknowledged."""

    subscriber: str
    ttl_ns: int
    starts: dict[int, tuple[int, int]]
    """By core: the first (segment, bundle) that it needs where it is new; other cores from the earliest."""
    needs_all: bool = False
    """Where it would be new, and what it needs is gone, it is not made: so it stays new, and the loss is told again the next time."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """What a topic holds now. With `flush` all that was acknowledged before is in it; with `hold` the subscriber is attached."""

    topic: str
    flush: bool = False
    hold: HoldTerms | None = None


class CoreContents(msgspec.Struct, frozen=True):
    core: int
    segments: list[SegmentInfo]
    """Sealed, oldest first."""
    gaps: list[Gap] = []
    """Of the hold's subscriber, not confirmed yet."""
    oldest: tuple[int, int] | None = None
    """(segment, bundle) of the oldest bundle that the hold's subscriber has not acknowledged."""
    is_new: bool = False
    """The hold's subscriber was not known to this worker before this look."""
    is_leaving: bool = False
    """Nothing more will come, and the node waits for the hold's subscriber."""
    unsettled: list[int] = []
    """Of a hold: numbers of other segments, which are to come, or a notice of their loss. Rising."""
    next_segment_seq: int = -1
    """Of a hold: no segment has had this number or a higher one; -1: not said."""
    incarnation: str = ""
    """Of a hold: of the directory that these numbers are of; empty: not said."""

    def begins_behind(self, start: tuple[int, int]) -> bool:
        """Whether bundles from `start` (segment, bundle) on may have been deleted, as nobody held them."""
        first = min((info.segment_seq for info in self.segments), default=start[0])
        return start != (0, 0) and (first > start[0] or (start[1] > 0 and not self.segments))


class Contents(msgspec.Struct, frozen=True):
    node: str
    slots: dict[str, int]
    """The topic's slot table, empty if it declares none."""
    cores: list[CoreContents]


class AskSchemas(msgspec.Struct, frozen=True, tag=True):
    """Every schema of everything that is sealed."""

    topic: str


class Schemas(msgspec.Struct, frozen=True):
    by_slot: dict[int, list[bytes]]
    """Arrow IPC schema messages by slot id."""


class AskSlotRows(msgspec.Struct, frozen=True, tag=True):
    """How many rows sealed segments have in each slot, from their directories: no bundle is read."""

    topic: str
    segments: dict[int, list[int]]
    """Numbers by core."""


class SlotRows(msgspec.Struct, frozen=True):
    by_core: dict[int, dict[int, dict[int, int]]]
    """Core, segment, slot: rows. A slot that a segment does not have is not named, nor is a segment that is not there any more."""


class AskWeights(msgspec.Struct, frozen=True, tag=True):
    """What each bundle of one segment weighs."""

    topic: str
    core: int
    segment_seq: int
    slots: list[int] | None
    """Count the rows of these only."""


class Weights(msgspec.Struct, frozen=True):
    """One value for each bundle."""

    rows: list[int]
    size_bytes: list[int]
    ingestion_unix_ns: list[int]


class Acknowledge(msgspec.Struct, frozen=True, tag=True):
    """The subscriber needs nothing up to and including that bundle any more; durable when answered."""

    topic: str
    subscriber: str
    core: int
    segment_seq: int
    bundle_index: int


class ConfirmGap(msgspec.Struct, frozen=True, tag=True):
    topic: str
    subscriber: str
    core: int
    notice: int


class Publish(msgspec.Struct, frozen=True, tag=True):
    """Make prepared bundles of this node visible; their decision is made. Tokens are encoded."""

    tokens: list[str]


class DropRun(msgspec.Struct, frozen=True, tag=True):
    """Drop everything that this node holds of one epoch of a transaction, prepared or not; its abort is decided."""

    topic: str
    txn_id: str
    epoch: int


class Done(msgspec.Struct, frozen=True):
    """Nothing to say."""


Request = Look | AskSchemas | AskSlotRows | AskWeights | Acknowledge | ConfirmGap | Publish | DropRun


class ReadTicket(msgspec.Struct, frozen=True):
    """Rows of bundle ranges as batches of exactly one schema."""

    topic: str
    slots: dict[str, int]
    """Selected: name of the column (with several) and slot id."""
    ranges: list[BundleRange]
    schema: bytes
    """Arrow IPC schema message of the batches wanted."""
    skip_missing: bool = False
    """Leave out segments that are not stored any more instead of failing."""
    required: list[int] = []
    """Leave out bundles that lack one of these slots, unread."""


class Node(Protocol):
    """One node. Methods raise QuiverError; `NotRunning` and `WorkerUnavailable` where it cannot be reached."""

    @property
    def name(self) -> str: ...

    def look(self, request: Look) -> Contents: ...

    def schemas(self, topic: str) -> Schemas: ...

    def slot_rows(self, request: AskSlotRows) -> SlotRows: ...

    def weights(self, request: AskWeights) -> Weights: ...

    def acknowledge(self, request: Acknowledge) -> None: ...

    def confirm_gap(self, request: ConfirmGap) -> None: ...

    def publish(self, tokens: Sequence[str]) -> None: ...

    def drop_run(self, request: DropRun) -> None: ...

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]: ...


def schema_bytes(schema: pa.Schema) -> bytes:
    return bytes(schema.serialize())


def schema_of(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))
