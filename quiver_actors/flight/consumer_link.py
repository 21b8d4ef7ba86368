"""A remote consumer's line to its server: outcomes of deliveries on their way there, and a sign of life while the caller does other things.

Guarantees
- Outcomes arrive in their order, each once. They leave at once where none left in the last 20 ms, and then together.
- When the server has forgotten the consumer, as it was started anew or heard nothing for too long, `renew` attaches a new one to the same
  subscriber. What was held before is delivered again; what was resolved and not known to be durable is told by `lost_since_flush`.

One thread of its own, which lives as long as the line is open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from quiver_actors.base.locks import new_lock
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.grants import Bundles
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.subscribe_request import NotDelivered
from quiver_actors.errors import ClosedError, QuiverError, WorkerUnavailable
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.connection import FLIGHT_ERRORS, FlightConnection
from quiver_actors.flight.contract import Done
from quiver_actors.flight.received_parcel import ReceivedParcel

OUTCOME_WAIT_SECONDS = 0.02
GRACE_SECONDS = 5.0
CLOSE_SECONDS = 5.0

T = TypeVar("T")

logger = logging.getLogger("quiver.client")


class ConsumerLink:
    """The line of one consumer. Any number of threads may call its methods."""

    def __init__(self, connection: FlightConnection, request: rc.Subscribe, timeout_seconds: float) -> None:
        """Attaches the consumer. Raises as `RemoteClient.subscribe`."""
        self.late_count = 0
        """Deliveries that were resolved after their consumer was lost."""
        self.refused_count = 0
        self.taken = 0
        """Number of the last answer that the caller was handed whole."""
        self.generation = 0
        """Rises with each consumer that is attached."""
        self.not_delivered: tuple[NotDelivered, ...] = ()
        """What the subscriber, if it is new, does not get."""
        self._connection = connection
        self._request = request
        self._timeout_seconds = timeout_seconds
        self._outcomes: list[rc.Outcome] = []
        self._resolved = 0
        """Outcomes that were queued so far."""
        self._settled = 0
        """How many of those are known to be durable, or are lost with their consumer."""
        self._lost = 0
        """Outcomes that were lost, which no `flush` has told yet."""
        self._is_closed = False
        self._pid = os.getpid()
        self._lock = new_lock()
        self._sending = new_lock()
        self._woken = threading.Event()
        self._attach()
        threading.Thread(target=self._tend, name="quiver-remote-consumer", daemon=True).start()

    # --- what deliveries call (as `client.resolutions.Resolutions` has it) -----------------------------------------------------

    def ack(self, parcel: ReceivedParcel, bundle_index: int) -> int:
        """Queue an acknowledgement. Raises ClosedError."""
        return self.resolve(parcel, bundle_index, "ack")

    def ack_many(self, bundles: Sequence[Bundles]) -> int:
        """Queue the acknowledgement of bundles, each the only one of its parcel. Raises ClosedError."""
        numbers = [self.ack(cast(ReceivedParcel, parcel), index) for parcel, (index,) in bundles]
        return max(numbers, default=0)

    def resolve(self, parcel: ReceivedParcel, bundle_index: int, outcome: Any, delay_ns: int = 0) -> int:
        """Queue an outcome. Raises ClosedError."""
        with self._lock:
            self._check_open()
            if parcel.generation != self.generation:
                self.late_count += 1
                return parcel.number
            self._outcomes.append(rc.Outcome(parcel.number, outcome, delay_ns))
            self._resolved += 1
        self._woken.set()
        return parcel.number

    def report_unreadable(self, parcel: ReceivedParcel, bundle_index: int, *_: object) -> None:
        """Give a bundle back that cannot be read here: the node could read it."""
        with contextlib.suppress(ClosedError):
            self.resolve(parcel, bundle_index, "defer")

    def settle(self, parcels: Sequence[ReceivedParcel], timeout_seconds: float) -> None:
        """Wait until the outcomes of deliveries are durable. Raises as `Ticket.wait`, for the first of them that does not count."""
        current = [parcel.number for parcel in parcels if parcel.generation == self.generation]
        if current:
            try:
                self._send(timeout_seconds)
                self.ask(rc.Settle(current, _ns(timeout_seconds)), Done, timeout_seconds)
            except ClosedError:
                self._check_open()
                current = []
        if len(current) < len(parcels):
            raise WorkerUnavailable("the server has lost this consumer since: the bundle may be delivered again")

    def extend(self, parcels: list[ReceivedParcel], timeout_seconds: float) -> set[int]:
        """Begin leases anew; returns the numbers of those that are not held any more. Raises as `Subscription.extend`."""
        current = {parcel.number: parcel for parcel in parcels if parcel.generation == self.generation}
        lost = {parcel.number for parcel in parcels} - current.keys()
        if not current:
            return lost
        self._send(timeout_seconds)
        asked_ns = time.monotonic_ns()
        act = rc.ExtendLeases(list(current), _ns(timeout_seconds))
        try:
            left_ns = self.ask(act, rc.Extended, timeout_seconds).left_ns
        except ClosedError:
            self._check_open()
            return lost | current.keys()
        for number, left in left_ns.items():
            current[number].grant.lease_until_ns = asked_ns + left if left else 0
        return lost | (current.keys() - left_ns.keys())

    # --- what the subscription calls -------------------------------------------------------------------------------------------

    def ask(self, act: rc.Act, answer: type[T], timeout_seconds: float) -> T:
        """Have something done with the consumer. Raises ClosedError where the server does not know it any more."""
        request = rc.Consume(self._id, act, self.taken)
        return self._connection.ask(request, answer, timeout_seconds + GRACE_SECONDS, is_retried=True)

    def read(
        self, ticket: rc.TakeTicket | rc.ClaimTicket, wait_seconds: float, generation: int | None = None
    ) -> list[pa.RecordBatch]:
        """Fetch bundles, as `frames` has them. The ticket's subscription is set here. Raises as `ask`.

        Args:
            generation: of the consumer that the ticket is for: where another one is attached, ClosedError is raised. None: any.
        """
        with self._lock:
            if generation not in (None, self.generation):
                raise ClosedError("another consumer was attached in the place of this one")
            named = msgspec.structs.replace(ticket, subscription=self._id)
        connection = self._connection
        try:
            options = connection.options(wait_seconds + GRACE_SECONDS)
            stream = connection.client().do_get(fl.Ticket(msgspec.json.encode(named)), options)
            return [chunk.data for chunk in stream]
        except FLIGHT_ERRORS as error:
            raise connection.explained(error) from error

    def flush(self, timeout_seconds: float) -> rc.Refusals:
        """Wait until all outcomes are durable. Raises as `Subscription.flush`."""
        with self._lock:
            resolved = self._resolved
        try:
            self._send(timeout_seconds)
            found = self.ask(rc.Flush(_ns(timeout_seconds)), rc.Refusals, timeout_seconds)
            with self._lock:
                # Another thread may have flushed as much, or found that the consumer was lost.
                self._settled = max(self._settled, resolved)
        except ClosedError:
            self._check_open()
            self.renew(self.generation)
            found = rc.Refusals([])
        with self._lock:
            lost, self._lost = self._lost, 0
        if lost:
            raise WorkerUnavailable(
                f"the server lost this consumer before {lost} resolutions were known to be durable: those bundles may be delivered again"
            )
        return found

    def send(self) -> None:
        """Send the outcomes that wait. Raises as `ask`; what was not sent is kept."""
        self._send(self._timeout_seconds)

    def renew(self, generation: int) -> None:
        """Attach a new consumer in place of one that the server has lost, unless another thread has done so. Raises as `subscribe`."""
        with self._sending:
            with self._lock:
                self._check_open()
                if generation != self.generation:
                    return
            logger.warning("quiver.subscription.renewed subscriber=%s", self._request.subscriber)
            self._attach()

    def close(self) -> None:
        """Send and flush what was resolved, give everything else back, and end. Idempotent; logs what fails."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._woken.set()
        if os.getpid() != self._pid:
            return
        try:
            self._send(CLOSE_SECONDS)
            self.ask(rc.EndSubscription(), Done, CLOSE_SECONDS)
        except QuiverError as error:
            logger.warning("quiver.subscription.close subscriber=%s error=%s", self._request.subscriber, error)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("it was closed: subscribe again")

    def _attach(self) -> None:
        found = self._connection.ask(self._request, rc.Subscribed, self._timeout_seconds)
        with self._lock:
            self._id = found.subscription
            self.slots = TopicSlots(found.topic)
            self._alive_seconds = found.idle_seconds / 4
            self.not_delivered = self.not_delivered or tuple(found.not_delivered)
            self._lost += self._resolved - self._settled
            self._settled = self._resolved
            self._outcomes.clear()
            self.generation += 1
            self.taken = 0

    def _send(self, timeout_seconds: float, *, is_alive: bool = False) -> None:
        with self._sending:
            with self._lock:
                outcomes, self._outcomes = self._outcomes, []
            if not outcomes and not is_alive:
                return
            try:
                self.refused_count = self.ask(rc.Resolve(outcomes), rc.Resolved, timeout_seconds).refused_count
            except QuiverError:
                with self._lock:
                    self._outcomes[:0] = outcomes
                raise

    def _tend(self) -> None:
        """Send what waits, and signs of life."""
        while not self._is_closed:
            is_alive = not self._woken.wait(self._alive_seconds)
            self._woken.clear()
            if self._is_closed:
                return
            # What fails is told by the next call of the user.
            with contextlib.suppress(QuiverError):
                self._send(self._timeout_seconds, is_alive=is_alive)
            time.sleep(OUTCOME_WAIT_SECONDS)


def _ns(seconds: float) -> int:
    return round(seconds * SECOND_NS)
