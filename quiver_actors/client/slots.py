"""What a caller pushes, turned into record batches by slot id.

A bundle is a mapping of slot name or id to a `RecordBatch` or `Table`, or one of those alone. Nothing is copied, except where a
table of several chunks has to become one batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from quiver_actors.envelope import with_trace
from quiver_actors.errors import InvalidBundle, UnknownSlot
from quiver_actors.model import ENVELOPE_SLOT, SlotTable
from quiver_actors.protocol.messages import TopicInfo
from quiver_actors.transactions.keys import without_key

Batch: TypeAlias = "pa.RecordBatch | pa.Table"
Bundle: TypeAlias = "Batch | Mapping[str | int, Batch]"

_WHAT_IS_EXPECTED = "expected a pyarrow.RecordBatch, a pyarrow.Table, or a mapping of slot name or id to one of them"


class TopicSlots:
    """The slots of one topic as a producer or a subscriber sees them. Immutable."""

    __slots__ = ("_lone_slot", "table", "topic")

    def __init__(self, info: TopicInfo) -> None:
        self.topic = info.name
        self.table = SlotTable(info.slots)
        declared = sorted(self.table.declared.values())
        only = declared[0] if len(declared) == 1 else 0
        self._lone_slot = only if not declared or only in declared else None

    def traced(self, trace: Mapping[str, str]) -> TopicSlots:
        """As a push with these headers of a trace context sees them; empty: none."""
        return TracedSlots(self, trace) if trace else self

    @property
    def lone_slot(self) -> int:
        """Where a bundle goes that is one batch without a slot: slot 0, or the only slot that the topic declares.

        Raises:
            UnknownSlot: the topic declares several slots and none of them has id 0.
        """
        if self._lone_slot is None:
            raise UnknownSlot(
                f"topic {self.topic!r} declares the slots {self.table.declared}: push a mapping that names the batch's slot"
            )
        return self._lone_slot

    def batches_of(self, bundle: Bundle) -> list[tuple[int, pa.RecordBatch]]:
        """The bundle's batches with their slot ids, in ascending order of id.

        Raises:
            InvalidBundle: no slot, something that is no batch, or two keys for one slot.
            UnknownSlot: a name or id that the topic does not know.
        """
        if isinstance(bundle, pa.RecordBatch):
            return [(self.lone_slot, bundle)]
        if isinstance(bundle, pa.Table):
            return [(self.lone_slot, _one_batch(bundle))]
        if not isinstance(bundle, Mapping):
            raise InvalidBundle(f"cannot push a {type(bundle).__name__}: {_WHAT_IS_EXPECTED}")
        return self._batches_of_mapping(bundle)

    def _batches_of_mapping(self, bundle: Mapping[str | int, Batch]) -> list[tuple[int, pa.RecordBatch]]:
        found: dict[int, pa.RecordBatch] = {}
        for slot, content in bundle.items():
            slot_id = self.table.resolve(slot)
            if slot_id in found:
                raise InvalidBundle(f"the bundle names slot {slot_id} twice (once as {slot!r}): keep one of the keys")
            if isinstance(content, pa.Table):
                content = _one_batch(content)
            elif not isinstance(content, pa.RecordBatch):
                raise InvalidBundle(f"slot {slot!r} holds a {type(content).__name__}: {_WHAT_IS_EXPECTED}")
            found[slot_id] = content
        if ENVELOPE_SLOT in found:
            _drop_key(found)
        if not found:
            raise InvalidBundle("the bundle is empty: a bundle needs at least one slot")
        return sorted(found.items(), key=_slot_id_of)


class TracedSlots(TopicSlots):
    """The same for a push that belongs to a trace: every bundle says so in its envelope."""

    __slots__ = ("_trace",)

    def __init__(self, slots: TopicSlots, trace: Mapping[str, str]) -> None:
        self.topic = slots.topic
        self.table = slots.table
        self._lone_slot = slots._lone_slot
        self._trace = trace

    def batches_of(self, bundle: Bundle) -> list[tuple[int, pa.RecordBatch]]:
        found = dict(super().batches_of(bundle))
        found[ENVELOPE_SLOT] = with_trace(found.get(ENVELOPE_SLOT), self._trace)
        return sorted(found.items(), key=_slot_id_of)


def _drop_key(batches: dict[int, pa.RecordBatch]) -> None:
    """Bundles that are handed on keep their envelope, but not the key that they were pushed with: only an idempotent push gives one."""
    envelope = batches.pop(ENVELOPE_SLOT)
    kept = without_key(envelope)
    if kept.num_columns or not envelope.num_columns:
        batches[ENVELOPE_SLOT] = kept


def _slot_id_of(item: tuple[int, pa.RecordBatch]) -> int:
    return item[0]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) > 1:
        batches = _combined(table)
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in table.schema], schema=table.schema)
    return batches[0]


def _combined(table: pa.Table) -> list[pa.RecordBatch]:
    try:
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    except pa.ArrowException as error:
        raise InvalidBundle(f"the table's chunks cannot be combined into one batch: {error}") from error
    if len(batches) > 1:
        raise InvalidBundle(f"the table does not fit one batch, it stays in {len(batches)} chunks: push it in parts")
    return batches
