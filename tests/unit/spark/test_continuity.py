"""What was stored between two places of a query, and is deleted though it has not read it."""

from __future__ import annotations

from typing import Any

from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.flight.archived_contents import ArchivedPart
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark.continuity import LogPositions, deleted_between, log_position, past_deleted
from quiver_actors.spark.loss_texts import as_text
from quiver_actors.spark.offsets import Place, position

PLACE = Place("n", 0)
FAR = position(1 << 40, 0)
RESTORED = 1 << 52


def sealed(segment_seq: int, bundles: int, start: int, *, lost: int = 0) -> SegmentInfo:
    """A segment whose bundles took a hundred bytes of log each, from `start` on."""
    return SegmentInfo(segment_seq, bundles, bundles, 8, 0, 0, True, start, start + 100 * bundles, lost)


def unsealed(segment_seq: int, bundles: int, start: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundles, -1, 8, 0, 0, True, start, start + 100 * bundles)


def core(segments: list[SegmentInfo], **fields: Any) -> CoreContents:
    return CoreContents(0, segments, **fields)


def deleted(
    found: CoreContents, begin: tuple[int, int], end: tuple[int, int], *logs: int | None
) -> list[tuple[int, int]]:
    holes = deleted_between(found, position(*begin), position(*end), *logs)
    return [(numbers.start, numbers.stop) for numbers in holes]


def test_the_log_position_of_a_place_is_where_its_segment_or_the_one_before_says() -> None:
    found = core([sealed(3, 4, 0)], unsealed=[unsealed(4, 2, 400)])
    places = [(3, 0), (3, 1), (3, 4), (4, 0), (4, 1), (4, 2), (5, 0)]
    assert [log_position(found, position(*place)) for place in places] == [0, 0, 400, 400, 400, 600, None]
    assert log_position(core([sealed(3, 4, 0)]), position(4, 0)) == 400
    assert log_position(core([], unsealed_from=(4, 400)), position(4, 0)) == 400
    assert log_position(core([], unsealed_from=(4, 400)), position(3, 2)) is None


def test_behind_numbers_that_were_not_used_the_log_stands_where_the_segment_in_front_ended() -> None:
    assert log_position(core([sealed(3, 4, 0), sealed(1027, 2, 400)]), position(1027, 0)) == 400
    assert log_position(core([sealed(3, 4, 0), sealed(1028, 2, 500)], unsettled=[1027]), position(1027, 0)) == 400
    # What is still to come may lie in between.
    assert log_position(core([sealed(3, 4, 0)], unsettled=[1026, 1027]), position(1027, 0)) is None
    closed = core([], unsealed=[unsealed(3, 4, 0), unsealed(5, 1, 400)], unsettled=[4, 5])
    assert log_position(closed, position(4, 0)) == 400


def test_in_front_of_everything_the_log_stands_where_what_there_is_begins() -> None:
    assert log_position(core([sealed(3, 4, 300)], unsealed_from=(4, 700)), 0) == 300
    assert log_position(core([], unsealed_from=(4, 700)), 0) == 700
    assert log_position(core([], unsealed_from=(4, 700), unsettled=[4]), 0) == 700
    # A segment is still to be checked, so nobody knows yet where it begins.
    assert log_position(core([], unsealed_from=(4, 700), unsettled=[3]), 0) is None
    assert log_position(core([]), 0) is None
    assert deleted(core([sealed(4, 1, 700)]), (0, 0), (5, 0), 300, 800) == [(0, 4)]


def test_where_a_rescued_or_retired_or_foreign_segment_ended_is_not_known() -> None:
    assert log_position(core([sealed(3, 4, 0, lost=1)]), position(4, 0)) is None
    assert log_position(core([sealed(3, 4, 0, lost=1)]), position(3, 4)) is None
    assert log_position(core([sealed(3, 4, 0)], is_retired=True), position(4, 0)) is None
    assert log_position(core([SegmentInfo(3, 4, 4, 8, 0, 0)]), position(4, 0)) is None
    # More may come to one that is not sealed.
    assert log_position(core([], unsealed=[unsealed(3, 4, 0)]), position(4, 0)) is None


def test_numbers_that_were_never_used_are_nothing_that_is_missing() -> None:
    after_a_crash = core([sealed(1027, 2, 400)])
    assert deleted(after_a_crash, (4, 0), (1028, 0), 400, 600) == []
    assert deleted(core([sealed(3, 4, 0), sealed(1027, 2, 400)]), (3, 1), (1028, 0), 0, 600) == []


def test_segments_in_front_of_the_first_that_is_left_are_missing() -> None:
    found = core([sealed(6, 2, 700)])
    assert deleted(found, (4, 0), (7, 0), 400, 900) == [(4, 6)]
    # Behind its last bundle, as it was then, more have come to the segment in which the query stands.
    assert deleted(found, (5, 2), (7, 0), 600, 900) == [(5, 6)]
    assert deleted(found, (5, 2), (7, 0), 700, 900) == []


def test_segments_between_two_and_behind_the_last_are_missing() -> None:
    found = core([sealed(3, 4, 0), sealed(6, 2, 700)])
    assert deleted(found, (3, 1), (7, 0), 0, 900) == [(4, 6)]
    assert deleted(found, (3, 1), (9, 0), 0, 1000) == [(4, 6), (7, 9)]
    assert deleted(found, (3, 1), (3, 4), 0, 400) == []


def test_where_nothing_is_left_the_end_of_the_micro_batch_tells_it() -> None:
    assert deleted(core([]), (4, 0), (6, 0), 400, 700) == [(4, 6)]
    assert deleted(core([]), (4, 0), (6, 0), 400, 400) == []
    assert deleted(core([]), (4, 0), (4, 0), 400, 400) == []
    # A bundle that was planned was there, whatever is known of the log.
    assert deleted(core([]), (4, 1), (4, 3), None, None) == [(4, 5)]
    assert deleted(core([sealed(7, 1, 900)]), (4, 1), (6, 3), None, None) == [(6, 7)]


def test_what_is_behind_the_micro_batch_does_not_matter() -> None:
    assert deleted(core([sealed(3, 4, 0), sealed(9, 1, 5000)]), (3, 1), (4, 0), 0, 400) == []


def test_a_notice_of_a_loss_tells_it_itself() -> None:
    lost = Gap("t", "s", 1, 4, 0, 1, 2, -1, "evicted")
    assert deleted(core([sealed(6, 2, 700)], gaps=[lost]), (4, 0), (7, 0), 400, 900) == []
    assert deleted(core([sealed(6, 2, 700)], gaps=[lost]), (5, 0), (7, 0), 500, 900) == [(5, 6)]


def test_what_the_archive_has_is_not_missing() -> None:
    archived = ArchivedPart([sealed(4, 1, 400), sealed(5, 2, 500)], [], 5)
    assert deleted(core([sealed(6, 2, 700)], archived=archived), (4, 0), (7, 0), 400, 900) == []
    archived = ArchivedPart([sealed(4, 1, 400)], [], 4)
    assert deleted(core([sealed(6, 2, 700)], archived=archived), (4, 0), (7, 0), 400, 900) == [(5, 6)]


def test_where_log_positions_are_not_known_nothing_is_claimed() -> None:
    assert deleted(core([sealed(6, 2, 700)]), (4, 0), (7, 0), None, None) == []
    foreign = SegmentInfo(6, 2, 2, 8, 0, 0)
    assert deleted(core([foreign]), (4, 0), (7, 0), 400, None) == []
    assert deleted(core([sealed(4, 1, 400, lost=1), sealed(6, 2, 700)]), (4, 0), (7, 0), 400, 900) == []


def test_a_restored_node_whose_log_begins_far_ahead_has_lost_nothing_by_it() -> None:
    found = core([sealed(6000, 2, 400 + RESTORED)], unsealed_from=(6001, 600 + RESTORED))
    assert deleted(found, (4, 0), (6001, 0), 400, 600 + RESTORED) == []
    empty = core([], unsealed_from=(6000, 400 + RESTORED))
    assert past_deleted(empty, position(4, 0), 400, FAR) == position(4, 0)


def test_the_head_goes_behind_what_was_deleted_where_nothing_else_makes_a_micro_batch() -> None:
    found = core([], unsealed_from=(6, 700))
    assert past_deleted(found, position(4, 0), 400, FAR) == position(6, 0)
    assert past_deleted(found, position(4, 0), 700, FAR) == position(4, 0)
    assert past_deleted(found, position(4, 0), None, FAR) == position(4, 0)
    assert past_deleted(found, position(4, 0), 400, position(5, 0)) == position(5, 0)
    assert past_deleted(core([]), position(4, 0), 400, FAR) == position(4, 0)
    # What can be read behind it comes first, and its micro-batch tells what is missing in front.
    readable = core([sealed(5, 1, 600)], unsealed_from=(6, 700))
    assert past_deleted(readable, position(4, 0), 400, FAR) == position(4, 0)
    assert past_deleted(core([], unsealed=[unsealed(4, 2, 400)], unsealed_from=(4, 400)), position(4, 2), 600, FAR) == (
        position(4, 2)
    )


def test_a_log_position_is_kept_when_its_segment_is_gone() -> None:
    logs = LogPositions()
    assert logs.of({PLACE: position(4, 0), Place("n", 1): 8}, {PLACE: core([sealed(3, 4, 0)])}) == {PLACE: 400}
    assert logs.at(PLACE, position(4, 0), core([])) == 400
    assert logs.at(PLACE, position(5, 0), core([])) is None
    for segment_seq in range(5, 20):
        logs.note(PLACE, position(segment_seq, 0), 100 * segment_seq)
    assert logs.at(PLACE, position(4, 0), None) is None
    assert logs.at(PLACE, position(19, 0), None) == 1900


def test_segment_numbers_in_words() -> None:
    assert [as_text(range(4, 5)), as_text(range(4, 7))] == ["segment 4", "segments 4 to 6"]
