from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from quiver_actors.client import Delivery
from quiver_actors.errors import ArrowError, ClosedError, UnknownSubscriber, UsageError
from quiver_actors.forward import Backoff, Forwarder, Outcome, PermanentFailure, TransientFailure
from tests.unit.forward.stored import SealedSegments, Stored

EXACT = Backoff(jitter=0)
IDLE = 0.0
DEADLINE_SECONDS = 60.0


def numbers_of(delivery: Delivery) -> int:
    found: int = delivery[0].column(0)[0].as_py()
    return found


def test_what_was_delivered_is_acknowledged_and_flushed() -> None:
    sealed_segments = SealedSegments(*map(Stored, range(5)))
    seen: list[int] = []
    statistics = Forwarder(sealed_segments, lambda delivery: seen.append(numbers_of(delivery))).run(idle_timeout=IDLE)
    assert seen == list(range(5))
    assert sealed_segments.flushed == ["ack"] * 5
    assert (statistics.offered, statistics.delivered, statistics.in_flight) == (5, 5, 0)


def test_each_failure_has_its_resolution_and_holds_up_nobody() -> None:
    errors = {
        1: TransientFailure("down"),
        2: PermanentFailure("never"),
        3: ArrowError("damaged"),
        4: OSError("anything else"),
    }

    def deliver(delivery: Delivery) -> None:
        if error := errors.get(numbers_of(delivery)):
            raise error

    sealed_segments = SealedSegments(*(Stored(number, delivery_count=4) for number in range(6)))
    statistics = Forwarder(sealed_segments, deliver, retry=EXACT).run(idle_timeout=IDLE)
    assert sealed_segments.flushed == ["ack", "defer", "reject", "reject", "defer", "ack"]
    assert [stored.delay_seconds for stored in sealed_segments.all] == [0, 8, 0, 0, 8, 0]
    assert (statistics.delivered, statistics.deferred, statistics.rejected) == (2, 2, 2)
    assert statistics.last_error == "OSError: anything else"


def test_futures_are_under_way_together_and_resolved_in_any_order() -> None:
    futures: dict[int, Future[object]] = {}
    three, four = threading.Event(), threading.Event()

    def deliver(delivery: Delivery) -> Future[object]:
        future = futures[numbers_of(delivery)] = Future()
        reached = {3: three, 4: four}.get(len(futures))
        if reached is not None:
            reached.set()
        return future

    sealed_segments = SealedSegments(*map(Stored, range(4)))
    forwarder = Forwarder(sealed_segments, deliver, max_in_flight=3)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(forwarder.run)
        assert three.wait(DEADLINE_SECONDS)
        assert forwarder.statistics().in_flight == 3
        assert sealed_segments.resolutions() == [""] * 4
        futures[2].set_result(None)
        futures[0].set_exception(TransientFailure("down"))
        futures[1].cancel()
        assert four.wait(DEADLINE_SECONDS)
        futures[3].set_result(None)
        assert forwarder.drain(DEADLINE_SECONDS)
        statistics = running.result(DEADLINE_SECONDS)
    assert sealed_segments.flushed == ["defer", "defer", "ack", "ack"]
    assert (statistics.delivered, statistics.deferred, statistics.in_flight) == (2, 2, 0)


def test_drain_gives_back_what_is_not_decided_in_time() -> None:
    futures: list[Future[object]] = []
    both = threading.Event()

    def deliver(delivery: Delivery) -> Future[object]:
        futures.append(Future())
        if len(futures) == 2:
            both.set()
        return futures[-1]

    sealed_segments = SealedSegments(*map(Stored, range(2)))
    forwarder = Forwarder(sealed_segments, deliver)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(forwarder.run)
        assert both.wait(DEADLINE_SECONDS)
        futures[0].set_result(None)
        forwarder.stop(0.1)
        statistics = running.result(DEADLINE_SECONDS)
    futures[1].set_result(None)  # too late: nobody listens
    assert sealed_segments.flushed == ["ack", "defer"]
    assert (statistics.delivered, statistics.given_back, statistics.in_flight) == (1, 1, 0)


class InBatches:
    """Decides nothing before it is told to hurry."""

    finish_at_ns = None

    def __init__(self) -> None:
        self.taken: list[Delivery] = []
        self.decided: list[Outcome] = []
        self.batches: list[int] = []

    def offer(self, delivery: Delivery) -> None:
        self.taken.append(delivery)

    def hurry(self) -> None:
        self.batches.append(len(self.taken))
        self.decided += map(Outcome, self.taken)
        self.taken.clear()

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        found, self.decided = self.decided, []
        return found

    def close(self) -> None:
        pass


def test_a_deliverer_in_batches_is_hurried_at_the_limit_and_at_the_end() -> None:
    sealed_segments, deliverer = SealedSegments(*map(Stored, range(8))), InBatches()
    Forwarder(sealed_segments, deliverer, max_in_flight=3).run(idle_timeout=IDLE)
    assert deliverer.batches == [3, 3, 2]
    assert sealed_segments.flushed == ["ack"] * 8


@pytest.mark.parametrize("lease_ns", [0, 10**9])
def test_leases_are_extended_while_there_is_no_outcome(lease_ns: int) -> None:
    sealed_segments, deliverer = SealedSegments(Stored(0), Stored(1)), InBatches()
    sealed_segments.lease_ns = lease_ns
    Forwarder(sealed_segments, deliverer).run(idle_timeout=0.8 if lease_ns else 0.3)
    assert set(sealed_segments.extended) == ({2} if lease_ns else set())
    assert sealed_segments.flushed == ["ack"] * 2


def test_a_claim_that_has_ended_is_counted_as_lost() -> None:
    sealed_segments = SealedSegments(Stored(0), Stored(1))
    sealed_segments.all[0].claim_has_ended = True
    statistics = Forwarder(sealed_segments, lambda delivery: None).run(idle_timeout=IDLE)
    assert (statistics.lost, statistics.delivered) == (1, 1)


def test_a_refused_subscriber_ends_the_run_after_the_drain() -> None:
    sealed_segments, deliverer = SealedSegments(), InBatches()
    forwarder = Forwarder(sealed_segments, deliverer)
    stored = Stored(1)
    sealed_segments.waiting.append(stored)
    forwarder._advance()
    sealed_segments.error = UnknownSubscriber("dropped by somebody")
    with pytest.raises(UnknownSubscriber):
        forwarder.run()
    assert stored.resolution == "ack"


def test_a_closed_subscription_ends_the_run_quietly() -> None:
    sealed_segments = SealedSegments()
    sealed_segments.error = ClosedError("closed")
    assert Forwarder(sealed_segments, lambda delivery: None).run().offered == 0


def test_at_least_one_bundle_must_be_allowed() -> None:
    with pytest.raises(UsageError):
        Forwarder(SealedSegments(), lambda delivery: None, max_in_flight=0)
