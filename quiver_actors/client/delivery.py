"""One bundle as a subscriber has it: read it, then say what becomes of it."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar

from quiver_actors.client.archived_reader import ArchiveLost
from quiver_actors.client.bundle import StoredBundle
from quiver_actors.client.durations import nanoseconds
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.gaps import GapNotice, gap_reason
from quiver_actors.client.grants import Claim, Parcel
from quiver_actors.client.leases import extending_one
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.errors import AlreadyResolved, ClosedError, DataLost, NotStored

__all__ = ["ClaimedBundle", "Delivery", "GapNotice", "Ticket"]

K = TypeVar("K")

_UNREADABLE = "unreadable"


class ClaimedBundle(StoredBundle, Generic[K]):
    """A bundle that is claimed for this consumer until it is resolved, its lease is over, or the connection ends.

    If it cannot be read, the worker is told: its claim is given back, and should the segment be damaged, a gap notice comes in its place.
    `K` is the kind of ticket that resolving it gives.
    """

    __slots__ = ("_number", "_outcome", "_parcel", "_resolutions", "delivery_count")

    _ticket_type: ClassVar[type[Any]]
    """Ticket class that resolving this bundle returns: a thread's ticket or an asyncio one."""

    def __init__(self, resolutions: Resolutions[Any], parcel: Parcel, bundle_index: int, delivery_count: int) -> None:
        # Not through the base class: one is made for every bundle.
        self._segment = parcel.segment
        self._bundle_index = bundle_index
        self._is_proven = False
        self.delivery_count = delivery_count
        """How often it was delivered to this subscriber since the worker started, this time included."""
        self._resolutions = resolutions
        self._parcel = parcel
        self._outcome = ""
        self._number = 0
        """Number of the resolution among those of the consumer; 0: there is none."""

    @property
    def claim(self) -> Claim:
        """Key of the bundle for the worker and the subscription; not for callers."""
        return Claim(self._parcel, self._bundle_index, self._number)

    def note_acked(self, number: int) -> None:
        """Note that the bundle was acknowledged with others, under that number; not for callers."""
        self._outcome = "ack"
        self._number = number

    @property
    def is_resolved(self) -> bool:
        """Whether this object has resolved the bundle, or has reported it as unreadable."""
        return bool(self._outcome)

    @property
    def token(self) -> int:
        """The fencing token of the claim: rises with every claim of this core, also when its worker starts anew (as long as the clock is
        not set back), so that a later writer can shut out an earlier one."""
        return self._parcel.grant.token

    @property
    def lease_until_ns(self) -> int | None:
        """When the lease is over, by `time.monotonic_ns()`; None without one. Past or not, the worker has the last word."""
        return self._parcel.grant.lease_until_ns or None

    def ack(self) -> K:
        """Acknowledge the bundle: it is not delivered to this subscriber again. Repeating it changes nothing.

        The acknowledgement leaves with others; it is durable once the ticket says so, or after `Subscription.flush`.
        Should the worker die before that, the bundle is delivered again.

        Raises:
            AlreadyResolved: it was rejected or deferred before.
            ClosedError: the subscription was closed.
        """
        if self._outcome:
            self._check_same("ack")
        else:
            self._outcome = "ack"
            try:
                self._number = self._resolutions.ack(self._parcel, self._bundle_index)
            except BaseException:
                self._outcome = ""
                raise
        ticket: K = self._ticket_type(self._resolutions, self)
        return ticket

    def reject(self) -> K:
        """Reject the bundle: it is never delivered to this subscriber again, and counts as dropped. Raises as `ack`."""
        self._resolve("reject")
        ticket: K = self._ticket_type(self._resolutions, self)
        return ticket

    def defer(self, delay_seconds: float = 0) -> K:
        """Give the bundle back, to be delivered again after a delay, perhaps to another consumer. Newer bundles do not wait for it.

        Raises as `ack`.
        """
        self._resolve("defer", delay_seconds)
        ticket: K = self._ticket_type(self._resolutions, self)
        return ticket

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outcome:
            return
        if error is None:
            self.ack()
        else:
            # A closed subscription has given the bundle back already; that must not hide the block's own error.
            with contextlib.suppress(ClosedError):
                self.defer()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._where()} {self._outcome or 'claimed'}>"

    def _resolve(self, outcome: str, delay_seconds: float = 0) -> None:
        """Resolve the bundle with an outcome. Repeating the same outcome changes nothing."""
        delay_ns = nanoseconds("delay_seconds", delay_seconds)
        if self._outcome:
            self._check_same(outcome)
            return
        self._outcome = outcome
        try:
            self._number = self._resolutions.resolve(self._parcel, self._bundle_index, outcome, delay_ns)
        except BaseException:
            self._outcome = ""
            raise

    def _check_same(self, outcome: str) -> None:
        if self._outcome not in (outcome, _UNREADABLE):
            raise AlreadyResolved(f"{self!r} was resolved before: it cannot be {outcome}ed any more")

    def _lost(self, error: DataLost | NotStored) -> None:
        if isinstance(error, NotStored):
            # What a subscriber gets from the archive was there when it began, and goes from there by its age.
            self._unreadable(str(error), "expired")
        elif isinstance(error, ArchiveLost):
            self._unreadable(str(error), gap_reason(error.reason))
        else:
            # It was rescued while it was on its way: it comes again from the archive, or its notice comes.
            self._unreadable(str(error))

    def _unreadable(self, reason: str, lost: str = "") -> None:
        if self._outcome:
            return
        self._outcome = _UNREADABLE
        try:
            self._resolutions.report_unreadable(self._parcel, self._bundle_index, self.bundle_id, reason, lost)
        except ClosedError:
            # The claim has ended with the subscription, so there is no worker to tell.
            self._outcome = ""
        except BaseException:
            self._outcome = ""
            raise


class Ticket:
    """The receipt of a resolution: ask it whether the worker has it for good."""

    __slots__ = ("_delivery", "_resolutions")

    def __init__(self, resolutions: Resolutions[Exchange], delivery: Delivery) -> None:
        self._resolutions = resolutions
        self._delivery = delivery

    def wait(self, timeout: float = 10.0) -> None:
        """Return when the resolution is durable. Every resolution that was made before rides along.

        Raises:
            LeaseExpired, Fenced, AlreadyResolved, NotClaimed: it came too late: the claim was gone.
            WorkerUnavailable: the worker was lost or did not answer: the bundle may be delivered again.
            EngineFailed, QuiverError: the worker could not make it durable.
        """
        resolutions, delivery = self._resolutions, self._delivery
        resolutions.exchange.run(resolutions.confirming(delivery.claim, delivery, timeout))


class Delivery(ClaimedBundle[Ticket]):
    """A bundle that is claimed for this consumer until it is resolved, its lease is over, or the connection ends.

    Batches point into the mapped segment file: reading copies nothing, and they stay valid for as long as they are referenced, also
    after the delivery was resolved and the subscription closed. Before it shows anything of what is stored, the whole bundle has been
    proven against its checksum (see `StoredBundle`).

        with delivery:                        # ack at the end, defer if the block raises
            write(delivery["flights"])
    """

    __slots__ = ()

    _ticket_type = Ticket

    def extend(self, timeout: float = 10.0) -> None:
        """Begin the lease anew, of this bundle and of those that were claimed with it.

        Raises:
            LeaseExpired: it was over, or its connection lost: the bundle may have gone to another consumer.
            AlreadyResolved: it is not held any more.
            WorkerUnavailable: the worker did not answer.
        """
        self._resolutions.exchange.run(extending_one(self, timeout))
