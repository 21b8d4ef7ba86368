"""Requests to a node and their answers, as they travel (JSON), and the interface that both sides implement.

`LocalNode` carries them out with a client of this host's workers, `RemoteNode` sends them to the Flight server of another host, which
hands them to a `LocalNode` there. Reads are tickets of `DoGet`; everything else is an action named after the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec
import pyarrow as pa

from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.flight import archived_contents
from quiver_actors.flight.archived_contents import ArchivedNames, ArchivedPart, ArchiveTerms, DiskNumbers

ERROR_PREFIX = "quiver:"
"""How a server marks the message of an error that is one of ours: `quiver:<code>:<message>`."""


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
    """The first (segment, bundle) that a new subscriber needs, by core; other cores begin with their earliest bundle."""
    needs_all: bool = False
    """Where it would be new, and what it needs is gone, it is not made: so it stays new, and the loss is told again the next time."""


class RetiredTerms(msgspec.Struct, frozen=True):
    """The cores that the node does not have any more and that the asker wants."""

    cores: list[int] | None = None
    """Only these, those that the node has among them; None: all."""


class Look(msgspec.Struct, frozen=True, tag=True):
    """Ask for the contents of a topic. With `flush` all that was acknowledged before is in it; with `hold` the subscriber is attached."""

    topic: str
    flush: bool = False
    hold: HoldTerms | None = None
    reads_unsealed: bool = False
    """Whether the asker knows `CoreContents.unsealed`. If it does, bundles that can be read before their seal are not sealed for it."""
    archive: ArchiveTerms | None = None
    """What the asker wants of the node's archive, if the disk has no more of it; None: nothing. An older node knows no such thing."""
    retired: RetiredTerms | None = None
    """Which cores are told of that the node does not have any more; None: none. An older node knows no such thing."""


class CoreContents(msgspec.Struct, frozen=True):
    """Contents of a topic on one core of a node, and the progress of a hold's subscriber there."""

    core: int
    segments: list[SegmentInfo]
    """Sealed, oldest first."""
    gaps: list[Gap] = []
    """Unconfirmed gap notices of the hold's subscriber."""
    oldest: tuple[int, int] | None = None
    """(segment, bundle) of the oldest bundle that the hold's subscriber has not acknowledged."""
    is_new: bool = False
    """The hold's subscriber was not known to this worker before this look."""
    is_leaving: bool = False
    """Nothing more will come, and the node waits for the hold's subscriber."""
    unsettled: list[int] = []
    """Rising numbers of segments that will still come, or be announced as lost. Set only with a hold."""
    next_segment_seq: int = -1
    """No segment has had this number or a higher one; -1: the worker did not say. Set only with a hold."""
    incarnation: str = ""
    """Incarnation of the directory that these numbers belong to; empty: the worker did not say."""
    unsealed: list[SegmentInfo] = []
    """Not sealed, oldest first, behind `segments`: what can be read of them already. Rows are not counted: `row_count` is -1. Nothing
    comes to any but the last of them. Set only for those who say that they know it."""

    comes_next: int = -1
    """The least segment number that anything stored later can have; -1: the worker did not say."""
    archived: ArchivedPart | None = None
    """What the disk lacks and the archive has, from where the asker begins; None: it was not asked, or there is none."""
    is_retired: bool = False
    """The node does not have the core any more: all of it was delivered, and what is left of it is archived."""
    unsealed_from: tuple[int, int] | None = None
    """Segment number and log position at which begins what is not sealed, or the next log will; None: not said, as by an older node."""

    @property
    def readable(self) -> list[SegmentInfo]:
        """All segments, oldest first, with the bundles of them that can be read, wherever they are: each where more of it is."""
        here = {info.segment_seq: info for info in (*self.segments, *self.unsealed)}
        in_archive = {} if self.archived is None else {info.segment_seq: info for info in self.archived.segments}
        return [info for _, info in sorted({**here, **in_archive}.items())]

    @property
    def disk(self) -> DiskNumbers:
        """The numbers that the disk accounts for."""
        on_disk = sorted([*self.segments, *self.unsealed], key=lambda info: info.segment_seq)
        return DiskNumbers(on_disk, self.unsettled, self.comes_next)

    def begins_behind(self, start: tuple[int, int]) -> bool:
        """Whether bundles from `start` (segment, bundle) on may have been deleted, as nobody held them."""
        if self.archived is not None:
            return archived_contents.begins_behind(self.disk, self.archived, start)
        stored = [info.segment_seq for info in self.readable]
        return start != (0, 0) and (min(stored, default=start[0]) > start[0] or (start[1] > 0 and not stored))


class Contents(msgspec.Struct, frozen=True):
    """Answer to `Look`: what a node stores of a topic, by core."""

    node: str
    slots: dict[str, int]
    """The topic's slot table, empty if it declares none."""
    cores: list[CoreContents]


class AskSchemas(msgspec.Struct, frozen=True, tag=True):
    """Every schema of everything that can be read, sealed or not."""

    topic: str
    archive: bool = False
    """Whether what has left the disk and is in the archive counts, too. An older node knows no such thing."""


class Schemas(msgspec.Struct, frozen=True):
    """Answer to `AskSchemas`: the distinct schemas of a topic's stored streams."""

    by_slot: dict[int, list[bytes]]
    """Arrow IPC schema messages by slot id."""


class ColumnTerm(msgspec.Struct, frozen=True, array_like=True):
    """A comparison of a column with literals; see `query.conditions.Term`."""

    column: str
    kind: str
    values: tuple[str, ...]


class WantedRows(msgspec.Struct, frozen=True):
    """Rows of a slot for which all terms are true, once they conform to a schema."""

    slot: int
    schema: bytes
    """Arrow IPC schema message with the columns of the terms."""
    terms: list[ColumnTerm]


class AskSlotRows(msgspec.Struct, frozen=True, tag=True):
    """How many rows segments have in each slot: sealed ones by their directories, no bundle of which is read."""

    topic: str
    segments: dict[int, list[int]]
    """Numbers of sealed segments by core."""
    ranges: list[BundleRange] = []
    """Bundles of segments that are not sealed: the rows of these only."""
    wanted: WantedRows | None = None
    """Say, too, which sealed segments of the topic have none of these rows, by their statistics."""
    archived: dict[int, ArchivedNames] = {}
    """The same is asked of these segments, which the archive alone has, by core."""


class SlotRows(msgspec.Struct, frozen=True):
    """Answer to `AskSlotRows`: how many rows segments have in each slot."""

    by_core: dict[int, dict[int, dict[int, int]]]
    """Core, segment, slot: rows. A slot that a segment does not have is not named, nor is a segment that is not there any more."""
    unmatched: dict[int, list[int]] = {}
    """Sealed segments by core that certainly have none of the wanted rows. An older node names none."""


class AskWeights(msgspec.Struct, frozen=True, tag=True):
    """Ask for rows, bytes and ingestion time of each bundle of one segment."""

    topic: str
    core: int
    segment_seq: int
    slots: list[int] | None
    """Count the rows of these only."""
    bundle_start: int = 0
    bundle_end: int = -1
    """Only the bundles `[bundle_start, bundle_end)` count; -1: up to the last one of a segment, which must be sealed."""


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
    """Acknowledge a gap notice of a hold's subscriber, so that it is not sent again."""

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
    """Answer to a request that returns nothing."""


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
    verify_checksums: bool = True
    """Prove each bundle against its checksum, whole, before its rows are given."""
    archived: ArchivedNames | None = None
    """Segments of the ranges that the archive alone has, all of one core; None: there are none. Others are read from the disk, or, if they
    have left it meanwhile, from the archive, too."""


class TableTicket(msgspec.Struct, frozen=True, tag="table", tag_field="kind"):
    """Everything that a slot of a topic holds when it is read, in the schema that it has then."""

    topic: str
    slot: int
    start_ns: int | None = None
    """Only bundles of that ingestion time or later, UNIX nanoseconds, archived ones included. None: what is on the disk."""
    end_ns: int | None = None
    """Only bundles that were ingested before."""


class SqlTicket(msgspec.Struct, frozen=True, tag="sql", tag_field="kind"):
    """The rows of a SQL statement over the topics that the caller may read, when they are read."""

    statement: str
    start_ns: int | None = None
    end_ns: int | None = None
    """What the topics hold to the statement, as of `TableTicket`."""


class Node(Protocol):
    """One node. Methods raise QuiverError; `NotRunning` and `WorkerUnavailable` where it cannot be reached."""

    @property
    def name(self) -> str:
        """Name under which the node is announced."""

    def look(self, request: Look) -> Contents:
        """Return what the node stores of a topic, and hold it for a subscriber if the request asks for that."""

    def schemas(self, topic: str, *, archive: bool = False) -> Schemas:
        """Return the distinct schemas of a topic's stored streams, by slot; with `archive` also of those that have left the disk."""

    def slot_rows(self, request: AskSlotRows) -> SlotRows:
        """Return the rows of each slot in the segments that the request names."""

    def weights(self, request: AskWeights) -> Weights:
        """Return rows and stored bytes of each bundle of one segment, for planning."""

    def acknowledge(self, request: Acknowledge) -> None:
        """Resolve everything up to and including a bundle for a subscriber; durable on return."""

    def confirm_gap(self, request: ConfirmGap) -> None:
        """Acknowledge a gap notice of a hold's subscriber."""

    def publish(self, tokens: Sequence[str]) -> None:
        """Publish the stages of these tokens, all that a decision has for this node, and drop the run's other stages."""

    def drop_run(self, request: DropRun) -> None:
        """Drop what the node holds of an aborted run; a token that was committed is refused."""

    def read(self, ticket: ReadTicket) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ticket's ranges in its schema, batch by batch."""


def schema_bytes(schema: pa.Schema) -> bytes:
    """Return a schema as an Arrow IPC message, the form in which it travels."""
    return bytes(schema.serialize())


def schema_of(message: bytes) -> pa.Schema:
    """Return the schema of an Arrow IPC message that `schema_bytes` made."""
    return pa.ipc.read_schema(pa.py_buffer(message))
