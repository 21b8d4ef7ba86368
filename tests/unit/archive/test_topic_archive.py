"""The next work of one core, decided from what its worker holds."""

from __future__ import annotations

import pytest

from quiver_actors.archive.descriptions import Described
from quiver_actors.archive.lag import with_lag
from quiver_actors.archive.topic_archive import (
    BATCH_BYTES_MAX,
    BATCH_SEGMENTS_MAX,
    add_to_runs,
    hole_of,
    is_late,
    is_same,
    plan,
    without_half_a_stage,
)
from quiver_actors.base.archive_status import ArchivedStream
from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.client.hold import HeldCore
from tests.unit.archive.test_manifest_store import a_segment


def info(segment_seq: int, size_bytes: int = 1000) -> SegmentInfo:
    return SegmentInfo(segment_seq, 10, 100, size_bytes, segment_seq * 10, segment_seq * 10 + 9)


def gap(segment_seq: int) -> Gap:
    return Gap("topic", "quiver-archive", segment_seq, segment_seq, 0, 3, 4, 12, "evicted")


def held(
    segments: list[SegmentInfo],
    gaps: list[Gap] | None = None,
    unsettled: list[int] | None = None,
    oldest: tuple[int, int] | None = None,
) -> HeldCore:
    return HeldCore(segments, [], gaps or [], oldest, unsettled or [], 100, "17", False)


def numbers(infos: list[SegmentInfo]) -> list[int]:
    return [each.segment_seq for each in infos]


def test_segments_behind_the_archived_ones_are_next_and_others_are_known() -> None:
    segments = [info(number) for number in (2, 3, 4, 5)]
    step = plan(held(segments, oldest=(3, 7)), 3)
    assert (numbers(step.known), numbers(step.new), numbers(step.missing)) == ([3], [4, 5], [4, 5])
    assert plan(held(segments), 3).known == [], "all of them are acknowledged"


def test_nothing_behind_what_is_still_to_come_is_archived() -> None:
    step = plan(held([info(3), info(5), info(6)], [gap(2), gap(4), gap(5)], [4, 7]), -1)
    assert (numbers(step.new), [each.segment_seq for each in step.gaps]) == ([3], [2])
    assert numbers(step.missing) == [3, 5, 6]


def test_batches_are_bounded_and_notices_wait_for_their_place() -> None:
    many = [info(number) for number in range(3 * BATCH_SEGMENTS_MAX)]
    step = plan(held(many, [gap(BATCH_SEGMENTS_MAX + 1)]), -1)
    assert (numbers(step.new), step.gaps) == (list(range(BATCH_SEGMENTS_MAX)), [])
    large = [info(number, BATCH_BYTES_MAX) for number in range(3)]
    assert numbers(plan(held(large), -1).new) == [0]


MANY = [info(number) for number in range(40)]


@pytest.mark.parametrize(
    ("stages", "archived_through", "unsettled", "wanted"),
    [
        pytest.param([(14, 20)], -1, [], range(21), id="longer than a batch"),
        pytest.param([(2, 3), (10, 15)], -1, [], range(16), id="as long as a batch"),
        pytest.param([(0, 39)], -1, [], range(40), id="all that there is"),
        pytest.param([(3, 7)], -1, [7], range(3), id="its last segment is still to come"),
        pytest.param([(3, 7)], -1, [8], range(8), id="what is behind it is still to come"),
        pytest.param([(0, 7)], -1, [0], range(0), id="nothing of it is there yet"),
        pytest.param([(3, 30)], 4, [], range(5, 21), id="an older program has recorded some of it"),
    ],
)
def test_the_segments_of_a_published_stage_are_recorded_in_one_step(
    stages: list[tuple[int, int]], archived_through: int, unsettled: list[int], wanted: range
) -> None:
    step = plan(held(MANY, unsettled=unsettled), archived_through, stages)
    assert numbers(step.new) == list(wanted)


def test_notices_about_a_published_stage_wait_for_all_of_it() -> None:
    there = [each for each in MANY if each.segment_seq != 15]
    lost = [gap(15)]
    step = plan(held(there, lost), -1, [(12, 20)])
    assert (numbers(step.new), step.gaps) == ([*range(15), *range(16, 21)], lost)
    step = plan(held(there, lost, [18]), -1, [(12, 20)])
    assert (numbers(step.new), step.gaps) == (list(range(12)), [])


@pytest.mark.parametrize(
    ("uploaded", "kept"), [(range(9), range(9)), (range(6), range(3)), (range(3, 6), range(0)), (range(0), range(0))]
)
def test_half_a_stage_is_not_recorded_where_its_rest_could_not_be_uploaded(uploaded: range, kept: range) -> None:
    described = [Described(a_segment(number)) for number in uploaded]
    assert [each.segment.segment_seq for each in without_half_a_stage(described, [(3, 8)])] == list(kept)


def test_a_notice_without_segments_is_recorded() -> None:
    step = plan(held([], [gap(8)], [9]), 7)
    hole = hole_of(step.gaps[0], 5)
    assert (hole.segment_seq, hole.first_bundle, hole.bundle_count, hole.reason) == (8, 0, 4, "evicted")


def test_a_compacted_segment_is_the_same_and_another_one_is_not() -> None:
    assert is_same(a_segment(1), info(1, size_bytes=1))
    assert not is_same(a_segment(1), info(2))


def test_runs_grow_and_begin_anew_behind_a_number_left_out() -> None:
    assert add_to_runs(((0, 2),), [3, 4, 6, 7]) == ((0, 4), (6, 7))


def lag(held: HeldCore, known: ArchivedStream | None) -> tuple[int, int, int, int]:
    found = with_lag("topic", 0, held, known)
    return found.archived_through, found.lag_segments, found.lag_bytes, found.oldest_unix_ns


def known_through(archived_through: int, incarnation: str = "17") -> ArchivedStream:
    return ArchivedStream(topic="topic", core=0, incarnation=incarnation, archived_through=archived_through)


def test_what_is_sealed_and_not_recorded_counts_as_lag() -> None:
    segments = [info(number) for number in (2, 3, 4, 5)]
    assert lag(held(segments, oldest=(2, 0)), known_through(3)) == (3, 2, 2000, 40)
    assert lag(held(segments, oldest=(6, 0)), known_through(5)) == (5, 0, 0, 0)


def test_before_the_manifest_is_read_what_is_not_acknowledged_counts_as_lag() -> None:
    segments = [info(number) for number in (2, 3, 4, 5)]
    for known in (None, known_through(9, incarnation="another")):
        assert lag(held(segments, oldest=(4, 7)), known) == (-1, 2, 2000, 40)
        assert lag(held(segments), known) == (-1, 0, 0, 0)


def test_what_is_not_sealed_yet_counts_by_its_age_alone() -> None:
    open_log = HeldCore([info(3)], [info(4)], [], (4, 0), [4], 5, "17", False)
    assert lag(open_log, known_through(3)) == (3, 0, 0, 40)


@pytest.mark.parametrize(
    ("begun_unix_ns", "max_delay_ns", "expected"),
    [
        (0, 10, False),
        (89, 10, True),
        (90, 10, True),
        (91, 10, False),
        (100, 10, False),
        (101, 10, True),
        (89, 0, False),
    ],
)
def test_an_open_segment_is_late_when_it_is_old_or_the_clock_was_set_back(
    begun_unix_ns: int, max_delay_ns: int, expected: bool
) -> None:
    begun = SegmentInfo(0, 1, 1, 1, begun_unix_ns, begun_unix_ns)
    assert is_late([begun], max_delay_ns, 100) is expected
