"""What a core's disk lacks, what the archive has of it, and what neither has: each bundle of a range in one place, or told as lost."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver_actors.base.protocol.archive_messages import ArchivedHole, RetiredCore
from quiver_actors.base.protocol.messages import Gap, SegmentInfo
from quiver_actors.flight.archived_contents import (
    NOT_STORED,
    ArchivedPart,
    ArchiveTerms,
    DiskNumbers,
    Loss,
    begins_behind,
    end_of_retired,
    first_wanted,
    losses_in,
    part_in_front,
)
from quiver_actors.flight.contract import CoreContents
from quiver_actors.spark.offsets import Place
from quiver_actors.spark.plan import extents_of, ranges_between

END = (1 << 47, 0)


def stored(segment_seq: int, bundles: int = 2) -> SegmentInfo:
    """A sealed segment; two whose numbers follow each other adjoin in the log."""
    at = (100 * segment_seq, 100 * (segment_seq + 1))
    return SegmentInfo(segment_seq, bundles, bundles, 8, 1000 * segment_seq, 1000 * segment_seq + 9, True, *at)


def rescued(segment_seq: int, lost: int = 1) -> SegmentInfo:
    """A segment of which bundles are lost here."""
    return msgspec.structs.replace(stored(segment_seq), row_count=2 - lost, lost_count=lost)


def disk(*numbers: int, coming: tuple[int, ...] = (), comes_next: int = -1) -> DiskNumbers:
    return DiskNumbers([stored(number) for number in numbers], coming, comes_next)


def part(*numbers: int, holes: tuple[ArchivedHole, ...] = (), through: int | None = None) -> ArchivedPart:
    last = max([*numbers, *(hole.segment_seq for hole in holes)], default=-1)
    return ArchivedPart([stored(number) for number in numbers], list(holes), last if through is None else through)


def wanted(found: DiskNumbers, start: tuple[int, int], *lost: int, since_unix_ns: int = 0) -> int | None:
    return first_wanted(found, ArchiveTerms({0: start}, since_unix_ns), 0, lost)


@pytest.mark.parametrize(
    ("found", "start", "first"),
    [
        (disk(3, 4), (0, 0), 0),
        (disk(3, 4), (2, 1), 2),
        (disk(3, 4), (3, 0), None),
        (disk(3, 4), (4, 1), None),
        (disk(0, 1), (0, 0), None),
        (disk(3, 4, 9), (3, 0), 5),
        (disk(3, 4, coming=(5,), comes_next=5), (3, 0), None),
        (disk(coming=(3,), comes_next=3), (3, 0), None),
        (disk(0, coming=(1, 4)), (0, 0), None),
        (disk(0, coming=(1, 4)), (2, 0), 2),
        (disk(comes_next=6), (5, 2), 5),
        (disk(comes_next=6), (6, 0), None),
        (disk(), (2, 0), 2),
        (disk(3, comes_next=7), (3, 0), 4),
    ],
)
def test_the_archive_is_asked_for_what_the_disk_lacks_and_for_nothing_else(
    found: DiskNumbers, start: tuple[int, int], first: int | None
) -> None:
    assert wanted(found, start) == first


def test_numbers_that_the_log_never_used_are_not_missing() -> None:
    behind = SegmentInfo(9, 1, 1, 8, 0, 0, True, stored(4).position_end, 900)
    assert wanted(DiskNumbers([stored(4), behind], (), 10), (4, 0)) is None


def test_what_was_announced_as_lost_is_looked_for_in_the_archive() -> None:
    assert wanted(disk(3, 4), (3, 1), 3, 4) is None
    assert wanted(disk(3, 4), (3, 1), 7) == 7
    assert wanted(disk(3, 4), (3, 1), 2) is None


def test_a_time_asks_the_archive_only_where_the_disk_begins_later() -> None:
    assert wanted(disk(3, 4), (0, 0), since_unix_ns=3000) is None
    assert wanted(disk(3, 4), (0, 0), since_unix_ns=2999) == 0
    assert wanted(disk(comes_next=5), (0, 0), since_unix_ns=10**18) == 0


def test_nothing_counts_that_the_disk_has_or_that_came_after_the_disk_was_looked_at() -> None:
    hole = ArchivedHole(2, 0, 2, "evicted")
    empty = SegmentInfo(2, 2, 0, 0, 0, 0)
    listed = [stored(1), empty, stored(3), stored(4), stored(5), stored(6)]
    found = part_in_front(disk(3, 5, comes_next=6), listed, [hole, ArchivedHole(3, 0, 1, "damaged")], 6)
    assert [info.segment_seq for info in found.segments] == [1, 4]
    assert found.holes == [hole]
    assert part_in_front(disk(comes_next=5), listed, [], 6).segments[-1].segment_seq == 4


def test_a_rescued_segment_is_looked_for_from_where_the_reader_begins() -> None:
    found = DiskNumbers([stored(3), rescued(4), stored(5), rescued(7)], (), 8)
    assert [wanted(found, start) for start in ((3, 0), (4, 1), (5, 0), (8, 0))] == [4, 4, 6, None]
    assert wanted(DiskNumbers([rescued(4), stored(5)], (), 6), (5, 0)) is None


@pytest.mark.parametrize(
    ("bundles", "holes", "counts"),
    [
        (2, (), True),
        (2, (ArchivedHole(4, 0, 1, "damaged"),), False),
        (2, (ArchivedHole(4, 0, 0, "damaged"),), False),
        (1, (), False),
        (2, (ArchivedHole(3, 0, 2, "evicted"),), True),
    ],
)
def test_a_rescued_segment_is_read_in_the_archive_if_that_has_more_of_it(
    bundles: int, holes: tuple[ArchivedHole, ...], *, counts: bool
) -> None:
    found = part_in_front(DiskNumbers([rescued(4)], (), 5), [stored(4, bundles)], holes, 4)
    assert [info.segment_seq for info in found.segments] == ([4] if counts else [])
    assert found.accounts_for(4) == counts
    core = CoreContents(0, [rescued(4)], comes_next=5, archived=found)
    assert [info.row_count for info in core.readable] == [2 if counts else 1]


def test_a_rescued_segment_in_the_archive_makes_no_other_one_a_loss() -> None:
    """Between two segments of the disk may have been one that nobody needed: that is none, whatever the archive has beside."""
    found = DiskNumbers([rescued(2), stored(5)], (), 6)
    holes = (ArchivedHole(3, 0, 0, "never_archived"),)
    assert list(losses_in(found, part(2, holes=holes), (0, 0), END)) == []


@pytest.mark.parametrize(
    ("core", "archived", "end"),
    [
        (RetiredCore(1, "b", 6, 500), None, 6),
        (RetiredCore(1, "b"), None, -1),
        (RetiredCore(1, "b", 6, 500), part(), 6),
        (RetiredCore(1, "b", 6, 500), part(3, 4), 5),
        (RetiredCore(1, "b", 6, 600), part(3, 4), 6),
        (RetiredCore(1, "b", 6), part(3, 4), 6),
        (RetiredCore(1, "b"), part(3, 4), 5),
        (RetiredCore(1, "b", 6, 500), part(through=4), 6),
    ],
)
def test_a_retired_core_ends_behind_its_last_bundle_and_not_behind_a_number_that_nothing_had(
    core: RetiredCore, archived: ArchivedPart | None, end: int
) -> None:
    assert end_of_retired(core, archived) == end


def test_what_a_retired_core_has_lost_at_its_end_is_told() -> None:
    """It ended with a segment that nobody archived: its positions say so."""
    found = part(3, 4)
    for position_end, lost in ((500, []), (600, [Loss(5, 0, 0, NOT_STORED)])):
        end = end_of_retired(RetiredCore(1, "b", 6, position_end), found)
        assert list(losses_in(disk(comes_next=end), found, (0, 0), END)) == lost


def test_the_earliest_begins_with_what_there_is() -> None:
    holes = (ArchivedHole(0, 0, 0, "archive_expired"), ArchivedHole(3, 0, 2, "evicted"))
    assert list(losses_in(disk(5), part(4, holes=holes), (0, 0), END)) == []
    assert not begins_behind(disk(5), part(4, holes=holes), (0, 0))
    assert list(losses_in(disk(5), part(holes=holes), (0, 0), END)) == []


def test_what_the_archive_lost_in_the_middle_is_told_with_its_reason() -> None:
    holes = (ArchivedHole(2, 0, 0, "never_archived"), ArchivedHole(4, 1, 1, "damaged"))
    found = part(1, 4, holes=holes)
    expected = [Loss(2, 0, 0, "never_archived"), Loss(4, 1, 1, "damaged")]
    assert list(losses_in(disk(5), found, (0, 0), END)) == expected
    assert list(losses_in(disk(5), found, (2, 0), (4, 1))) == expected[:1]
    assert list(losses_in(disk(5), found, (3, 0), (4, 1))) == []
    assert list(losses_in(disk(5), found, (4, 2), END)) == []


def test_what_neither_of_them_has_is_told() -> None:
    assert list(losses_in(disk(7), part(3, 4), (3, 0), END)) == [Loss(5, 0, 0, NOT_STORED)]
    assert list(losses_in(disk(7), part(3, 4), (3, 0), (5, 0))) == []
    assert list(losses_in(disk(5), part(3, 4), (3, 0), END)) == []
    adjoining = DiskNumbers([SegmentInfo(7, 1, 1, 8, 0, 0, True, stored(4).position_end, 900)], (), 8)
    assert list(losses_in(adjoining, part(3, 4), (3, 0), END)) == []
    assert list(losses_in(disk(comes_next=7), part(3, 4), (3, 0), END)) == [Loss(5, 0, 0, NOT_STORED)]


def test_who_stands_behind_a_segment_that_is_gone_may_have_read_it() -> None:
    """Whether it has, only the asker knows: so this is told apart from other losses."""
    hole = ArchivedHole(4, 0, 0, "never_archived")
    gone = part(8, holes=(hole,), through=8)
    assert list(losses_in(disk(9), gone, (5, 2), END)) == []
    assert begins_behind(disk(9), gone, (5, 2))
    assert not begins_behind(disk(9), part(5, 6, 7, 8), (5, 2))
    assert not begins_behind(disk(9), part(4), (5, 0))
    assert not begins_behind(disk(9), gone, (9, 0))
    assert not begins_behind(disk(comes_next=5), part(), (5, 0))
    assert begins_behind(disk(comes_next=6), part(), (5, 1))


def test_a_lost_bundle_that_the_archive_recorded_is_told_where_the_asker_stands() -> None:
    found = part(6, holes=(ArchivedHole(5, 0, 3, "evicted"),))
    assert list(losses_in(disk(7), found, (5, 2), END)) == [Loss(5, 0, 3, "evicted")]
    assert list(losses_in(disk(7), found, (5, 3), END)) == []
    assert not begins_behind(disk(7), found, (5, 2))


places = st.sampled_from(["disk", "archive", "both", "lost", "rescued", "rescued late"])
"""Where a segment is. A rescued one lacks bundle 1 on the disk; one that was rescued late lacks it in the archive, too."""


@given(st.lists(places, min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 2))
def test_each_bundle_of_a_range_is_read_once_in_one_place_or_told_as_lost(
    where: list[str], segment_seq: int, bundle: int
) -> None:
    start = (segment_seq, bundle)
    here = [
        rescued(n) if place.startswith("rescued") else stored(n)
        for n, place in enumerate(where)
        if place not in ("archive", "lost")
    ]
    on_disk = DiskNumbers(here, (), len(where))
    listed = [stored(n) for n, place in enumerate(where) if place not in ("disk", "lost")]
    holes = [ArchivedHole(n, 0, 2, "evicted") for n, place in enumerate(where) if place == "lost"]
    holes += [ArchivedHole(n, 1, 1, "damaged") for n, place in enumerate(where) if place == "rescued late"]
    is_asked = wanted(on_disk, start) is not None
    found = part_in_front(on_disk, listed, holes, len(where) - 1) if is_asked else None
    core = CoreContents(0, here, comes_next=len(where), incarnation="a", archived=found)
    planned = [
        (piece.segment_seq, index, bool(piece.archived_as), piece.is_on_disk)
        for piece in ranges_between(Place("n", 0), extents_of(core, core.readable), start, END)
        for index in range(piece.bundle_start, piece.bundle_end)
    ]
    assert planned == [
        (n, index, place in ("archive", "rescued"), place != "archive")
        for n, place in enumerate(where)
        for index in range(2)
        if place != "lost" and (n, index) >= start
    ]
    told = {loss.segment_seq for loss in losses_in(on_disk, found or ArchivedPart(), start, END)}
    lost = {n for n, place in enumerate(where) if place == "lost" and (n, 2) > start}
    if start == (0, 0):
        lost = {n for n in lost if any(place != "lost" for place in where[:n])}
    assert told == lost


def test_a_notice_is_no_loss_where_the_archive_accounts_for_the_segment() -> None:
    found = part(3, holes=(ArchivedHole(4, 0, 2, "evicted"),))
    assert found.accounts_for(3)
    assert found.accounts_for(4)
    assert not found.accounts_for(5)


def test_contents_know_what_begins_behind_them_with_and_without_an_archive() -> None:
    gap = Gap("t", "s", 1, 4, 0, 1, 2, -1, "evicted")
    without = CoreContents(0, [stored(6)], gaps=[gap], comes_next=7)
    assert without.begins_behind((4, 0))
    with_archive = CoreContents(0, [stored(6)], gaps=[gap], comes_next=7, archived=part(4, 5))
    assert not with_archive.begins_behind((4, 0))
    assert [info.segment_seq for info in with_archive.readable] == [4, 5, 6]
