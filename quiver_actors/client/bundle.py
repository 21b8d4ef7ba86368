"""One stored bundle, to be read: no claim, no obligation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT, BundleId, SlotTable
from quiver_actors.base.notebook import facts_html
from quiver_actors.client.segments import MappedSegment
from quiver_actors.errors import DataLost, FormatError, InvalidBundle, NotStored, SlotNotInBundle

T = TypeVar("T")


class StoredBundle:
    """A bundle of a sealed segment.

    Batches point into the mapped segment file: reading copies nothing, and they stay valid for as long as they are referenced.
    Before this object says anything of what is stored, it has proven the whole bundle against its checksum, once (unless the client was
    connected with `verify_checksums=False`: then slots that are never asked for are never touched).
    """

    __slots__ = ("_bundle_index", "_is_proven", "_segment")

    def __init__(self, segment: MappedSegment, bundle_index: int) -> None:
        self._segment = segment
        self._bundle_index = bundle_index
        self._is_proven = False

    @property
    def bundle_id(self) -> BundleId:
        """Topic, core, segment number and index of the bundle; it never changes."""
        segment = self._segment
        return BundleId(segment.slots.topic, segment.core, segment.segment_seq, self._bundle_index)

    @property
    def slots(self) -> Mapping[int, pa.RecordBatch]:
        """The batches of the bundle's requested slots, by slot id.

        Raises:
            ChecksumMismatch: the stored bundle is damaged.
            DataLost: damage destroyed the bundle earlier; subscribers get a gap notice in its place.
            FormatError: it cannot be read.
        """
        try:
            if not self._is_proven:
                self._prove()
            return self._segment.bundle(self._bundle_index)
        except (FormatError, IndexError) as error:
            self._unreadable(str(error))
            raise
        except (DataLost, NotStored) as error:
            self._lost(error)
            raise

    @property
    def slot_table(self) -> SlotTable:
        """Names and ids of the topic's slots."""
        return self._segment.slots.table

    @property
    def slot_ids(self) -> tuple[int, ...]:
        """The slots that the bundle has, as far as they are asked for."""
        return self._read(self._segment.slot_ids)

    @property
    def batch(self) -> pa.RecordBatch:
        """The batch of the only slot, beside the envelope (slot 63) that the bundle may have.

        Raises:
            InvalidBundle: the bundle has several slots, or none.
            FormatError: the stored bundle cannot be read.
        """
        slot_ids = [slot_id for slot_id in self.slot_ids if slot_id != ENVELOPE_SLOT]
        if len(slot_ids) != 1:
            raise InvalidBundle(f"bundle {self.bundle_id} has the slots {slot_ids}: choose one, delivery[slot]")
        return self._read(lambda index: self._segment.batch(index, slot_ids[0]))

    @property
    def row_count(self) -> int:
        """Rows of all slots that are asked for, without those of the envelope."""
        return sum(batch.num_rows for slot_id, batch in self.slots.items() if slot_id != ENVELOPE_SLOT)

    @property
    def item_count(self) -> int | None:
        """Number of items that the producer named for the bundle; None if it named none."""
        return self._read(self._segment.item_count)

    @property
    def trace_context(self) -> dict[str, str]:
        """The trace that the push belonged to, by W3C header: what OpenTelemetry's `extract` takes. Empty if the producer said nothing.

        It is there whatever `slots` were asked for.
        """
        return self._read(self._segment.trace_context)

    @property
    def ingestion_unix_ns(self) -> int | None:
        """Time when the worker ingested the bundle; UNIX time in nanoseconds."""
        return self._read(self._segment.ingestion_ts_nanos)

    @property
    def incarnation(self) -> bytes | None:
        """Incarnation of the engine that stored the bundle. A recreated store numbers its bundles from 0 again; within one incarnation
        no id repeats.

        None in a segment that another implementation wrote.
        """
        return self._read(lambda _: self._segment.incarnation)

    def __getitem__(self, slot: str | int) -> pa.RecordBatch:
        """The batch of one slot, by name or id.

        Raises:
            UnknownSlot: the topic has no such slot.
            UsageError: the slot is not asked for.
            SlotNotInBundle: this bundle has nothing in it.
            FormatError: the stored batch cannot be read.
        """
        slot_id = self._segment.slots.table.resolve(slot)
        return self._read(lambda index: self._segment.batch(index, slot_id))

    def __contains__(self, slot: str | int) -> bool:
        return self._segment.slots.table.resolve(slot) in self.slot_ids

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The batch of the only slot, for Polars, DuckDB, pandas and whoever else takes Arrow streams. Raises as `batch`."""
        return self.batch.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """What a notebook shows: where the bundle is stored, and how many rows each slot has."""
        facts: dict[str, object] = {"bundle": self._where()}
        try:
            for slot_id, batch in self.slots.items():
                name = self.slot_table.name_of(slot_id) or f"slot {slot_id}"
                facts[name] = f"{batch.num_rows:,} rows of {', '.join(batch.schema.names)}"
        except FormatError as error:
            facts["cannot be read"] = error
        return facts_html(type(self).__name__, facts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._where()}>"

    def _where(self) -> str:
        topic, core, segment_seq, bundle_index = self.bundle_id
        return f"{topic} core={core} segment={segment_seq} bundle={bundle_index}"

    def verify(self) -> None:
        """Prove the bundle against its checksum once more, whatever was read of it before.

        For whoever keeps batches for long and acts on them later: they point into the file, and show damage that has come to it since.
        Call it when the values have been used and before anything is final. Does nothing if the client does not verify checksums.

        Raises:
            ChecksumMismatch: the stored bundle is damaged.
            FormatError: it cannot be read.
        """
        self._is_proven = False
        self._read(lambda _: None)

    def _prove(self) -> None:
        self._segment.check(self._bundle_index)
        self._is_proven = True

    def _read(self, read: Callable[[int], T]) -> T:
        try:
            if not self._is_proven:
                self._prove()
            return read(self._bundle_index)
        except SlotNotInBundle:
            raise
        except (FormatError, IndexError) as error:
            self._unreadable(str(error))
            raise
        except (DataLost, NotStored) as error:
            self._lost(error)
            raise

    def _lost(self, error: DataLost | NotStored) -> None:
        """Nothing is stored of the bundle any more."""

    def _unreadable(self, reason: str) -> None:
        """The stored bundle cannot be read."""
