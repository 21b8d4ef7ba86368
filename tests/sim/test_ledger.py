"""What the ledger demands of the engine: neither less than the promise, nor more."""

from __future__ import annotations

import pytest

from tests.sim.ledger import Fact, Ledger, PushedBundle, Subscription
from tests.sim.report import profile_named
from tests.sim.world import World


def with_one_segment() -> tuple[Ledger, Subscription]:
    """A stored bundle, and a subscriber that does not need it."""
    ledger = Ledger()
    ledger.bundles[0, 0] = PushedBundle((0, 0), 0, {}, 0, 0, durable_at=1)
    subscription = Subscription("ann", Fact(2, 2), first_sequence=1)
    ledger.subscriptions.append(subscription)
    return ledger, subscription


def test_a_decision_to_delete_holds_although_the_last_subscriber_leaves_before_the_file_goes() -> None:
    """The engine was right and the ledger was wrong (seed 1024494752). A deletion was decided while the only subscriber needed nothing of
    the segment, and waited for room on the disk. The subscriber left, durably, then the file went. The ledger asked again at the unlink,
    and held that a topic without subscribers keeps everything. It does, from then on: what was decided before was decided for
    everybody, and a subscriber that comes is not owed it."""
    ledger, subscription = with_one_segment()
    ledger.condemn([0])
    subscription.ended = Fact(3, 3)
    assert not ledger.may_delete(0)
    ledger.condemn([0])
    assert ledger.condemned == {0}


def test_no_deletion_is_decided_without_a_subscriber() -> None:
    ledger, subscription = with_one_segment()
    subscription.ended = Fact(3, 3)
    with pytest.raises(AssertionError, match="may be needed"):
        ledger.condemn([0])


def test_the_run_in_which_that_was_found() -> None:
    World(1024494752, profile_named("size"), keeps_moments=False).start().run()


def test_the_run_in_which_deleted_segments_were_told_as_lost_logs() -> None:
    """Only transactions wrote to the topic. A clean stop left its empty log, the segments that were published behind it went one by one,
    and the start after a crash took the empty log for one of those that were never sealed."""
    World(21, profile_named("transactions"), keeps_moments=False).start().run()
