"""A subscriber that begins in the archive: archived segments come first, and once, whatever is killed and whatever leaves the disk."""

from __future__ import annotations

from random import Random

import pytest

from quiver_actors.base.protocol.archived_start import ARCHIVED_SEGMENTS_MAX, ArchivedSegment, ArchivedStart
from quiver_actors.errors import NotStored, UsageError
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.archived_part import BUNDLES_MAX, Archived
from quiver_actors.store.subscriber.progress import ArchivedSegments, SegmentProgress
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings

GONE = 4
"""Segments of two bundles each that have left the disk; three are on it."""
ALL = [(seq, index) for seq in range(GONE + 3) for index in range(2)]


def with_gone_segments(disk: SimDisk | None = None) -> EngineDriver:
    driver = EngineDriver(disk or SimDisk(), topic_settings(segment_compaction="off"))
    driver.engine.registrations.register("keeper", "earliest")
    driver.settle()
    for number in range(GONE + 3):
        driver.push_numbered(2 * number, 2)
        driver.seal()
    driver.engine.claims.ack_through("keeper", GONE - 1, 1)
    driver.run_for(2_000_000_000)
    assert [info.segment_seq for info in driver.engine.segments()] == [4, 5, 6]
    return driver


def listed(*segments: ArchivedSegment, driver: EngineDriver) -> ArchivedStart:
    found = segments or tuple(ArchivedSegment(seq, 2, 500) for seq in range(GONE + 1))
    numbers = {each.segment_seq for each in found}
    on_disk = [info.segment_seq for info in driver.engine.segments() if info.segment_seq not in numbers]
    return ArchivedStart(list(found), on_disk, driver.engine.next_segment_seq)


def begin(driver: EngineDriver, *segments: ArchivedSegment, start: str = "time:0") -> None:
    driver.engine.registrations.register("late", start, archived=listed(*segments, driver=driver))
    driver.settle()


def take(driver: EngineDriver, bundles: int = 1000) -> list[tuple[int, int]]:
    grants = driver.claim("late", "owner", bundles)
    return [(grant.segment_seq, index) for grant in grants for index in grant.indexes]


def crashed(driver: EngineDriver, mode: CrashMode = CrashMode.DROP) -> EngineDriver:
    assert isinstance(driver.disk, SimDisk)
    again = EngineDriver(driver.disk.crash(mode), driver.settings, clock=driver.clock)
    again.settle()
    return again


def test_archived_bundles_come_first_and_then_those_of_the_disk() -> None:
    driver = with_gone_segments()
    begin(driver)
    driver.push_numbered(100)
    driver.settle()
    assert driver.engine.owed.pending("late").pending == len(ALL) + 1
    assert take(driver) == [*ALL, (GONE + 3, 0)]
    assert driver.engine.registrations.is_archived("late", 3)
    assert not driver.engine.registrations.is_archived("late", 4)
    assert not driver.engine.registrations.is_archived("keeper")
    assert not driver.engine.registrations.is_archived("nobody")


def test_a_start_inside_of_the_archive() -> None:
    driver = with_gone_segments()
    segments = [ArchivedSegment(1, 2, 500, skipped=[(0, 1)]), ArchivedSegment(2, 2, 500), ArchivedSegment(3, 2, 500)]
    begin(driver, *segments, start="bundle:0/1/1")
    assert take(driver) == ALL[3:]
    assert take(crashed(driver)) == ALL[3:]


@pytest.mark.parametrize("seed", range(30))
def test_what_is_durable_is_not_delivered_again_and_all_else_is(seed: int) -> None:
    """Bundles are acknowledged in any order; kills come anywhere, and so do new segments and those of the disk that go."""
    random = Random(seed)
    driver = with_gone_segments()
    begin(driver)
    owed, acked, since, durable = list(ALL), set[tuple[int, int]](), set[tuple[int, int]](), set[tuple[int, int]]()
    for turn in range(12):
        for seq, index in take(driver, random.randint(1, 5)):
            assert (seq, index) not in durable
            if random.random() < 0.7:
                assert driver.resolve("late", "owner", seq, "ack", [index]) == []
                since.add((seq, index))
        acked |= since
        if random.random() < 0.7:
            driver.flush_progress()
            durable |= since
        if random.random() < 0.3:
            driver.engine.claims.ack_through("keeper", owed[-1][0], owed[-1][1])
        if random.random() < 0.4:
            driver.push_numbered(100 + turn)
            driver.settle()
            owed.append((driver.engine.readable_end.infos()[-1].segment_seq, 0))
            driver.seal()
        if random.random() < 0.5:
            driver = crashed(driver, random.choice(list(CrashMode)))
            since.clear()
        else:
            driver.engine.claims.release("owner")
            driver.run_for(500_000_000)
    driver.engine.claims.release("owner")
    rest = take(driver)
    assert rest == sorted(rest)
    assert durable.isdisjoint(rest)
    assert acked.union(rest) == set(owed)
    assert driver.take_gaps("late") == []


def test_archived_segments_that_are_resolved_in_any_order_make_up_no_more_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some wait, such as for a consumer that can read them: there may be thousands with others resolved between them."""
    for module in ("archived_part", "progress"):
        monkeypatch.setattr(f"quiver_actors.store.subscriber.{module}.ARCHIVED_RUNS_MAX", 1)
    driver = with_gone_segments()
    begin(driver, *(ArchivedSegment(seq, 2, 500) for seq in range(GONE)))
    assert take(driver) == ALL
    for segment_seq in (1, GONE + 1):
        assert driver.resolve("late", "owner", segment_seq, "ack", [0, 1]) == []
    driver.flush_progress()
    driver = crashed(driver)
    assert take(driver) == [place for place in ALL if place[0] not in (1, GONE + 1)]
    assert driver.take_gaps("late") == []


def test_runs_of_archived_segments_reach_over_nothing_that_is_on_the_disk() -> None:
    owed, done = SegmentProgress(2, b""), SegmentProgress(2, bitmaps.full(2))
    entries = {3: owed, 5: done, 7: owed, 8: owed, 9: owed, 1 << 40: owed}
    archived = Archived(ArchivedSegments(((3, 6), (1 << 40, 1))), entries)
    assert archived.numbers == {3, 7, 8, 1 << 40}, "9 is on the disk, and what is done with is nowhere"
    assert archived.segments_of([3, 7, 8, 1 << 40], entries).runs == ((3, 6), (1 << 40, 1))
    assert archived.segments_of([3, 8, 1 << 40], entries).runs == ((3, 1), (8, 1), (1 << 40, 1))


def test_files_on_the_disk_do_not_concern_archived_segments() -> None:
    driver = with_gone_segments()
    segments = [ArchivedSegment(seq, 2, 500) for seq in range(GONE + 3)]
    driver.engine.claims.ack_through("keeper", GONE, 1)
    driver.flush_progress()
    begin(driver, *segments)
    assert take(driver) == ALL
    # An eviction concerns what is delivered from the disk, and that alone; nobody has archived it.
    driver.engine.claims.release("owner")
    drop_segment(driver.engine, GONE + 2, "evicted")
    driver.settle()
    assert take(driver) == ALL[:-2]
    assert {notice.segment_seq for notice in driver.take_gaps("late", "other")} <= {GONE + 2}


def test_a_list_from_before_a_segment_left_the_disk_is_refused() -> None:
    driver = with_gone_segments()
    short = ArchivedStart(
        [ArchivedSegment(seq, 2, 500) for seq in range(3)], [3, 4, 5, 6], driver.engine.next_segment_seq
    )
    with pytest.raises(NotStored):
        driver.engine.registrations.register("late", "time:0", archived=short)
    since = ArchivedStart([ArchivedSegment(seq, 2, 500) for seq in range(3)], [], 3)
    with pytest.raises(NotStored):
        driver.engine.registrations.register("late", "time:0", archived=since)
    assert driver.engine.registrations.names() == ["keeper"]


def test_lists_that_make_no_sense_are_refused() -> None:
    driver = with_gone_segments()
    wrong = [
        [ArchivedSegment(1, 2, 0), ArchivedSegment(0, 2, 0)],
        [ArchivedSegment(-1, 2, 0)],
        [ArchivedSegment(1 << 63, 2, 0)],
        [ArchivedSegment(1, 65536, 0)],
        [ArchivedSegment(1, -1, 0)],
        [ArchivedSegment(1, 2, -1)],
        [ArchivedSegment(1, 2, 0, skipped=[(0, 1 << 40)])],
        [ArchivedSegment(1, 2, 0, lost=[(-1, 1, "damaged")])],
        [ArchivedSegment(1, 2, 0, lost=[(0, 1, "stolen")])],
        [ArchivedSegment(10 + 2 * seq, 1, 0) for seq in range(3000)],
        [ArchivedSegment(10 + seq, 1, 0) for seq in range(ARCHIVED_SEGMENTS_MAX + 1)],
        [ArchivedSegment(10 + seq, 65535, 0) for seq in range(BUNDLES_MAX // 65535 + 1)],
    ]
    for segments in wrong:
        with pytest.raises(UsageError):
            driver.engine.registrations.register("late", "time:0", archived=listed(*segments, driver=driver))
    assert driver.engine.registrations.names() == ["keeper"]


def test_what_the_archive_will_never_have_is_told_once_in_its_place() -> None:
    driver = with_gone_segments()
    begin(
        driver,
        ArchivedSegment(0, 0, 0, lost=[(0, 0, "expired")]),
        ArchivedSegment(1, 2, 500, skipped=[(0, 1)], lost=[(0, 2, "evicted")]),
        ArchivedSegment(2, 2, 0, lost=[(0, 2, "damaged")]),
        ArchivedSegment(3, 2, 500),
    )
    expected = [(0, 0, 0, "expired"), (1, 1, 1, "evicted"), (2, 0, 2, "damaged")]
    for again in (driver, crashed(driver)):
        told = again.take_gaps("late")
        assert [
            (each.segment_seq, each.bundle_index_first, each.bundle_count, each.reason) for each in told
        ] == expected
        assert take(again) == ALL[6:]
    for notice in told:
        again.engine.claims.ack_gap("late", notice.notice)
    again.settle()
    last = crashed(again)
    assert last.take_gaps("late") == []
    assert take(last) == ALL[6:]


def test_a_subscriber_in_the_archive_is_not_moved_to_a_time_and_may_be_dropped() -> None:
    driver = with_gone_segments()
    begin(driver)
    with pytest.raises(UsageError, match="still gets bundles from the archive"):
        driver.engine.registrations.seek("late", "time:1")
    assert driver.engine.registrations.unregister("late")[1] == len(ALL)
    driver.settle()
    assert crashed(driver).engine.registrations.names() == ["keeper"]


def test_a_known_subscriber_begins_nowhere_again() -> None:
    driver = with_gone_segments()
    driver.engine.registrations.register("late", "earliest")
    begin(driver)
    assert take(driver) == ALL[2 * GONE :]


def test_a_bundle_that_nobody_can_read_is_set_aside_after_some_tries() -> None:
    driver = with_gone_segments()
    begin(driver)
    for tries in range(5):
        (grant,) = driver.claim("late", "owner", 1)
        assert (grant.segment_seq, list(grant.indexes)) == (0, [0])
        refused, aside = driver.engine.cannot_read("late", "owner", 0, grant.token, [0], 0)
        assert refused == []
        assert aside == ([0] if tries == 4 else [])
    driver.settle()
    assert take(driver) == ALL[1:]
    assert driver.engine.owed.pending("late").blocked == 1


def test_what_the_archive_has_no_more_is_told_in_its_place_if_its_holder_says_so() -> None:
    driver = with_gone_segments()
    begin(driver)
    (grant,) = driver.claim("late", "owner", 2)
    lose = driver.engine.claims.lose_archived
    with pytest.raises(UsageError):
        lose("late", "owner", 0, grant.token, [0], "stolen")
    # Of what is not the caller's, and of what is on the disk, nothing is believed.
    lose("late", "somebody", 0, grant.token, [0], "expired")
    lose("late", "owner", 0, grant.token + 1, [0], "expired")
    lose("late", "owner", 1, grant.token, [0], "expired")
    (kept,) = driver.claim("keeper", "owner", 1)
    lose("keeper", "owner", kept.segment_seq, kept.token, list(kept.indexes), "expired")
    driver.settle()
    assert driver.take_gaps("late") == driver.take_gaps("keeper") == []
    lose("late", "owner", 0, grant.token, [1], "expired")
    driver.settle()
    for again in (driver, crashed(driver)):
        again.engine.claims.release("owner")
        assert take(again) == [ALL[0]]
        assert [(each.segment_seq, each.bundle_index_first, each.reason) for each in again.take_gaps("late")] == [
            (0, 1, "expired")
        ]
        assert take(again) == ALL[2:]
