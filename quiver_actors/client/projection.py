"""The part of each bundle that a subscriber reads: some slots, and some columns of a slot.

Guarantee: the streams of other slots are not opened. Columns that are not asked for are decoded from the batch's head, but not one byte
of their values is read. (Arrow's own column selection for files, `included_fields`, copies what it selects; leaving columns out of the
decoded batch does not.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa

from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import UsageError


class Projection(NamedTuple):
    """The slots and columns that a consumer asked for, by slot id; the default is all of them."""

    slots: frozenset[int] | None = None
    """Ids of the wanted slots; None: all."""
    columns: Mapping[int, tuple[str, ...]] = {}
    """Slots that are not named here come with all columns."""

    def check(self, slot_id: int) -> None:
        """Raise if a slot was not asked for.

        Raises:
            UsageError: it was left out.
        """
        if self.slots is not None and slot_id not in self.slots:
            raise UsageError(
                f"slot {slot_id} is not among the slots {sorted(self.slots)} that were asked for: add it to slots="
            )

    def of_slot(self, slot_id: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the wanted columns of a batch, in the order in which they were named, without a copy.

        A name that the batch does not have is left out: schemas of one slot may differ.
        """
        names = self.columns.get(slot_id)
        if names is None:
            return batch
        schema = batch.schema
        return batch.select([index for name in names for index in schema.get_all_field_indices(name)])


EVERYTHING = Projection()


class Asked(NamedTuple):
    """A projection in the caller's words: names or ids, of a topic whose slot table is not known yet."""

    slots: tuple[str | int, ...] | None
    columns: Mapping[str | int, tuple[str, ...]]

    @classmethod
    def parse(
        cls, slots: Iterable[str | int] | None = None, columns: Mapping[str | int, Iterable[str]] | None = None
    ) -> Asked:
        """Check the types.

        Raises:
            UsageError: one string where several are expected, or nothing at all.
        """
        if columns is not None and not isinstance(columns, Mapping):
            raise UsageError(
                f"columns={columns!r} is not possible: expected names of columns by slot, such as {{0: ['delay']}}"
            )
        for value in (slots, *(columns or {}).values()):
            if isinstance(value, str):
                raise UsageError(f"{value!r} is one name: expected a list of names")
        chosen = None if slots is None else tuple(slots)
        if chosen == ():
            raise UsageError("slots=[] asks for nothing: name a slot, or leave it out for all")
        return cls(chosen, {slot: tuple(names) for slot, names in (columns or {}).items()})

    def resolve(self, slots: TopicSlots) -> Projection:
        """Look the names up in the topic's slot table.

        Raises:
            UnknownSlot: a slot that the topic does not have.
            UsageError: columns of a slot that is not asked for.
        """
        if self.slots is None and not self.columns:
            return EVERYTHING
        chosen = None if self.slots is None else frozenset(map(slots.table.resolve, self.slots))
        columns = {slots.table.resolve(slot): names for slot, names in self.columns.items()}
        if chosen is not None and not chosen.issuperset(columns):
            raise UsageError(f"columns= names slots that slots= leaves out: {sorted(columns.keys() - chosen)}")
        return Projection(chosen, columns)
