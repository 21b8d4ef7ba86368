"""Bundles that came from another host, in the form in which a client has those of its own: read from memory instead of a mapped file.

They were proven against their checksums where they are stored, before they were sent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from quiver_actors.base.envelope import with_trace
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.client.projection import EVERYTHING, Projection
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.flight.remote_contract import StoredFacts
from quiver_actors.store.segment.single_reads import SingleReads


class ReceivedBundle(SingleReads):
    """Reads one bundle; a `client.segments.BundleReader` whose segment has no other bundle."""

    def __init__(self, facts: StoredFacts, batches: Mapping[int, pa.RecordBatch]) -> None:
        self._facts = facts
        self._batches = dict(batches)
        if facts.trace and ENVELOPE_SLOT not in self._batches:
            self._batches[ENVELOPE_SLOT] = with_trace(None, facts.trace)

    @property
    def bundle_count(self) -> int:
        """Number of bundles up to this one."""
        return self._facts.bundle_index + 1

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine wrote the segment; None: not known."""
        return self._facts.incarnation

    def check(self, index: int) -> None:
        """Do nothing: the node has proven the bundle."""

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing: such a one is not sent."""
        return False

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of the bundle by slot id."""
        return {slot_id: batch for slot_id, batch in self._batches.items() if slots is None or slot_id in slots}

    decode = bundle

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that the bundle has."""
        return tuple(sorted(self._batches))

    def byte_count(self, index: int) -> int | None:
        """None: how long its entry is, only the node knows."""
        return None

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds."""
        return self._facts.item_count

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds."""
        return self._facts.ingestion_unix_ns


def received(
    facts: StoredFacts, batches: Mapping[int, pa.RecordBatch], slots: TopicSlots, projection: Projection = EVERYTHING
) -> tuple[MappedSegment, int]:
    """The segment and index under which a `StoredBundle` reads a bundle that was received."""
    reader = ReceivedBundle(facts, batches)
    return MappedSegment(lambda: reader, facts.segment_seq, slots, facts.core, projection), facts.bundle_index
