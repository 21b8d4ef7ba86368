"""Turns what a caller pushes into record batches by slot id.

A bundle is a batch alone, or a mapping of slot name or id to batches; `tabular` says what counts as a batch. Nothing is copied, except
where several chunks have to become one batch.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from quiver_actors.base.envelope import with_trace
from quiver_actors.base.model import ENVELOPE_SLOT, SlotTable
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.tabular import Batch, batch_of, is_rows, type_name
from quiver_actors.errors import InvalidBundle, UnknownSlot
from quiver_actors.store.staged.keys import without_key

_VALUES = (str, bytes, int, float, datetime.date, type(None))
"""Types of one value of a row."""

Bundle: TypeAlias = "Batch | Mapping[str | int, Batch]"


class TopicSlots:
    """The slots of one topic as a producer or a subscriber sees them. Immutable."""

    __slots__ = ("only_slot", "table", "topic")

    def __init__(self, info: TopicInfo) -> None:
        self.topic = info.name
        self.table = SlotTable(info.slots)
        declared = list(self.table.declared.values())
        self.only_slot = declared[0] if len(declared) == 1 else None if declared else 0
        """Id that `lone_slot` returns; None where that raises."""

    def traced(self, trace: Mapping[str, str]) -> TopicSlots:
        """Return these slots for a push that carries the trace headers `trace`; empty: no headers."""
        return TracedSlots(self, trace) if trace else self

    @property
    def lone_slot(self) -> int:
        """The slot of a bundle that is one batch without a slot's name: the only slot that the topic declares, or 0 if it declares none.

        Raises:
            UnknownSlot: the topic declares several slots.
        """
        if self.only_slot is None:
            names = sorted(self.table.declared, key=self.table.declared.__getitem__)
            raise UnknownSlot(
                f"topic {self.topic!r} has the slots {', '.join(names)}, and a batch alone does not say which it is for: "
                f"push {{{names[0]!r}: batch}}, or `quiver push --slot {names[0]}`"
            )
        return self.only_slot

    def batches_of(self, bundle: Bundle) -> list[tuple[int, pa.RecordBatch]]:
        """The bundle's batches with their slot ids, in ascending order of id.

        Raises:
            InvalidBundle: no slot, something that is no batch, or two keys for one slot.
            UnknownSlot: a name or id that the topic does not know.
        """
        if isinstance(bundle, pa.RecordBatch):
            return [(self.lone_slot, bundle)]
        if isinstance(bundle, Mapping):
            return self._batches_of_mapping(bundle)
        return [(self.lone_slot, batch_of(bundle))]

    def _batches_of_mapping(self, bundle: Mapping[str | int, Batch]) -> list[tuple[int, pa.RecordBatch]]:
        found: dict[int, pa.RecordBatch] = {}
        for slot, content in bundle.items():
            if _is_column(content):
                raise InvalidBundle(_columns_for_slots(bundle))
            slot_id = self.table.resolve(slot)
            if slot_id in found:
                raise InvalidBundle(f"the bundle names slot {slot_id} twice (once as {slot!r}): keep one of the keys")
            found[slot_id] = content if isinstance(content, pa.RecordBatch) else _batch_of(slot, content)
        if ENVELOPE_SLOT in found:
            _drop_key(found)
        if not found:
            raise InvalidBundle("the bundle is empty: a bundle needs at least one slot")
        return sorted(found.items(), key=_slot_id_of)


class TracedSlots(TopicSlots):
    """Slots of a push that belongs to a trace: the envelope of every bundle says so."""

    __slots__ = ("_slots", "_trace")

    def __init__(self, slots: TopicSlots, trace: Mapping[str, str]) -> None:
        self.topic = slots.topic
        self.table = slots.table
        self._slots = slots
        self._trace = trace

    @property
    def lone_slot(self) -> int:
        """Id of the slot that a batch alone is for, as in the slots below."""
        return self._slots.lone_slot

    def batches_of(self, bundle: Bundle) -> list[tuple[int, pa.RecordBatch]]:
        """Return the batches of a bundle by ascending slot id, with the trace context in the envelope slot."""
        found = dict(self._slots.batches_of(bundle))
        found[ENVELOPE_SLOT] = with_trace(found.get(ENVELOPE_SLOT), self._trace)
        return sorted(found.items(), key=_slot_id_of)


def _drop_key(batches: dict[int, pa.RecordBatch]) -> None:
    """Bundles that are handed on keep their envelope, but not the key that they were pushed with: only an idempotent push gives one."""
    envelope = batches.pop(ENVELOPE_SLOT)
    kept = without_key(envelope)
    if kept.num_columns or not envelope.num_columns:
        batches[ENVELOPE_SLOT] = kept


def _columns_for_slots(bundle: Mapping[str | int, object]) -> str:
    names = ", ".join(f"{name!r}: ..." for name in list(bundle)[:3])
    slot, content = next((slot, content) for slot, content in bundle.items() if _is_column(content))
    how = (
        f"a row, write [{{{names}}}]"
        if isinstance(content, _VALUES)
        else f"columns, write pa.record_batch({{{names}}})"
    )
    return (
        f"the mapping's value for {slot!r} is a {type_name(content)}, but the keys of a bundle are slots and its values batches: "
        f"to push {how}"
    )


def _batch_of(slot: str | int, content: object) -> pa.RecordBatch:
    try:
        return batch_of(content)
    except InvalidBundle as error:
        raise InvalidBundle(f"slot {slot!r}: {error}") from error


def _is_column(content: object) -> bool:
    """Whether it shows that a mapping of columns was meant as a bundle, or one row: a list, an array, a series of any library; a value."""
    if isinstance(content, (list, tuple)):
        return not is_rows(content)
    return isinstance(content, (pa.Array, pa.ChunkedArray, *_VALUES)) or hasattr(content, "dtype")


def _slot_id_of(item: tuple[int, pa.RecordBatch]) -> int:
    return item[0]
