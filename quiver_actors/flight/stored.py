"""What a node of this host has stored of a topic: its segments, schemas, rows and sizes, for those who plan reads. Nothing is claimed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

import pyarrow as pa

from quiver_actors.client import Client
from quiver_actors.client.hold import HeldCore
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.segments import BundleReader, ReadableSegments
from quiver_actors.errors import FormatError, NotStored, WorkerUnavailable
from quiver_actors.flight.contract import (
    AskSlotRows,
    AskWeights,
    BundleRange,
    CoreContents,
    Look,
    Schemas,
    SlotRows,
    Weights,
    schema_bytes,
)
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.wal.entry_reader import EntryReader

CHECK_SECONDS = 60.0
_CHECK_LOOK_SECONDS = 0.02


class SegmentStreams(BundleReader, Protocol):
    """Reads a whole sealed segment: also its streams."""

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The stream directory, in file order."""

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream."""


class Stored(Protocol):
    """What reads of stored bundles need: a `Client`, or an archive."""

    def readable(self, topic: str) -> dict[int, ReadableSegments]:
        """What can be read of a topic now, by core."""

    def read_segment(self, core: int, topic: str, segment_seq: int) -> SegmentStreams:
        """Open a sealed segment. Raises NotStored."""

    def read_part(
        self,
        core: int,
        topic: str,
        segment_seq: int,
        first: int,
        end: int,
        *,
        verify_checksums: bool | None = None,
        projection: Projection = EVERYTHING,
    ) -> BundleReader:
        """Open the bundles `[first, end)` of a segment, to fetch what is wanted of an archived one. Raises NotStored."""


def make_readable(client: Client, request: Look) -> None:
    """Flush the topic unless the asker can read everything that was acknowledged before without a seal."""
    topic = request.topic
    if not (request.reads_unsealed and all(core.is_complete for core in client.readable(topic).values())):
        client.flush(topic)


def checked_contents(client: Client, node: str, request: Look) -> list[CoreContents]:
    """What can be read of a topic by core, once all is found whole: what was there at a worker's start is checked in the background first.

    Raises:
        WorkerUnavailable: that took too long.
    """
    deadline = time.monotonic() + CHECK_SECONDS
    while True:
        found = client.readable(request.topic)
        unchecked = sum(not info.is_checked for core in found.values() for info in core.sealed)
        if not unchecked:
            return [core_contents(core, each, request) for core, each in found.items()]
        if time.monotonic() > deadline:
            raise WorkerUnavailable(
                f"node {node}: {unchecked} segments of topic {request.topic!r} are still being checked after {CHECK_SECONDS:.0f} s; "
                "the node has just been started: try again"
            )
        time.sleep(_CHECK_LOOK_SECONDS)


def core_contents(core: int, found: ReadableSegments, request: Look, *, is_new: bool = False) -> CoreContents:
    """What one core has for somebody who holds nothing there."""
    unsealed = found.unsealed if request.reads_unsealed else []
    return CoreContents(
        core,
        found.sealed,
        is_new=is_new,
        incarnation=found.incarnation,
        unsealed=unsealed,
        comes_next=_comes_next(found.unlisted, found.next_segment_seq),
        unsealed_from=found.unsealed_from,
    )


def held_contents(core: int, held: HeldCore, request: Look, *, is_new: bool) -> CoreContents:
    """What one core has for the holder."""
    unsealed = held.unsealed if request.reads_unsealed else []
    # Nothing comes to a segment any more behind which bundles are shown.
    complete = {info.segment_seq for info in unsealed[:-1]}
    return CoreContents(
        core,
        held.segments,
        held.gaps,
        held.oldest,
        is_new,
        held.is_leaving,
        [number for number in held.unsettled if number not in complete],
        held.next_segment_seq,
        held.incarnation,
        unsealed,
        _comes_next(held.unsettled, held.next_segment_seq),
        unsealed_from=held.unsealed_from,
    )


def _comes_next(coming: Collection[int], next_segment_seq: int) -> int:
    return -1 if next_segment_seq < 0 else min([*coming, next_segment_seq])


def stored_schemas(client: Stored, topic: str) -> Schemas:
    """Each distinct schema of a topic, once: by the stream directories of sealed segments, and the bundles of others."""
    found: dict[int, dict[bytes, None]] = {}
    readable = client.readable(topic)
    sealed = {core: [info.segment_seq for info in each.sealed] for core, each in readable.items()}
    seen: set[tuple[int, bytes]] = set()
    for _, _, segment in _segments(client, topic, sealed):
        for stream in segment.streams:
            key = (stream.slot_id, stream.schema_fingerprint)
            if key not in seen:
                seen.add(key)
                found.setdefault(stream.slot_id, {})[schema_bytes(segment.schema(stream.stream_id))] = None
    unsealed = [
        BundleRange(core, info.segment_seq, 0, info.bundle_count)
        for core, each in readable.items()
        for info in each.unsealed
    ]
    for piece, reader in _parts(client, topic, unsealed):
        for slot_id, message in _schemas_in(reader, piece):
            found.setdefault(slot_id, {})[message] = None
    return Schemas({slot_id: list(messages) for slot_id, messages in found.items()})


def _schemas_in(reader: BundleReader, piece: BundleRange) -> Iterator[tuple[int, bytes]]:
    for index in range(piece.bundle_start, piece.bundle_end):
        # What is damaged is told to whoever reads its rows.
        with contextlib.suppress(FormatError):
            reader.check(index)
            if isinstance(reader, EntryReader):
                yield from reader.schema_messages(index).items()
            else:
                yield from ((slot, schema_bytes(batch.schema)) for slot, batch in reader.decode(index).items())


def stored_rows(client: Stored, request: AskSlotRows) -> SlotRows:
    """Add up the rows of each slot: of sealed segments from their stream directories, of ranges from the heads of their batches."""
    by_core: dict[int, dict[int, dict[int, int]]] = {}
    for core, segment_seq, segment in _segments(client, request.topic, request.segments):
        rows = by_core.setdefault(core, {}).setdefault(segment_seq, {})
        for stream in segment.streams:
            rows[stream.slot_id] = rows.get(stream.slot_id, 0) + stream.row_count
    for piece, reader in _parts(client, request.topic, request.ranges):
        rows = by_core.setdefault(piece.core, {}).setdefault(piece.segment_seq, {})
        for index in range(piece.bundle_start, piece.bundle_end):
            for slot_id, batch in reader.decode(index).items():
                rows[slot_id] = rows.get(slot_id, 0) + batch.num_rows
    return SlotRows(by_core)


def stored_weights(client: Stored, request: AskWeights) -> Weights:
    """Read the row counts of one segment's bundles without checking their checksums; who reads the rows checks them."""
    reader: BundleReader
    if request.bundle_end < 0:
        reader = client.read_segment(request.core, request.topic, request.segment_seq)
        indexes = range(request.bundle_start, reader.bundle_count)
    else:
        indexes = range(request.bundle_start, request.bundle_end)
        reader = client.read_part(request.core, request.topic, request.segment_seq, indexes.start, indexes.stop)
    slots = None if request.slots is None else tuple(request.slots)
    # Row counts for planning: whoever reads the rows proves them, and planning is not to read all bytes of the segment.
    rows = [sum(batch.num_rows for batch in reader.decode(index, slots).values()) for index in indexes]
    return Weights(
        rows,
        [reader.byte_count(index) or 0 for index in indexes],
        [reader.ingestion_ts(index) or 0 for index in indexes],
    )


def _segments(
    client: Stored, topic: str, segments: Mapping[int, list[int]]
) -> Iterator[tuple[int, int, SegmentStreams]]:
    """Yield core, number and reader of sealed segments that still exist: a listed segment may have been deleted since."""
    for core, segment_seqs in segments.items():
        for segment_seq in segment_seqs:
            with contextlib.suppress(NotStored):
                yield core, segment_seq, client.read_segment(core, topic, segment_seq)


def _parts(client: Stored, topic: str, ranges: list[BundleRange]) -> Iterator[tuple[BundleRange, BundleReader]]:
    """Yield ranges that still exist, and what reads them."""
    for piece in ranges:
        with contextlib.suppress(NotStored):
            yield piece, client.read_part(piece.core, topic, piece.segment_seq, piece.bundle_start, piece.bundle_end)
