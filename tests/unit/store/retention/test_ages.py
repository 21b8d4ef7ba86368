"""Ages by ingestion time, on clocks that jump."""

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.retention.ages import FORGOTTEN_MAX, Ages

DAY_NS = 86_400 * SECOND_NS
NOON_NS = 1_700_000_000 * SECOND_NS


def test_age_is_counted_from_the_ingestion_not_from_the_start() -> None:
    ages = Ages()
    ages.see(1, NOON_NS - 10 * SECOND_NS, NOON_NS, 5 * SECOND_NS)
    assert ages.age_ns(1, 5 * SECOND_NS) == 10 * SECOND_NS
    assert ages.expired(10 * SECOND_NS, 5 * SECOND_NS) == []
    assert ages.expired(10 * SECOND_NS, 5 * SECOND_NS + 1) == [1]
    assert ages.next_expiry_ns(10 * SECOND_NS) == 5 * SECOND_NS + 1


def test_a_wall_clock_that_jumps_ahead_expires_nothing() -> None:
    ages = Ages()
    ages.see(1, NOON_NS, NOON_NS, 0)
    ages.see(1, NOON_NS, NOON_NS + 365 * DAY_NS, SECOND_NS)
    assert ages.expired(DAY_NS, SECOND_NS) == []


def test_a_wall_clock_that_jumps_back_keeps_nothing_longer() -> None:
    ages = Ages()
    ages.see(1, NOON_NS, NOON_NS, 0)
    ages.see(2, NOON_NS - DAY_NS, NOON_NS - DAY_NS, SECOND_NS)
    assert ages.expired(SECOND_NS, 3 * SECOND_NS) == [1, 2]


def test_what_was_ingested_in_the_future_is_as_old_as_its_first_look() -> None:
    ages = Ages()
    ages.see(7, NOON_NS + 365 * DAY_NS, NOON_NS, 100)
    assert ages.age_ns(7, 100) == 0
    assert ages.expired(SECOND_NS, 101 + SECOND_NS) == [7]


def test_a_forgotten_segment_has_no_age() -> None:
    ages = Ages()
    ages.see(1, NOON_NS, NOON_NS, 0)
    ages.forget(1)
    assert ages.age_ns(1, DAY_NS) == 0
    assert ages.next_expiry_ns(SECOND_NS) is None


def test_segments_that_are_gone_are_not_kept_in_mind_where_nothing_expires() -> None:
    ages = Ages()
    ages.see(0, NOON_NS, NOON_NS, 0)
    for segment_seq in range(1, 10 * FORGOTTEN_MAX):
        ages.see(segment_seq, NOON_NS, NOON_NS, segment_seq)
        ages.forget(segment_seq)
    assert len(ages._oldest) <= FORGOTTEN_MAX + 2
    assert ages.expired(SECOND_NS, 2 * SECOND_NS) == [0]
