"""The open segment: what is known of its bundles while their bytes go to the log, enough to write the tail that seals it.

Owner: one engine. Invariants:
- Nothing is kept per bundle but numbers in flat arrays: about 44 bytes a bundle and 36 a slot.
- Streams are numbered 0, 1, 2, ... in the order in which they first appear; one stream holds one (slot, fingerprint, schema)
  and one set of dictionaries. A weak fingerprint can so never mix schemas.
- Bundle indexes and chunk indexes are fixed by `append` and never change.

Cost: `append` of a bundle of one slot without dictionaries takes about 1 us.
"""

from __future__ import annotations

import itertools
import operator
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import InvalidBundle
from quiver_actors.store.segment.arrow_file import BLOCK
from quiver_actors.store.segment.dictionaries import DictionaryPlacement, DictionarySet, Read, SchemaDictionaries
from quiver_actors.store.segment.layout import IN_PLACE_STREAM_OFFSET
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.placement import SlotPlacement, StreamSchema, check_dictionaries

__all__ = ["BundleRun", "BundleSummaries", "DictionaryPlacement", "SegmentBuilder", "Stream"]

_BUNDLE = struct.Struct("<QqqQI")
_BUNDLE_FIELDS = np.dtype(
    [
        ("sequence", "<u8"),
        ("ingestion_ts_nanos", "<i8"),
        ("item_count", "<i8"),
        ("byte_count", "<u8"),
        ("slot_count", "<u4"),
    ]
)
_BLOCK_FIELDS = np.dtype([("offset", "<i8"), ("metadata_bytes", "<i4"), ("padding", "<i4"), ("body_bytes", "<i8")])
"""The fields of a packed `BLOCK`."""
_REF = struct.Struct("<III")
_schema_of = operator.itemgetter(0)
"""The schema of a `SlotPlacement`."""
_LATEST_TIME = (1 << 63) - 1
_UNPACKED_MAX = 4096
"""Bundles of runs that wait to be entered in the tables."""


class BundleRun(NamedTuple):
    """At least one bundle, all with the same slots, for `SegmentBuilder.append_run`. Columns of one length; where there is one for each
    slot, they are the rows of one array."""

    schemas: tuple[StreamSchema, ...]
    """The schema of each slot, in ascending order of slot id."""
    first_sequence: int
    ingestion_ts_nanos: npt.NDArray[np.int64]
    item_counts: npt.NDArray[np.int64]
    byte_counts: npt.NDArray[np.int64]
    row_counts: npt.NDArray[np.int64]
    """Rows of each slot's batches."""
    batch_offsets: npt.NDArray[np.int64]
    """File offset of each slot's record-batch messages."""
    metadata_bytes: npt.NDArray[np.int64]
    """Metadata bytes of each slot's record-batch messages."""
    body_bytes: npt.NDArray[np.int64]
    """Body bytes of each slot's record-batch messages."""
    row_count: int
    """Rows of all slots of all bundles together."""


class BundleSummaries(NamedTuple):
    """The bundles appended so far, as numpy columns (copies)."""

    sequence: npt.NDArray[np.uint64]
    ingestion_ts_nanos: npt.NDArray[np.int64]
    item_count: npt.NDArray[np.int64]
    """-1 where unknown."""
    byte_count: npt.NDArray[np.uint64]


class Stream:
    """One stream of the open segment."""

    __slots__ = ("batch_blocks", "chunk_count", "dictionaries", "row_count", "schema", "stream_id")

    def __init__(self, stream_id: int, schema: StreamSchema, dictionaries: DictionarySet | None) -> None:
        self.stream_id = stream_id
        self.schema = schema
        self.dictionaries = dictionaries
        self.row_count = 0
        self.chunk_count = 0
        self.batch_blocks = bytearray()
        """Packed `BLOCK`s, offsets from `IN_PLACE_STREAM_OFFSET`."""

    @property
    def dictionary_blocks(self) -> bytes:
        """Packed `BLOCK`s, offsets from `IN_PLACE_STREAM_OFFSET`."""
        if self.dictionaries is None:
            return b""
        return b"".join(
            BLOCK.pack(place.file_offset - IN_PLACE_STREAM_OFFSET, place.metadata_bytes, 0, place.body_bytes)
            for place in self.dictionaries.placements
        )


class SegmentBuilder:
    """Collects the bundles of one segment.

    Args:
        segment_seq: number of the segment.
        read: `read(file_offset, length)` gives bytes of the entries of all bundles appended so far, written or still staged.
            Called rarely, and only for dictionaries.

    Attributes:
        bundle_count: bundles appended so far; not to be changed from outside.
        stream_count: Arrow streams that the segment has so far; likewise.
    """

    def __init__(self, segment_seq: int, read: Read) -> None:
        self.segment_seq = segment_seq
        self._streams: list[Stream] = []
        self._read = read
        self._plain: dict[StreamSchema, Stream] = {}
        self._with_dictionaries: dict[StreamSchema, SchemaDictionaries] = {}
        self._bundles = bytearray()
        self._refs = bytearray()
        self._unpacked: list[tuple[list[Stream], BundleRun]] = []
        """Runs behind everything else that are counted, and not in the tables yet."""
        self.bundle_count = 0
        self.stream_count = 0
        self._row_count = 0
        self._earliest_ts = _LATEST_TIME
        self._latest_ts = -_LATEST_TIME

    def append(
        self,
        sequence: int,
        ingestion_ts_nanos: int,
        item_count: int,
        byte_count: int,
        slots: Sequence[SlotPlacement],
    ) -> int:
        """Add a bundle whose entry is at, or on its way to, the given places of the file.

        Args:
            item_count: -1 when unknown.
            byte_count: bytes of the entry.
            slots: in ascending slot order, each slot once. None at all for a bundle that was lost to damage and keeps its number;
                its other fields but the sequence mean nothing then.

        Returns:
            The bundle's index.

        Raises:
            ArrowError: a payload's dictionaries are not those that its schema names; nothing was added.
            InvalidBundle: the segment is full (65,535 bundles); nothing was added.
            Whatever `read` raises: the builder is not to be used any more.
        """
        index = self.bundle_count
        if index >= SEGMENT_BUNDLES_MAX:
            raise InvalidBundle(f"segment {self.segment_seq} holds {index} bundles, its limit: seal it first")
        if self._unpacked:
            self.pack()
        plain = self._plain
        try:
            streams = list(map(plain.__getitem__, map(_schema_of, slots)))
        except KeyError:
            streams = self._find_streams(slots)
        for stream, (_, rows, offset, metadata_bytes, body_bytes, _) in zip(streams, slots, strict=True):
            self._refs += _REF.pack(stream.schema[0], stream.stream_id, stream.chunk_count)
            stream.batch_blocks += BLOCK.pack(offset - IN_PLACE_STREAM_OFFSET, metadata_bytes, 0, body_bytes)
            stream.chunk_count += 1
            stream.row_count += rows
            self._row_count += rows
        if slots:
            if ingestion_ts_nanos < self._earliest_ts:
                self._earliest_ts = ingestion_ts_nanos
            if ingestion_ts_nanos > self._latest_ts:
                self._latest_ts = ingestion_ts_nanos
        self._bundles += _BUNDLE.pack(sequence, ingestion_ts_nanos, item_count, byte_count, len(slots))
        self.bundle_count = index + 1
        return index

    def append_run(self, run: BundleRun) -> None:
        """`append` for many bundles, the same slots of which have the same schemas, without dictionaries.

        Raises:
            InvalidBundle: they would not all fit the segment; nothing was added.
        """
        count = len(run.byte_counts)
        if self.bundle_count + count > SEGMENT_BUNDLES_MAX:
            raise InvalidBundle(f"segment {self.segment_seq} holds {self.bundle_count} bundles: no {count} more fit")
        streams = [self._plain.get(schema) or self._find_stream(schema, ()) for schema in run.schemas]
        self._row_count += run.row_count
        self.bundle_count += count
        self._unpacked.append((streams, run))
        if self.bundle_count - len(self._bundles) // _BUNDLE.size >= _UNPACKED_MAX:
            self.pack()

    def pack(self) -> None:
        """Enter in the tables what was only counted: many runs at a time cost little more than one.

        Whatever reads the tables does it first. To be called before another thread reads them, so that it changes nothing then.
        """
        unpacked, self._unpacked = self._unpacked, []
        for streams, runs in itertools.groupby(unpacked, key=_streams_of):
            self._pack_runs(streams, [run for _, run in runs])

    def _pack_runs(self, streams: Sequence[Stream], runs: Sequence[BundleRun]) -> None:
        """Enter runs of the same streams, one behind the other, in the tables."""
        byte_counts = np.concatenate([run.byte_counts for run in runs])
        count = len(byte_counts)
        refs = np.empty((count, len(streams), 3), np.uint32)
        for slot, stream in enumerate(streams):
            refs[:, slot, 0], refs[:, slot, 1] = stream.schema.slot_id, stream.stream_id
            refs[:, slot, 2] = np.arange(stream.chunk_count, stream.chunk_count + count)
            _add_blocks(stream, slot, runs, count)
        bundles = np.empty(count, _BUNDLE_FIELDS)
        bundles["slot_count"] = len(streams)
        bundles["sequence"] = np.concatenate(
            [np.arange(len(run.byte_counts), dtype=np.uint64) + np.uint64(run.first_sequence) for run in runs]
        )
        bundles["ingestion_ts_nanos"] = np.concatenate([run.ingestion_ts_nanos for run in runs])
        bundles["item_count"] = np.concatenate([run.item_counts for run in runs])
        bundles["byte_count"] = byte_counts
        self._refs += refs.tobytes()
        self._bundles += bundles.tobytes()
        self._earliest_ts = min(self._earliest_ts, int(bundles["ingestion_ts_nanos"].min()))
        self._latest_ts = max(self._latest_ts, int(bundles["ingestion_ts_nanos"].max()))

    def _find_streams(self, slots: Sequence[SlotPlacement]) -> list[Stream]:
        """The streams of a bundle that has dictionaries or schemas that this segment has not seen yet."""
        # All are checked before any is resolved: a stream must never refer to dictionaries of a bundle that was refused.
        checked = [check_dictionaries(slot[0], slot[5]) for slot in slots]
        return [self._find_stream(slot[0], dictionaries) for slot, dictionaries in zip(slots, checked, strict=True)]

    def _find_stream(self, schema: StreamSchema, placements: Sequence[DictionaryPlacement]) -> Stream:
        known = self._plain.get(schema)
        if known is not None:
            return known
        if not placements:
            stream = self._plain[schema] = self._new_stream(schema, None)
            return stream
        of_schema = self._with_dictionaries.get(schema)
        if of_schema is None:
            of_schema = self._with_dictionaries[schema] = SchemaDictionaries(schema.message, self._read)
        dictionaries = of_schema.resolve(placements, len(self._streams))
        if dictionaries.stream_id == len(self._streams):
            return self._new_stream(schema, dictionaries)
        return self._streams[dictionaries.stream_id]

    def _new_stream(self, schema: StreamSchema, dictionaries: DictionarySet | None) -> Stream:
        stream = Stream(self.stream_count, schema, dictionaries)
        self._streams.append(stream)
        self.stream_count += 1
        return stream

    # --- what is in it -------------------------------------------------------------------------------------------------------

    @property
    def streams(self) -> list[Stream]:
        """The streams in the order of their numbers."""
        self.pack()
        return self._streams

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles."""
        return self._row_count

    @property
    def is_empty(self) -> bool:
        """Whether no bundle was added yet."""
        return self.bundle_count == 0

    @property
    def first_sequence(self) -> int:
        """Sequence of the first bundle; 0 while there is none."""
        return int(self._bundle_table()["sequence"][0]) if self.bundle_count else 0

    @property
    def last_sequence(self) -> int:
        """Sequence of the last bundle; 0 while there is none."""
        return int(self._bundle_table()["sequence"][-1]) if self.bundle_count else 0

    @property
    def first_ingestion_ts_nanos(self) -> int:
        """The earliest ingestion time, UNIX nanoseconds; not always the first bundle's, as clocks are set back. 0 if no bundle is left."""
        self.pack()
        return self._earliest_ts if self._earliest_ts <= self._latest_ts else 0

    @property
    def last_ingestion_ts_nanos(self) -> int:
        """The latest ingestion time, UNIX nanoseconds; 0 if no bundle is left."""
        self.pack()
        return self._latest_ts if self._earliest_ts <= self._latest_ts else 0

    def bundle_summaries(self) -> BundleSummaries:
        """The bundles so far; costs about a microsecond per thousand."""
        table = self._bundle_table()
        return BundleSummaries(*(np.array(table[name]) for name in BundleSummaries._fields))

    def byte_counts(self, first: int, stop: int) -> list[int]:
        """Bytes of the entries of the bundles from `first` up to and without `stop`."""
        self.pack()
        if stop - first == 1:
            return [_BUNDLE.unpack_from(self._bundles, first * _BUNDLE.size)[3]]
        found: list[int] = self._bundle_table()["byte_count"][first:stop].tolist()
        return found

    def item_count(self, index: int) -> int:
        """Items of that bundle; -1 where unknown."""
        self.pack()
        count: int = _BUNDLE.unpack_from(self._bundles, index * _BUNDLE.size)[2]
        return count

    def item_counts(self, indexes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Items of these bundles; -1 where unknown."""
        found: npt.NDArray[np.int64] = self._bundle_table()["item_count"][indexes]
        return found

    def manifest_columns(self) -> ManifestColumns:
        """Return copies of all columns of the manifest."""
        slot_counts = np.array(self._bundle_table()["slot_count"], np.int32)
        refs = np.frombuffer(bytes(self._refs), dtype=np.uint32).reshape(-1, 3)
        summaries = self.bundle_summaries()
        return ManifestColumns(
            slot_counts,
            refs,
            item_count=summaries.item_count,
            byte_count=summaries.byte_count,
            sequence=summaries.sequence,
            ingestion_ts_nanos=summaries.ingestion_ts_nanos,
        )

    def number(self, segment_seq: int, first_sequence: int) -> None:
        """Give the bundles, numbered from 0 so far, their segment and their sequences."""
        table = self._bundle_table().copy()
        table["sequence"] += np.uint64(first_sequence)
        self._bundles = bytearray(table.tobytes())
        self.segment_seq = segment_seq

    def _bundle_table(self) -> npt.NDArray[np.void]:
        """The bundles as a numpy table, which borrows their bytes: nothing can be appended while it lives."""
        self.pack()
        return np.frombuffer(self._bundles, dtype=_BUNDLE_FIELDS)

    def __repr__(self) -> str:
        return (
            f"<SegmentBuilder {self.segment_seq} bundles={self.bundle_count} streams={len(self._streams)}"
            f" rows={self._row_count}>"
        )


def _streams_of(unpacked: tuple[list[Stream], BundleRun]) -> list[Stream]:
    return unpacked[0]


def _add_blocks(stream: Stream, slot: int, runs: Sequence[BundleRun], count: int) -> None:
    """Add the batches of the runs' slot to its stream."""
    blocks = np.zeros(count, _BLOCK_FIELDS)
    blocks["offset"] = np.concatenate([run.batch_offsets[slot] for run in runs]) - IN_PLACE_STREAM_OFFSET
    blocks["metadata_bytes"] = np.concatenate([run.metadata_bytes[slot] for run in runs])
    blocks["body_bytes"] = np.concatenate([run.body_bytes[slot] for run in runs])
    stream.batch_blocks += blocks.tobytes()
    stream.chunk_count += count
    stream.row_count += sum([int(run.row_counts[slot].sum()) for run in runs])
