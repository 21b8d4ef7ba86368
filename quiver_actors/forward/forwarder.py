"""The loop between a subscription and a deliverer.

Guarantees:
- A bundle is acknowledged only after its deliverer has said that it arrived: at least once, whatever is killed when.
- A bundle that cannot be delivered now is deferred and holds up nobody; one that never can be is rejected.
- Leases of what is offered and undecided are extended, as long as the deliverer comes back in time.
- At most `max_in_flight` bundles are offered and undecided.
- After `stop`, what is under way has until its deadline; the rest is given back, and what was decided is durable.

State lives in the subscriber's progress alone, so a forwarder that is started again goes on where the last one ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import ClosedError, FormatError, NotClaimed, QuiverError, UsageError, WorkerUnavailable
from quiver_actors.forward.backoff import Backoff
from quiver_actors.forward.calls import Calls
from quiver_actors.forward.deliverer import Deliverer, Outcome, Source
from quiver_actors.forward.errors import PermanentFailure

DRAIN_SECONDS = 30.0
PERMANENT: tuple[type[Exception], ...] = (PermanentFailure, FormatError)
"""A stored bundle that cannot be read will not be readable later."""

_LOOK_SECONDS = 0.05
"""How long the loop may be deaf to `stop` and to outcomes while it waits for bundles, and the other way round."""
_EXTEND_INTERVAL_NS_MIN = SECOND_NS // 4
_LOG_INTERVAL_NS = 10 * SECOND_NS

logger = logging.getLogger("quiver.forward")


@dataclass(frozen=True, slots=True)
class ForwarderStatistics:
    """Counted since the forwarder was made; a bundle that is offered again counts again."""

    offered: int = 0
    delivered: int = 0
    deferred: int = 0
    """Transient failures: offered again after a delay."""
    rejected: int = 0
    """Permanent failures: dropped."""
    given_back: int = 0
    """Undecided when the time to drain was over."""
    lost: int = 0
    """Decided after the claim had ended: delivered once more to somebody."""
    in_flight: int = 0
    """Offered and undecided now."""
    last_error: str = ""
    last_error_unix_ns: int = 0


class Forwarder:
    """Offers a subscription's bundles to a deliverer, and resolves them by what comes of it.

    Args:
        subscription: of its own; it stays the caller's to close.
        deliver: a `Deliverer` such as `ParquetFiles`, which stays the caller's to close, or a function (see `Calls`).
        retry: how long a bundle waits after a transient failure; grows with its delivery count.
        max_in_flight: bundles offered and undecided; the subscription's own window should not be smaller.
        permanent: exceptions that mean rejection; any other one is transient.

    Raises:
        UsageError: `max_in_flight` is not positive.
    """

    def __init__(
        self,
        subscription: Source,
        deliver: Deliverer | Callable[[Delivery], Future[object] | object],
        *,
        retry: Backoff | None = None,
        max_in_flight: int = 1000,
        permanent: tuple[type[Exception], ...] = PERMANENT,
    ) -> None:
        if max_in_flight < 1:
            raise UsageError(f"max_in_flight {max_in_flight} is not possible: expected at least 1")
        self._subscription = subscription
        self._deliverer = deliver if isinstance(deliver, Deliverer) else Calls(deliver)
        self._retry = retry or Backoff()
        self._max_in_flight = max_in_flight
        self._permanent = permanent
        self._in_flight: dict[int, Delivery] = {}
        """Deliveries under way, by object identity: two deliveries of one bundle are two."""
        self._counts: Counter[str] = Counter()
        self._last_error = ("", 0)
        self._logged_ns = 0
        self._extend_at_ns = 0
        self._stop_deadline_ns: int | None = None
        self._ended = threading.Event()

    def statistics(self) -> ForwarderStatistics:
        """A snapshot; may be called by any thread."""
        message, unix_ns = self._last_error
        return ForwarderStatistics(
            **self._counts, in_flight=len(self._in_flight), last_error=message, last_error_unix_ns=unix_ns
        )

    def run(self, *, idle_timeout: float | None = None) -> ForwarderStatistics:
        """Forward until `stop` is called, the subscription is closed, or nothing came for `idle_timeout` seconds.

        Raises:
            QuiverError: a worker refuses this subscriber, such as UnknownSubscriber after it was unregistered; or what was decided
                could not be made durable in time. What is under way is drained before.
        """
        self._ended.clear()
        try:
            try:
                self._forward(idle_timeout)
            finally:
                self._drain()
            self._subscription.flush()
        except ClosedError:
            # Somebody closed the subscription: it has given back what was under way.
            logger.info("quiver.forward.closed")
        finally:
            self._in_flight.clear()
            self._stop_deadline_ns = None
            self._ended.set()
        return self.statistics()

    def stop(self, timeout: float = DRAIN_SECONDS) -> None:
        """Have `run` return: nothing more is taken, and what is under way has so many seconds. For signal handlers and threads."""
        self._stop_deadline_ns = time.monotonic_ns() + round(timeout * SECOND_NS)

    def drain(self, timeout: float = DRAIN_SECONDS) -> bool:
        """`stop`, then wait until `run`, in another thread, is about to return; False if it needs a second longer than that."""
        self.stop(timeout)
        return self._ended.wait(timeout + 1)

    # --- the loop --------------------------------------------------------------------------------------------------------

    def _forward(self, idle_timeout: float | None) -> None:
        idle_since_ns = time.monotonic_ns()
        while self._stop_deadline_ns is None:
            if self._advance():
                idle_since_ns = time.monotonic_ns()
            elif idle_timeout is not None and time.monotonic_ns() - idle_since_ns >= idle_timeout * SECOND_NS:
                return

    def _advance(self) -> bool:
        """Do one step; False if no delivery came."""
        self._hurry_if_due()
        self._extend_if_due()
        if len(self._in_flight) >= self._max_in_flight:
            self._deliverer.hurry()
            return self._settle(_LOOK_SECONDS)
        delivery = self._subscription.get(self._patience_seconds())
        if delivery is not None:
            self._offer(delivery)
        return self._settle(0) or delivery is not None

    def _offer(self, delivery: Delivery) -> None:
        self._in_flight[id(delivery)] = delivery
        self._counts["offered"] += 1
        self._note_lease(delivery)
        try:
            self._deliverer.offer(delivery)
        except Exception as error:  # noqa: BLE001 - whatever a deliverer raises is what became of the bundle
            self._decide(Outcome(delivery, error))

    def _hurry_if_due(self) -> None:
        due_ns = self._deliverer.finish_at_ns
        if due_ns is not None and time.monotonic_ns() >= due_ns:
            self._deliverer.hurry()

    def _extend_if_due(self) -> None:
        """Begin the leases anew that are half over, or may be."""
        now_ns = time.monotonic_ns()
        if now_ns < self._extend_at_ns:
            return
        leased = [each for each in self._in_flight.values() if each.lease_until_ns is not None]
        if leased:
            try:
                self._subscription.extend(leased)
            except WorkerUnavailable as error:
                # Its claims are gone or will be; what comes of them is told when they are resolved.
                logger.warning("quiver.forward.extend error=%s", error)
        ends_ns = [each.lease_until_ns for each in leased if each.lease_until_ns is not None]
        left_ns = min(ends_ns, default=0) - time.monotonic_ns()
        self._extend_at_ns = now_ns + max(_EXTEND_INTERVAL_NS_MIN, left_ns // 2)

    def _note_lease(self, delivery: Delivery) -> None:
        if delivery.lease_until_ns is not None:
            now_ns = time.monotonic_ns()
            self._extend_at_ns = min(self._extend_at_ns, now_ns + (delivery.lease_until_ns - now_ns) // 2)

    def _patience_seconds(self) -> float:
        due_ns = self._deliverer.finish_at_ns
        if due_ns is None:
            return _LOOK_SECONDS
        return min(_LOOK_SECONDS, max(0, due_ns - time.monotonic_ns()) / SECOND_NS)

    def _drain(self) -> None:
        """Let what is under way end, as long as there is time; give the rest back."""
        deadline_ns = self._stop_deadline_ns or time.monotonic_ns() + round(DRAIN_SECONDS * SECOND_NS)
        if self._in_flight:
            self._deliverer.hurry()
        while self._in_flight and (left_ns := deadline_ns - time.monotonic_ns()) > 0:
            self._extend_if_due()
            self._settle(min(_LOOK_SECONDS, left_ns / SECOND_NS))
        self._settle(0)
        for delivery in self._in_flight.values():
            with contextlib.suppress(NotClaimed):
                delivery.defer()
            self._counts["given_back"] += 1

    # --- outcomes --------------------------------------------------------------------------------------------------------

    def _settle(self, timeout_seconds: float) -> bool:
        """Resolve what has been decided; waits for the first. True if there was something."""
        outcomes = self._deliverer.outcomes(timeout_seconds)
        for outcome in outcomes:
            self._decide(outcome)
        return bool(outcomes)

    def _decide(self, outcome: Outcome) -> None:
        delivery, error = outcome
        if self._in_flight.pop(id(delivery), None) is None:
            return  # given back in an earlier run
        try:
            if error is None:
                delivery.ack()
                self._counts["delivered"] += 1
            elif isinstance(error, self._permanent):
                self._note(delivery, error, "rejected")
                delivery.reject()
            else:
                self._note(delivery, error, "deferred")
                delivery.defer(self._retry.delay_seconds(max(1, delivery.delivery_count)))
        except NotClaimed as gone:
            self._note(delivery, gone, "lost")

    def _note(self, delivery: Delivery, error: Exception, outcome: str) -> None:
        reason = str(error) if isinstance(error, QuiverError) else f"{type(error).__name__}: {error}"
        self._last_error = (reason, time.time_ns())
        self._counts[outcome] += 1
        # One line now and then: a destination that is down fails for every bundle.
        now_ns = time.monotonic_ns()
        if now_ns - self._logged_ns >= _LOG_INTERVAL_NS or outcome == "rejected":
            self._logged_ns = now_ns
            logger.warning("quiver.forward.%s bundle=%s error=%s", outcome, delivery.bundle_id, reason)
