"""A subscriber waits for the check of segments that it is owed, and for no others."""

from __future__ import annotations

from quiver_actors.store.engine.unchecked import Unchecked
from quiver_actors.store.subscriber import bitmap
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress

SEGMENTS = (3, 4, 5, 7)
BUNDLES = 10


def state(name: str, watermark: int = 0, **resolved: int) -> SubscriberState:
    """A subscriber that has resolved everything below the segment `watermark`, and so many bundles of the segments `s4`, `s5`, ..."""
    entries = {int(segment[1:]): SegmentProgress(count, bitmap.full(count)) for segment, count in resolved.items()}
    found = SubscriberState(name)
    found.load_files(SubscriberProgress(oldest_incomplete_seg=watermark, entries=entries, trusted_watermark=True))
    return found


def unchecked(bundle_count: int = BUNDLES) -> Unchecked:
    return Unchecked(SEGMENTS, lambda _: bundle_count)


def test_the_limit_is_the_first_segment_that_the_subscriber_is_owed() -> None:
    waiting = unchecked()
    assert waiting.limit(state("all")) == (3, 0)
    assert waiting.limit(state("some", watermark=4)) == (4, 0)
    assert waiting.limit(state("later", watermark=4, s4=BUNDLES)) == (5, 0)
    assert waiting.limit(state("none", watermark=8)) is None


def test_the_limit_rises_as_segments_are_checked() -> None:
    waiting, lagging = unchecked(), state("s")
    for segment_seq, following in ((3, (4, 0)), (4, (5, 0)), (5, (7, 0)), (7, None)):
        waiting.remove(segment_seq)
        assert waiting.limit(lagging) == following


def test_progress_that_names_fewer_bundles_than_the_footer_owes_the_rest() -> None:
    assert unchecked().limit(state("s", watermark=3, s3=BUNDLES - 1)) == (3, 0)


def test_a_segment_that_does_not_say_how_many_bundles_it_has_is_owed() -> None:
    assert unchecked(bundle_count=0).limit(state("s", watermark=3, s3=BUNDLES)) == (3, 0)


def test_a_subscriber_that_goes_back_is_another_state_of_the_same_name() -> None:
    waiting = unchecked()
    assert waiting.limit(state("s", watermark=8)) is None
    assert waiting.limit(state("s")) == (3, 0)


def test_what_somebody_is_owed_is_checked_first() -> None:
    waiting = unchecked()
    states = [state("done", watermark=8), state("behind", watermark=5), state("further", watermark=7)]
    assert waiting.next_to_check(states, under_rescue=()) == 5
    assert waiting.next_to_check(states, under_rescue=(5,)) == 7
    assert waiting.next_to_check(states[:1], under_rescue=()) == 3
    assert waiting.next_to_check([], under_rescue=(3, 4)) == 5
    assert waiting.next_to_check([], under_rescue=SEGMENTS) is None
