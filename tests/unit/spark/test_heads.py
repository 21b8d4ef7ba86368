"""Where a stream's next micro-batch may end: readable ends, gaps and segments that are still to come."""

from __future__ import annotations

from typing import Any

from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.flight.archived_contents import ArchivedPart
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark.heads import first_unread, head_behind, is_in_archive, lies_in, past_gaps, settled_until
from quiver_actors.spark.offsets import Place, position

FAR = position(1 << 40, 0)


def sealed(segment_seq: int, bundles: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundles, bundles, 8 * bundles, 0, 0)


def unsealed(segment_seq: int, bundles: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundles, -1, 8 * bundles, 0, 0)


def lost(segment_seq: int) -> Gap:
    return Gap("t", "s", 1, segment_seq, 0, 1, 2, -1, "evicted")


def core(segments: list[SegmentInfo], **fields: Any) -> CoreContents:
    return CoreContents(0, segments, **fields)


def test_the_head_is_behind_the_last_bundle_that_can_be_read() -> None:
    found = core([sealed(3, 4)], unsealed=[unsealed(4, 2)], unsettled=[4])
    assert settled_until(found, 0) == position(4, 2)
    assert head_behind(found, 0, FAR) == position(4, 2)
    assert head_behind(core([sealed(3, 4)]), 0, FAR) == position(4, 0)


def test_a_seal_alone_moves_nothing() -> None:
    known = position(4, 2)
    assert head_behind(core([sealed(4, 2)]), known, FAR) == known
    assert head_behind(core([sealed(4, 3)]), known, FAR) == position(5, 0)
    assert head_behind(core([sealed(4, 2), sealed(5, 1)]), known, FAR) == position(6, 0)
    assert head_behind(core([]), known, FAR) == known


def test_a_loss_is_passed_where_nothing_that_is_stored_lies_before_it() -> None:
    assert past_gaps(core([sealed(4, 2)], gaps=[lost(5)]), position(4, 2)) == position(6, 0)
    assert past_gaps(core([sealed(4, 3)], gaps=[lost(5)]), position(4, 2)) == position(4, 2)
    assert head_behind(core([sealed(4, 2)], gaps=[lost(5)]), position(4, 2), FAR) == position(6, 0)


def test_a_loss_in_an_open_segment_ends_it_for_nobody() -> None:
    found = core([], unsealed=[unsealed(4, 2)], unsettled=[4], gaps=[lost(4)])
    assert past_gaps(found, position(4, 2)) == position(4, 2)


def test_what_is_still_to_come_holds_the_head_up() -> None:
    """A publish has taken number 4: nothing behind it is shown, nor is it passed."""
    found = core([sealed(3, 1)], unsettled=[4, 5])
    assert settled_until(found, 0) == position(4, 0)
    found = core([sealed(3, 1), sealed(5, 1)], unsettled=[4])
    assert head_behind(found, 0, settled_until(found, 0)) == position(4, 0)


def test_what_has_left_the_disk_and_is_archived_lies_before_the_head() -> None:
    archived = ArchivedPart([sealed(3, 2), sealed(4, 2)], [], 4)
    found = core([], gaps=[lost(3), lost(4)], comes_next=5, archived=archived)
    assert head_behind(found, position(3, 1), FAR) == position(5, 0)
    assert past_gaps(found, position(3, 1)) == position(3, 1)
    assert head_behind(core([sealed(5, 1)], archived=archived), 0, FAR) == position(6, 0)


def test_a_query_is_in_the_archive_until_it_has_come_to_the_disk() -> None:
    found = core([sealed(5, 1)], archived=ArchivedPart([sealed(3, 2)], [], 4))
    assert [is_in_archive(found, at) for at in (0, position(3, 1), position(5, 0))] == [False, True, False]
    assert not is_in_archive(core([sealed(5, 1)]), position(3, 1))


def test_what_a_subscriber_has_not_acknowledged_begins_with_what_it_lost() -> None:
    assert first_unread(core([], oldest=(5, 1)), FAR) == position(5, 1)
    assert first_unread(core([], oldest=(5, 1), gaps=[lost(4)]), FAR) == position(4, 0)
    assert first_unread(core([]), FAR) == FAR


def test_a_micro_batch_that_begins_earlier_or_ends_later_is_looked_at_anew() -> None:
    a, b = Place("n", 0), Place("n", 1)
    first, head = {a: 5, b: 7}, {a: 9, b: 7}
    assert lies_in({a: 5, b: 7}, {a: 9}, first, head)
    assert lies_in({}, {a: 9}, {}, head)
    assert not lies_in({a: 4, b: 7}, {a: 9}, first, head)
    assert not lies_in({a: 5}, {a: 9}, first, head)
    assert not lies_in({a: 5, b: 7}, {a: 10}, first, head)
