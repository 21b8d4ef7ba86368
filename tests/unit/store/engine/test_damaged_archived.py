"""A segment that is damaged on the disk and archived: who reads the archive gets it from there, everybody else is told what is lost."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from quiver_actors.base.config import ArchiveSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER
from quiver_actors.store.engine.events import LeftDisk
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver
from tests.unit.store.engine.test_left_disk import History, Place, begun, crashed, leave, places, take, told

SEGMENT = "default/core_0/segments/{:016}.qseg"
KINDS = ["whole", "bundle"]
"""Nothing of segment 0 can be proven any more, or its second bundle cannot."""
LOST = {"whole": [(0, 0, 2, "damaged")], "bundle": [(0, 1, 1, "damaged")]}


def rot(disk: SimDisk, kind: str, segment_seq: int = 0) -> None:
    path = SEGMENT.format(segment_seq)
    disk.open_read(path).fsync()
    content = disk.contents()[path]
    if kind == "whole":
        for offset, byte in enumerate(content):
            for bit in [bit for bit in range(8) if byte >> bit & 1]:
                assert disk.flip_bit(path, offset, bit)
    else:
        assert disk.flip_bit(path, content.index(f"{2 * segment_seq + 1}-3-text".encode()), 1)


def noticed(driver: EngineDriver, segment_seq: int = 0) -> EngineDriver:
    """Somebody could not read the segment."""
    driver.engine.check_segment(segment_seq)
    driver.run_for(10**9)
    return driver


def stored(segment_count: int, *, archived: int, **options: Any) -> EngineDriver:
    """What `begun` makes, after a start: every byte is on the disk."""
    return crashed(begun(segment_count, archived=archived, **options), CrashMode.KEEP)


def rotten(driver: EngineDriver, kind: str, segment_seq: int = 0, *, is_running: bool = True) -> EngineDriver:
    """The driver, or one of the next start, after the rot was found."""
    driver.flush_progress()
    assert isinstance(driver.disk, SimDisk)
    rot(driver.disk, kind, segment_seq)
    return noticed(driver, segment_seq) if is_running else crashed(driver)


def rest(driver: EngineDriver, subscriber: str = "late") -> tuple[list[Place], list[tuple[int, int, int, str]]]:
    """What comes in its order, each acknowledged, and what is told as lost."""
    delivered: list[Place] = []
    lost = []
    while True:
        driver.settle()
        grants, gaps = driver.claim(subscriber, "taker", 1), driver.take_gaps(subscriber)
        for grant in grants:
            delivered += [(grant.segment_seq, index) for index in grant.indexes]
            assert driver.resolve(subscriber, "taker", grant.segment_seq, "ack", grant.indexes) == []
        lost += [(gap.segment_seq, gap.bundle_index_first, gap.bundle_count, gap.reason) for gap in gaps]
        for gap in gaps:
            driver.engine.claims.ack_gap(subscriber, gap.notice)
        if not (grants or gaps):
            return delivered, lost


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize("damaged", [0, 1])
def test_what_the_archive_has_comes_from_there_and_others_are_told(
    kind: str, damaged: int, *, is_running: bool
) -> None:
    driver = stored(3, archived=2)
    driver.engine.registrations.register("other", "earliest")
    driver = rotten(driver, kind, damaged, is_running=is_running)
    assert [event for event in driver.events if isinstance(event, LeftDisk)] == [LeftDisk("late", damaged)]
    again = crashed(driver)
    lost = [(damaged, *run) for _, *run in LOST[kind]]
    for each in (driver, again):
        assert [seq for seq in range(3) if each.engine.registrations.is_archived("late", seq)] == [damaged]
        assert rest(each) == (places(0, 1, 2), [])
        left = [place for place in places(0, 1, 2) if place[0] != damaged or (kind == "bundle" and not place[1])]
        assert rest(each, "other") == (left, lost)
    assert isinstance(again.disk, SimDisk)
    assert len([path for path in again.disk.contents() if "quarantine" in path]) == 1


@pytest.mark.parametrize("case", ["not archived", "archive is off", "no archiver", "no reader"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_nobody_could_read_is_told_and_stays_so(kind: str, case: str) -> None:
    settings = ArchiveSettings(enabled=case != "archive is off")
    driver = stored(2, archived=0 if case == "not archived" else 2, reads=case != "no reader", archive=settings)
    if case == "no archiver":
        driver.engine.registrations.unregister(ARCHIVE_SUBSCRIBER)
    rotten(driver, kind)
    if case == "not archived":
        driver.engine.claims.ack_through(ARCHIVE_SUBSCRIBER, 1, 1)
    driver.engine.registrations.read_archive("late", is_read=True)
    expected = [place for place in places(0, 1) if place[0] or (kind == "bundle" and not place[1])]
    assert rest(driver) == (expected, LOST[kind])
    driver.flush_progress()
    assert rest(crashed(driver)) == ([], [])


@pytest.mark.parametrize("kind", KINDS)
def test_claims_of_what_rots_go_on_and_what_is_resolved_does_not_come_again(kind: str) -> None:
    driver = stored(1, archived=1)
    assert take(driver) == places(0)
    assert driver.resolve("late", "owner", 0, "ack", [0]) == []
    rotten(driver, kind)
    assert driver.engine.claims.take_withdrawn() == []
    driver.engine.claims.release("owner")
    assert take(driver) == [(0, 1)]
    assert driver.resolve("late", "owner", 0, "ack", [1]) == []
    driver.flush_progress()
    assert rest(crashed(driver)) == ([], [])


def test_who_is_done_with_what_is_lost_reads_the_rest_on_the_disk() -> None:
    driver = stored(2, archived=2)
    take(driver, 2)
    assert driver.resolve("late", "owner", 0, "ack", [1]) == []
    driver.engine.claims.release("owner")
    rotten(driver, "bundle")
    assert not driver.engine.registrations.is_archived("late")
    assert rest(driver) == ([(0, 0), *places(1)], [])


def test_who_comes_after_the_loss_gets_it_from_the_archive_if_it_can() -> None:
    driver = rotten(stored(2, archived=2), "bundle")
    for is_new_start in (False, True):
        driver = crashed(driver) if is_new_start else driver
        name = f"new-{is_new_start}"
        driver.engine.registrations.register(name, "earliest", reads_archive=True)
        driver.engine.registrations.register(f"other-{is_new_start}", "earliest")
        assert rest(driver, name) == (places(0, 1), [])
        assert rest(driver, f"other-{is_new_start}") == ([(0, 0), *places(1)], LOST["bundle"])
        driver.engine.registrations.seek(name, "earliest")
        driver.engine.registrations.read_archive(name, is_read=True)
        assert rest(driver, name) == (places(0, 1), [])


def test_a_file_that_somebody_deletes_comes_from_the_archive() -> None:
    driver = stored(2, archived=1)
    for segment_seq in range(2):
        driver.disk.unlink(SEGMENT.format(segment_seq))
        noticed(driver, segment_seq)
    assert rest(driver) == (places(0), [(1, 0, 2, "damaged")])


def test_bytes_that_flip_one_by_one_cost_nobody_a_bundle_who_reads_the_archive() -> None:
    whole = stored(2, archived=2)
    assert isinstance(whole.disk, SimDisk)
    whole.flush_progress()
    size_bytes = len(whole.disk.contents()[SEGMENT.format(0)])
    for offset in range(0, size_bytes, 61):
        disk = whole.disk.crash(CrashMode.DROP)
        driver = EngineDriver(disk, whole.settings)
        driver.settle()
        disk.open_read(SEGMENT.format(0)).fsync()
        assert disk.flip_bit(SEGMENT.format(0), offset, offset % 8)
        noticed(driver)
        assert rest(driver) == (places(0, 1), []), offset


def test_a_kill_at_any_call_leaves_the_file_or_the_record_that_it_is_archived() -> None:
    settings = stored(1, archived=1).settings
    for kind in KINDS:
        points, point = [1], 0
        while point < points[-1]:
            point += 1
            inner = stored(2, archived=2).disk
            assert isinstance(inner, SimDisk)
            inner = inner.crash(CrashMode.KEEP)
            disk = FaultyDisk(inner)
            driver = EngineDriver(OrderMonitor(disk), settings)
            driver.settle()
            rot(inner, kind)
            before = disk.mutating_count
            if point > 1:
                disk.crash_at(before + point - 1)
            with contextlib.suppress(SimulatedCrash):
                noticed(driver)
                assert point == 1, "it was killed"
                points.append(disk.mutating_count - before + 1)
            left = EngineDriver(inner.crash(CrashMode.DROP if point % 2 else CrashMode.KEEP, point), driver.settings)
            left.settle()
            assert rest(left) == (places(0, 1), [])
        assert points[-1] > 4


class RottingHistory(History):
    """A history in which segments rot, too."""

    def rot(self) -> None:
        self.flush()
        self.driver = crashed(self.driver, CrashMode.KEEP)
        disk = self.driver.disk
        assert isinstance(disk, SimDisk)
        there = [info.segment_seq for info in self.driver.engine.segments()]
        there = [seq for seq in there if SEGMENT.format(seq) in disk.contents()]
        if not there:
            return
        segment_seq = self.random.choice(there)
        archiver = self.driver.engine.progress.registry.get(ARCHIVE_SUBSCRIBER)
        if not archiver.progress.is_complete(segment_seq):
            self.unarchived |= set(places(segment_seq))
        rot(disk, "whole", segment_seq)
        noticed(self.driver, segment_seq)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_nothing_archived_is_lost_and_nothing_durable_comes_again(seed: int) -> None:
    history = RottingHistory(seed)
    steps = [history.push, history.upload, history.evict, history.rot, history.consume, history.flush, history.kill]
    history.goes_well(steps)


def test_what_has_rotted_and_is_evicted_then_is_still_had_from_the_archive() -> None:
    driver = rotten(stored(2, archived=2), "bundle")
    leave(driver, 0)
    assert told(driver) == []
    assert rest(crashed(driver)) == (places(0, 1), [])
