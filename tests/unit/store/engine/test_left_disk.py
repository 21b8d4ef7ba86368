"""Segments that leave the disk before a subscriber has resolved them: from the archive if it has them, else told as lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from random import Random

import pytest

from quiver_actors.base.config import ArchiveSettings, RetentionSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER
from quiver_actors.errors import UsageError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import LeftDisk
from quiver_actors.store.subscriber import archived_part
from quiver_actors.store.subscriber.progress import (
    ARCHIVED_RUNS_MAX,
    ArchivedSegments,
    decode_progress,
    encode_progress,
)
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings

ARCHIVED = ArchiveSettings(enabled=True)
SECOND_NS = 1_000_000_000
Place = tuple[int, int]


def begun(
    segment_count: int,
    *,
    archived: int,
    reads: bool = True,
    archive: ArchiveSettings = ARCHIVED,
    disk: Disk | None = None,
) -> EngineDriver:
    """Segments of two bundles each, of which the archive has the first so many, and a subscriber that has resolved nothing."""
    driver = EngineDriver(disk or SimDisk(), topic_settings(segment_compaction="off", archive=archive))
    driver.engine.registrations.register(ARCHIVE_SUBSCRIBER, "earliest")
    driver.engine.registrations.register("late", "earliest")
    driver.engine.registrations.read_archive("late", is_read=reads)
    for number in range(segment_count):
        driver.push_numbered(2 * number, 2)
        driver.seal()
    if archived:
        driver.engine.claims.ack_through(ARCHIVE_SUBSCRIBER, archived - 1, 1)
    driver.flush_progress()
    return driver


def leave(driver: EngineDriver, *segments: int, reason: str = "evicted") -> None:
    for segment_seq in segments:
        drop_segment(driver.engine, segment_seq, reason)
    driver.settle()
    assert not {info.segment_seq for info in driver.engine.segments()} & set(segments)


def take(driver: EngineDriver, bundles: int = 1000, owner: str = "owner") -> list[Place]:
    grants = driver.claim("late", owner, bundles)
    return [(grant.segment_seq, index) for grant in grants for index in grant.indexes]


def places(*segments: int) -> list[Place]:
    return [(seq, index) for seq in segments for index in range(2)]


def told(driver: EngineDriver) -> list[tuple[int, int, int, str]]:
    gaps = driver.take_gaps("late")
    return [(each.segment_seq, each.bundle_index_first, each.bundle_count, each.reason) for each in gaps]


def crashed(driver: EngineDriver, mode: CrashMode = CrashMode.DROP) -> EngineDriver:
    assert isinstance(driver.disk, SimDisk)
    again = EngineDriver(driver.disk.crash(mode), driver.settings, clock=driver.clock)
    again.settle()
    return again


@pytest.mark.parametrize("reason", ["evicted", "expired"])
def test_what_the_archive_has_is_had_from_there_and_what_it_lacks_is_told(reason: str) -> None:
    driver = begun(4, archived=2)
    leave(driver, 0, 1, 2, reason=reason)
    assert [event for event in driver.events if isinstance(event, LeftDisk)] == [
        LeftDisk("late", seq) for seq in (0, 1)
    ]
    for again in (driver, crashed(driver)):
        assert [again.engine.registrations.is_archived("late", seq) for seq in range(4)] == [True, True, False, False]
        assert take(again) == places(0, 1)
        again.engine.claims.ack_through("late", 1, 1)
        assert told(again) == [(2, 0, 2, reason)]
        assert take(again) == places(3)


def test_claims_of_a_segment_that_leaves_the_disk_go_on() -> None:
    driver = begun(2, archived=2)
    grant = driver.claim("late", "owner", 1)[0]
    leave(driver, 0)
    assert driver.engine.claims.take_withdrawn() == []
    assert take(driver, owner="other") == [(0, 1), *places(1)]
    assert driver.resolve("late", "owner", 0, "ack", [0]) == []
    driver.flush_progress()
    assert grant.segment_seq == 0
    assert take(crashed(driver)) == [(0, 1), *places(1)]


@pytest.mark.parametrize("case", ["no reader", "archive is off", "no archiver", "too many"])
def test_what_nobody_could_read_is_told_as_lost(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = begun(3, archived=3, reads=case != "no reader", archive=ArchiveSettings(enabled=case != "archive is off"))
    if case == "no archiver":
        driver.engine.registrations.unregister(ARCHIVE_SUBSCRIBER)
    if case == "too many":
        monkeypatch.setattr(archived_part, "ARCHIVED_SEGMENTS_MAX", 1)
        leave(driver, 1)
    leave(driver, 0)
    assert told(driver) == [(0, 0, 2, "evicted")]
    assert take(driver) == places(1, 2)


def test_whether_consumers_read_the_archive_is_durable() -> None:
    driver = crashed(begun(3, archived=3))
    leave(driver, 0)
    assert take(driver) == places(0, 1, 2)
    driver.engine.registrations.read_archive("late", is_read=False)
    driver.flush_progress()
    driver.engine.claims.ack_through("late", 0, 1)
    driver.flush_progress()
    again = crashed(driver)
    leave(again, 1)
    assert told(again) == [(1, 0, 2, "evicted")]


def test_a_crash_between_the_record_and_the_end_of_the_file_changes_nothing() -> None:
    driver = begun(3, archived=3)
    drop_segment(driver.engine, 1, "evicted")
    driver.flush_progress()
    for mode in CrashMode:
        again = crashed(driver, mode)
        if 1 in {info.segment_seq for info in again.engine.segments()}:
            leave(again, 1)
        assert told(again) == []
        assert take(again) == places(0, 1, 2)


def test_a_kill_at_any_call_leaves_the_file_or_the_record_that_it_is_archived() -> None:
    points, point = [1], 0
    while point < points[-1]:
        point += 1
        inner = SimDisk()
        disk = FaultyDisk(inner)
        driver = begun(2, archived=2, disk=OrderMonitor(disk))
        before = disk.mutating_count
        if point > 1:
            disk.crash_at(before + point - 1)
        with contextlib.suppress(SimulatedCrash):
            leave(driver, 0)
            assert point == 1, "it was killed"
            points.append(disk.mutating_count - before + 1)
        left = EngineDriver(inner.crash(CrashMode.DROP if point % 2 else CrashMode.KEEP, point), driver.settings)
        left.settle()
        assert told(left) == []
        assert take(left) == places(0, 1)
    assert points[-1] > 4


def test_a_seek_moves_over_what_has_left_the_disk() -> None:
    for start, owed, skipped in [
        ("latest", [], [(0, 1, 1, "dropped"), (1, 0, 2, "dropped"), (2, 0, 2, "dropped"), (3, 0, 2, "dropped")]),
        ("earliest", places(0, 1, 2, 3), []),
        ("bundle:0/1/1", places(1, 2, 3)[1:], [(0, 1, 1, "dropped"), (1, 0, 1, "dropped")]),
    ]:
        driver = begun(4, archived=4)
        leave(driver, 0, 1)
        assert take(driver, 1) == [(0, 0)]
        assert driver.resolve("late", "owner", 0, "ack", [0]) == []
        with pytest.raises(UsageError, match="times are not known here"):
            driver.engine.registrations.seek("late", "time:5")
        driver.engine.registrations.seek("late", start)
        driver.settle()
        for again in (driver, crashed(driver)):
            again.engine.claims.release("owner")
            assert sorted(told(again)) == skipped
            assert take(again) == owed
    leave(driver, 2)
    assert take(driver, owner="other") == []


def test_a_progress_file_says_whether_what_leaves_the_disk_may_follow() -> None:
    driver = begun(1, archived=1)
    driver.flush_progress()
    assert isinstance(driver.disk, SimDisk)
    state = driver.engine.progress.registry.get("late").progress.snapshot(5)
    assert state.archived == ArchivedSegments(is_read=True)
    assert decode_progress(encode_progress(state)) == state


def test_age_takes_nothing_from_a_subscriber_that_the_archive_has() -> None:
    driver = EngineDriver(
        SimDisk(),
        topic_settings(segment_compaction="off", archive=ARCHIVED, retention=RetentionSettings(max_age_ns=SECOND_NS)),
    )
    driver.engine.registrations.register(ARCHIVE_SUBSCRIBER, "earliest")
    driver.engine.registrations.register("late", "earliest")
    driver.engine.registrations.read_archive("late", is_read=True)
    driver.push_numbered(0, 2)
    driver.seal()
    driver.engine.claims.ack_through(ARCHIVE_SUBSCRIBER, 0, 1)
    driver.flush_progress()
    driver.run_for(5 * SECOND_NS)
    assert driver.engine.segments() == []
    assert told(driver) == []
    assert take(driver) == places(0)


class History:
    """What happens to a subscriber, by chance, and what must be true of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.driver = begun(2, archived=0)
        self.owed = set(places(0, 1))
        self.acked = set[Place]()
        self.since = set[Place]()
        """What was acknowledged since the last kill."""
        self.durable = set[Place]()
        """Acknowledgements that no kill undoes."""
        self.unarchived = set[Place]()
        """What was evicted before the archiver had it."""

    def push(self) -> None:
        self.driver.push_numbered(0, 2)
        self.driver.seal()
        self.owed |= set(places(max(info.segment_seq for info in self.driver.engine.segments())))

    def upload(self) -> None:
        segment_seq = self.random.choice(sorted(self.owed))[0]
        self.driver.engine.claims.ack_through(ARCHIVE_SUBSCRIBER, segment_seq, 1)

    def evict(self) -> None:
        if not (there := [info.segment_seq for info in self.driver.engine.segments()]):
            return
        segment_seq = self.random.choice(there)
        archiver = self.driver.engine.progress.registry.get(ARCHIVE_SUBSCRIBER)
        if not archiver.progress.is_complete(segment_seq):
            self.unarchived |= set(places(segment_seq))
        drop_segment(self.driver.engine, segment_seq, "evicted")

    def consume(self) -> None:
        for place in take(self.driver, self.random.randint(1, 4)):
            assert place not in self.durable
            if self.random.random() < 0.7:
                assert self.driver.resolve("late", "owner", place[0], "ack", [place[1]]) == []
                self.acked.add(place)
                self.since.add(place)
        self.driver.engine.claims.release("owner")

    def flush(self) -> None:
        self.driver.flush_progress()
        self.durable |= self.since

    def kill(self) -> None:
        self.driver = crashed(self.driver, self.random.choice(list(CrashMode)))
        self.since.clear()

    def rest(self) -> tuple[list[Place], set[Place]]:
        """All that comes at the end, in its order, and all that is told as lost."""
        delivered: list[Place] = []
        lost = set[Place]()
        while True:
            self.driver.settle()
            found, gaps = take(self.driver), told(self.driver)
            delivered += found
            lost |= {(seq, index) for seq, first, count, _ in gaps for index in range(first, first + count)}
            if not (found or gaps):
                return delivered, lost
            for seq, index in found:
                self.driver.resolve("late", "owner", seq, "ack", [index])

    def goes_well(self, steps: Sequence[Callable[[], object]]) -> None:
        """Take steps at random, and check that everything owed comes once, in order, or is told as lost because it was not archived."""
        for _ in range(20):
            self.random.choice(steps)()
            if self.random.random() < 0.5:
                self.driver.settle()
        delivered, lost = self.rest()
        assert lost <= self.unarchived
        assert not self.durable & set(delivered)
        assert delivered == sorted(set(delivered))
        assert self.owed <= {*delivered, *lost, *self.acked}


@pytest.mark.parametrize("seed", range(16))
def test_whatever_happens_nothing_archived_is_lost_and_nothing_durable_comes_again(seed: int) -> None:
    """Pushes, uploads that lag, evictions of any segment, acknowledgements in any order, and kills."""
    history = History(seed)
    steps = [history.push, history.upload, history.evict, history.evict, history.consume, history.flush, history.kill]
    history.goes_well(steps)


def test_limits_hold_for_what_is_unresolved_alone() -> None:
    archived = archived_part.Archived(ArchivedSegments(is_read=True))
    runs = ARCHIVED_RUNS_MAX
    owed = range(2 * runs + 2)
    assert all(archived.follow(2 * seq, 3, 30, owed) for seq in range(runs))
    assert not archived.follow(2 * runs, 3, 30, owed), "one run too many"
    assert archived.follow(1, 3, 90, owed), "it joins two"
    assert archived.follow(2 * runs, 3, 30, owed)
    assert archived.mean_bytes == 10
    archived.finish(4, 3)
    archived.finish(4, 3)
    assert archived.follow(4, 3, 30, owed)
    assert not archived.follow(4 * runs, archived_part.BUNDLES_MAX, 0)
    assert archived.among([0, 1, 5, 4]) == [0, 1, 4]
