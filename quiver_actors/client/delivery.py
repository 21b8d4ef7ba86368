"""One bundle as a subscriber has it: read it, then say what becomes of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import ClosedError, InvalidBundle, UsageError
from quiver_actors.model import BundleId
from quiver_actors.units import SECOND_NS

if TYPE_CHECKING:
    from quiver_actors.client.subscription import Subscription


class GapNotice(NamedTuple):
    """Bundles that a subscriber will never get, and why: `damaged`, `evicted`, `expired` or `dropped`."""

    topic: str
    core: int
    segment_seq: int
    bundle_index_first: int
    bundle_count: int
    reason: str


class Claim(NamedTuple):
    """What a connection holds: valid as long as the channel's generation is the same."""

    core: int
    generation: int
    segment_seq: int
    bundle_index: int


class Delivery:
    """A bundle that is claimed for this consumer until it is resolved or the connection ends.

    Batches point into the mapped segment file: reading copies nothing, and they stay valid for as long as they are referenced, also
    after the delivery was resolved and the subscription closed. Slots that are never asked for are never touched.

        with delivery:                        # ack at the end, defer if the block raises
            write(delivery["flights"])
    """

    __slots__ = ("_claim", "_is_resolved", "_segment", "_slots", "_subscription", "bundle_id")

    def __init__(
        self, subscription: Subscription, slots: TopicSlots, segment: MappedSegment, bundle_id: BundleId, claim: Claim
    ) -> None:
        self.bundle_id = bundle_id
        self._subscription = subscription
        self._slots = slots
        self._segment = segment
        self._claim = claim
        self._is_resolved = False

    @property
    def slots(self) -> Mapping[int, pa.RecordBatch]:
        """The batches of all slots that the bundle has, by slot id.

        Raises:
            FormatError: the stored bundle cannot be read; `reject` it to go on without it.
        """
        return self._segment.bundle(self.bundle_id.bundle_index)

    @property
    def slot_ids(self) -> tuple[int, ...]:
        """The slots that the bundle has."""
        return self._segment.slot_ids(self.bundle_id.bundle_index)

    @property
    def batch(self) -> pa.RecordBatch:
        """The batch of the only slot.

        Raises:
            InvalidBundle: the bundle has several slots.
            FormatError: the stored bundle cannot be read.
        """
        slot_ids = self.slot_ids
        if len(slot_ids) != 1:
            raise InvalidBundle(f"bundle {self.bundle_id} has the slots {list(slot_ids)}: choose one, delivery[slot]")
        return self._segment.batch(self.bundle_id.bundle_index, slot_ids[0])

    @property
    def row_count(self) -> int:
        """Rows of all slots."""
        return self._segment.row_count(self.bundle_id.bundle_index)

    @property
    def item_count(self) -> int | None:
        """What the producer said it holds, None if it did not."""
        return self._segment.item_count(self.bundle_id.bundle_index)

    @property
    def ingestion_unix_ns(self) -> int | None:
        """When the worker took it in; UNIX time in nanoseconds."""
        return self._segment.ingestion_ts_nanos(self.bundle_id.bundle_index)

    @property
    def incarnation(self) -> bytes | None:
        """Which life of the topic's directory on that core stored it: bundle ids repeat only where this differs."""
        return self._segment.incarnation

    @property
    def is_resolved(self) -> bool:
        """Whether this object has said what becomes of the bundle."""
        return self._is_resolved

    def __getitem__(self, slot: str | int) -> pa.RecordBatch:
        """The batch of one slot, by name or id.

        Raises:
            UnknownSlot: the topic has no such slot.
            SlotNotInBundle: this bundle has nothing in it.
            FormatError: the stored batch cannot be read.
        """
        return self._segment.batch(self.bundle_id.bundle_index, self._slots.table.resolve(slot))

    def __contains__(self, slot: str | int) -> bool:
        return self._slots.table.resolve(slot) in self.slot_ids

    def ack(self) -> None:
        """Done with it: it is not delivered to this subscriber again.

        The acknowledgement leaves with others; it is durable after `Subscription.flush` or `close`. Should the worker die
        before that, the bundle is delivered again.

        Raises:
            NotClaimed: it was resolved before.
            ClosedError: the subscription was closed.
        """
        self._resolve("ack", 0)

    def reject(self) -> None:
        """Never deliver it to this subscriber again, and count it as dropped. Raises as `ack`."""
        self._resolve("reject", 0)

    def defer(self, delay_seconds: float = 0) -> None:
        """Give it back, to be delivered again after a delay, perhaps to another consumer. Newer bundles do not wait for it.

        Raises as `ack`.
        """
        if delay_seconds < 0:
            raise UsageError(f"a delay of {delay_seconds} s is not possible: expected 0 or more")
        self._resolve("defer", round(delay_seconds * SECOND_NS))

    def __enter__(self) -> Delivery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_resolved:
            return
        if error is None:
            self.ack()
        else:
            # A closed subscription has given the bundle back already; that must not hide the block's own error.
            with contextlib.suppress(ClosedError):
                self.defer()

    def __repr__(self) -> str:
        state = "resolved" if self._is_resolved else "claimed"
        topic, core, segment_seq, bundle_index = self.bundle_id
        return f"<Delivery {topic} core={core} segment={segment_seq} bundle={bundle_index} {state}>"

    def _resolve(self, outcome: str, delay_ns: int) -> None:
        self._subscription._resolve(self, outcome, delay_ns)
