"""Many bundles of a subscription as one: their rows as one Arrow table for each slot, and one acknowledgement for all.

What concerns a single bundle, its delivery and its id, is made when it is first asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.base.notebook import facts_html
from quiver_actors.client.delivery import ClaimedBundle, Delivery
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.gathering import Part
from quiver_actors.client.grants import Bundles
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.errors import ClosedError, InvalidBundle, SlotNotInBundle

ROWS_MAX_DEFAULT = 65_536
WAIT_SECONDS_DEFAULT = 0.1

B = TypeVar("B", bound=ClaimedBundle[Any])
K = TypeVar("K")


class BaseBatch(Generic[B, K]):
    """Bundles that are claimed for this consumer, to be read and resolved together.

    `B` is the kind of delivery, `K` the kind of ticket that acknowledging them gives.
    """

    _delivery_type: ClassVar[type[Any]]
    _ticket_type: ClassVar[type[Any]]

    def __init__(self, resolutions: Resolutions[Any], parts: Sequence[Part], tables: Mapping[int, pa.Table]) -> None:
        """
        Args:
            parts: the bundles, at least one.
            tables: the rows of each slot, the envelope left out.
        """
        self._resolutions = resolutions
        self._parts = parts
        self._tables = tables
        self._deliveries: list[B] | None = None
        self._number = 0
        """Number of the acknowledgement of all; 0: there was none, or there are deliveries, which know it."""

    def __len__(self) -> int:
        """Number of bundles."""
        return sum(part.bundle_count for part in self._parts)

    @property
    def deliveries(self) -> Sequence[B]:
        """The bundles one by one, in their order. They are made when they are first asked for."""
        if self._deliveries is None:
            self._deliveries = [
                self._delivery_type(self._resolutions, part.portion.parcel, index, count)
                for part in self._parts
                for index, count in zip(part.portion.indexes, part.portion.counts, strict=True)
            ]
            if self._number:
                for delivery in self._deliveries:
                    delivery.note_acked(self._number)
        return self._deliveries

    @property
    def bundle_ids(self) -> list[BundleId]:
        """The ids of the bundles, in their order."""
        return [part.portion.bundle_id(number) for part in self._parts for number in range(part.bundle_count)]

    @property
    def slot_ids(self) -> tuple[int, ...]:
        """The slots that at least one bundle has, in rising order, without the envelope (slot 63)."""
        return tuple(sorted(self._tables))

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles, without those of the envelope."""
        return sum(table.num_rows for table in self._tables.values())

    @property
    def table(self) -> pa.Table:
        """The rows of the only slot.

        Raises:
            InvalidBundle: the bundles have several slots, or none.
        """
        slot_ids = self.slot_ids
        if len(slot_ids) != 1:
            raise InvalidBundle(f"the {len(self)} bundles have the slots {list(slot_ids)}: choose one, batch[slot]")
        return self._table(slot_ids[0])

    def row_counts(self, slot: str | int) -> list[int]:
        """Rows of one slot that each bundle has, 0 where it lacks the slot: which row of the table is of which bundle."""
        slot_id = self._slot_id(slot)
        return [part.row_counts.get(slot_id, 0) for part in self._parts for _ in range(part.bundle_count)]

    def __getitem__(self, slot: str | int) -> pa.Table:
        """The rows of one slot, by its name or id. A column that some bundles lack is null there.

        Small bundles that are alike are copied into one chunk; every other bundle is a chunk of its own, which points into the file.

        Raises:
            UnknownSlot: the topic has no such slot.
            SlotNotInBundle: no bundle of the batch has it.
        """
        return self._table(self._slot_id(slot))

    def ack(self) -> K:
        """Acknowledge every bundle that is not resolved yet. Raises as `Delivery.ack`."""
        bundles, number = self._bundles_to_ack(), 0
        if bundles:
            number = self._resolutions.ack_many(bundles)
            if self._deliveries is None:
                self._number = number
            for delivery in self._unresolved():
                delivery.note_acked(number)
        ticket: K = self._ticket_type(self._resolutions, bundles, number)
        return ticket

    def reject(self) -> None:
        """Reject every bundle that is not resolved yet. Raises as `ClaimedBundle.reject`."""
        for delivery in self._unresolved():
            delivery.reject()

    def defer(self, delay_seconds: float = 0) -> None:
        """Give back every bundle that is not resolved yet. Raises as `ClaimedBundle.defer`."""
        for delivery in self._unresolved():
            delivery.defer(delay_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
            return
        # A closed subscription has given the bundles back already; that must not hide the block's own error.
        with contextlib.suppress(ClosedError):
            self.defer()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows of the only slot, for Polars, DuckDB, pandas and whoever else takes Arrow streams. Raises as `table`."""
        return self.table.__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """What a notebook shows: how many bundles there are, and how many rows each slot has."""
        rows = {f"slot {slot_id}": f"{table.num_rows:,} rows" for slot_id, table in self._tables.items()}
        return facts_html(type(self).__name__, {"bundles": len(self), **rows})

    def __repr__(self) -> str:
        first, last = self._parts[0].portion, self._parts[-1].portion
        return f"<{type(self).__name__} bundles={len(self)} from {first.bundle_id(0)} to {last.bundle_id(-1)}>"

    def _bundles_to_ack(self) -> list[Bundles]:
        if self._deliveries is None and not self._number:
            return [(part.portion.parcel, part.portion.indexes) for part in self._parts]
        claims = [delivery.claim for delivery in self._unresolved()]
        return [(claim.parcel, (claim.bundle_index,)) for claim in claims]

    def _unresolved(self) -> list[B]:
        if self._number:
            return []
        return [delivery for delivery in self.deliveries if not delivery.is_resolved]

    def _slot_id(self, slot: str | int) -> int:
        return self._parts[0].portion.parcel.segment.slots.table.resolve(slot)

    def _table(self, slot_id: int) -> pa.Table:
        table = self._tables.get(slot_id)
        if table is None:
            raise SlotNotInBundle(f"none of the {len(self)} bundles has slot {slot_id}: they have {self.slot_ids}")
        return table


class BatchTicket:
    """The receipt of a batch's acknowledgement."""

    __slots__ = ("_bundles", "_number", "_resolutions")

    def __init__(self, resolutions: Resolutions[Exchange], bundles: Sequence[Bundles], number: int) -> None:
        self._resolutions = resolutions
        self._bundles = bundles
        self._number = number

    def wait(self, timeout: float = 10.0) -> None:
        """Return when the acknowledgement of every bundle is durable. Raises as `Ticket.wait`, for the first that is refused."""
        resolutions = self._resolutions
        resolutions.exchange.run(resolutions.confirming_many(self._bundles, self._number, timeout))


class DeliveryBatch(BaseBatch[Delivery, BatchTicket]):
    """Bundles that are claimed for this consumer until they are resolved, together or one by one. Made by `Subscription.batches`.

    with batch:                           # acknowledge all at the end, defer all if the block raises
        write(batch["flights"])
    """

    _delivery_type = Delivery
    _ticket_type = BatchTicket
