"""Segments that move to a cold disk: where they are read, what a start needs, what happens while that disk is away."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.config import RetentionSettings, TierSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk, PosixFile
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_files import ColdStorageUnavailable
from quiver_actors.store.engine.events import ColdDiskFaulted, ColdOpened, GapFound
from quiver_actors.store.files.cold_directory import posix_cold_disk
from quiver_actors.store.jobs.cold import ColdCopyJob, ColdFlipJob
from quiver_actors.store.segment.reader import SegmentReader
from tests.support.engine_driver import EngineDriver, topic_settings


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    (tmp_path / "hot").mkdir()
    (tmp_path / "cold").mkdir()
    opened = PosixDisk(str(tmp_path / "hot"))
    yield opened
    opened.close()


def driver_of(disk: Disk, tmp_path: Path, *, keep_hot: int = 1, cap: int = 0, **settings: Any) -> EngineDriver:
    tier = TierSettings(cold_dir=str(tmp_path / "cold"), keep_hot_segments=keep_hot, cold_cap_bytes=cap)
    return EngineDriver(disk, topic_settings(tier=tier, segment_compaction="off", **settings))


def fill(driver: EngineDriver, segments: int, first: int = 0) -> None:
    """Segments of two bundles each."""
    for number in range(first, first + segments):
        driver.push_numbered(2 * number, 2)
        driver.seal()


def move(driver: EngineDriver) -> None:
    """Let everything move that is to move."""
    driver.run_for(5 * SECOND_NS)


def hot_of(tmp_path: Path) -> list[int]:
    return sorted(int(path.stem) for path in (tmp_path / "hot/default/core_0/segments").glob("*.qseg"))


def cold_of(tmp_path: Path) -> list[int]:
    return sorted(int(path.stem) for path in (tmp_path / "cold").glob("default/core_0/*/*.qseg"))


def numbers_through_descriptors(driver: EngineDriver, segment_seqs: list[int]) -> list[int]:
    """Read segments as a worker lets consumers read them: by descriptors that the loop hands out."""
    found = []
    for segment_seq in segment_seqs:
        if driver.engine.storage.is_cold(segment_seq):
            with pytest.raises(ColdStorageUnavailable) as put_off:
                driver.engine.open_segment(segment_seq)
            assert put_off.value.is_coming
            driver.settle()
            assert ColdOpened(segment_seq) in driver.events
        descriptor, size_bytes = driver.engine.open_segment(segment_seq)
        reader = SegmentReader(os.pread(descriptor, size_bytes, 0))
        os.close(descriptor)
        found += [reader.bundle(index)[0].column(0)[0].as_py() for index in range(reader.bundle_count)]
    return found


def gaps_of(driver: EngineDriver) -> list[GapFound]:
    return [event for event in driver.events if isinstance(event, GapFound)]


def test_the_oldest_segments_move_and_are_read_where_they_are(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path, keep_hot=2)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 5)
    move(driver)
    assert (cold_of(tmp_path), hot_of(tmp_path)) == ([0, 1, 2], [3, 4])
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1, 2, 3, 4]
    assert numbers_through_descriptors(driver, [0, 1, 2, 3, 4]) == list(range(10))
    assert driver.claim_numbers("s") == list(range(10))


def test_without_a_cold_directory_nothing_moves(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk, topic_settings(tier=TierSettings(keep_hot_segments=0)))
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    assert hot_of(tmp_path) == [0, 1, 2]
    assert not disk.exists("default/core_0/quiver.cold")


def test_nothing_moves_into_the_data_directory_of_another_node(disk: Disk, tmp_path: Path) -> None:
    (tmp_path / "cold" / "quiver.version").write_bytes(b"quiver-data 3\n")
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    assert hot_of(tmp_path) == [0, 1, 2]
    assert any(
        isinstance(each, ColdDiskFaulted) and "a node has its data there" in each.reason for each in driver.events
    )
    assert [path.name for path in (tmp_path / "cold").iterdir()] == ["quiver.version"]


def test_a_size_keeps_fewer_segments_hot(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path, keep_hot=4)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 4)
    move(driver)
    assert cold_of(tmp_path) == []
    size_bytes = driver.engine.segments()[-1].size_bytes
    tier = TierSettings(cold_dir=str(tmp_path / "cold"), keep_hot_segments=4, keep_hot_bytes=size_bytes)
    driver.engine.change_settings(topic_settings(tier=tier))
    move(driver)
    assert (cold_of(tmp_path), hot_of(tmp_path)) == ([0, 1, 2], [3])


def test_a_start_without_the_cold_disk_loses_nothing_and_all_is_back_once_it_is_there(
    disk: Disk, tmp_path: Path
) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 4)
    move(driver)
    driver.drain_and_close()
    (tmp_path / "cold").rename(tmp_path / "away")
    (tmp_path / "cold").mkdir()  # an empty mount point
    driver.reopen()
    driver.settle()
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1, 2, 3]
    with pytest.raises(ColdStorageUnavailable):
        driver.engine.open_segment(0)
    driver.settle()
    with pytest.raises(ColdStorageUnavailable, match=r"quiver\.cold-id is not in it") as refused:
        driver.engine.open_segment(0)
    assert not refused.value.is_coming
    assert any(isinstance(event, ColdDiskFaulted) and event.reason for event in driver.events)
    driver.run_for(60 * SECOND_NS)
    assert (gaps_of(driver), driver.take_gaps("s")) == ([], [])
    (tmp_path / "cold").rmdir()
    (tmp_path / "away").rename(tmp_path / "cold")
    driver.run_for(60 * SECOND_NS)
    assert ColdDiskFaulted("") in driver.events
    assert numbers_through_descriptors(driver, [0, 1, 2, 3]) == list(range(8))
    assert driver.claim_numbers("s") == list(range(8))


class FullDisk(PosixDisk):
    """A disk that is read, and has no room."""

    def create(self, path: str) -> PosixFile:
        raise DiskError("write", path, errno.ENOSPC)


def test_a_cold_disk_without_room_is_read_as_ever(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    driver.drain_and_close()
    driver.cold_disks = lambda root: contextlib.closing(FullDisk(root))
    driver.reopen()
    fill(driver, 2, first=3)
    move(driver)
    assert (cold_of(tmp_path), hot_of(tmp_path)) == ([0, 1], [2, 3, 4])
    assert [event.reason for event in driver.events if isinstance(event, ColdDiskFaulted)] != []
    for _ in range(2):
        assert numbers_through_descriptors(driver, [0, 1]) == list(range(4))
    assert ColdDiskFaulted("") not in driver.events
    driver.cold_disks = posix_cold_disk
    driver.drain_and_close()
    driver.reopen()
    move(driver)
    assert (cold_of(tmp_path), hot_of(tmp_path)) == ([0, 1, 2, 3], [4])


def test_a_start_reads_nothing_of_the_cold_disk(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 4)
    move(driver)
    driver.drain_and_close()

    def untouched(root: str) -> Any:
        raise AssertionError(f"{root} was opened")

    driver.cold_disks = untouched
    driver.reopen()
    assert [(info.segment_seq, info.bundle_count) for info in driver.engine.segments()] == [
        (number, 2) for number in range(4)
    ]
    assert driver.engine.claims.claimable_count("s") == 6, "what is hot is checked first"


def test_processed_segments_go_from_the_cold_disk_also_after_it_was_away(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 4)
    move(driver)
    assert cold_of(tmp_path) == [0, 1, 2]
    (tmp_path / "cold").rename(tmp_path / "away")
    driver.engine.claims.ack_through("s", 1, 1)
    driver.run_for(20 * SECOND_NS)
    assert [info.segment_seq for info in driver.engine.segments()] == [2, 3]
    driver.engine.close()
    driver.reopen()
    driver.run_for(20 * SECOND_NS)
    assert [info.segment_seq for info in driver.engine.segments()] == [2, 3]
    (tmp_path / "away").rename(tmp_path / "cold")
    driver.run_for(20 * SECOND_NS)
    assert cold_of(tmp_path) == [2]


@pytest.mark.parametrize(("policy", "left"), [("drop_oldest", [2, 3, 4, 5]), ("backpressure", [0, 1, 2, 3, 4, 5])])
def test_at_its_cap_the_cold_disk_follows_the_policy(disk: Disk, tmp_path: Path, policy: str, left: list[int]) -> None:
    driver = driver_of(disk, tmp_path, keep_hot=9)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    size_bytes = driver.engine.segments()[0].size_bytes
    tier = TierSettings(
        cold_dir=str(tmp_path / "cold"), keep_hot_segments=1, cold_cap_bytes=3 * size_bytes + size_bytes // 2
    )
    driver.engine.change_settings(topic_settings(tier=tier, retention=RetentionSettings(size_cap_policy=policy)))
    fill(driver, 4, first=2)
    for _ in range(5):
        move(driver)
    assert [info.segment_seq for info in driver.engine.segments()] == left
    assert len(cold_of(tmp_path)) == 3
    told = driver.claim_numbers("s")
    assert told == [number for seq in left for number in (2 * seq, 2 * seq + 1)]
    assert [notice.reason for notice in driver.told] == ["evicted"] * (6 - len(left))


def test_a_damaged_cold_segment_is_brought_back_and_rescued(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    path = next((tmp_path / "cold").glob("default/core_0/*/0000000000000000.qseg"))
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.chmod(0o640)
    path.write_bytes(content)
    driver.engine.check_segment(0)
    driver.run_for(20 * SECOND_NS)
    assert driver.take_gaps("s"), "what cannot be saved is told"
    assert 0 not in driver.engine._parts.sealed_segments.segments.cold or driver.read(0).bundle_count
    assert driver.claim_numbers("s")[-4:] == [2, 3, 4, 5]


def flipped(driver: EngineDriver) -> ColdFlipJob:
    """The job that has moved segments and deleted their hot files, before the loop has taken it back."""
    for _ in range(1_000):
        driver.events += driver.engine.tick()
        for job in (driver.engine.next_commit(), driver.engine.storage.next_cold(), driver.engine.next_background()):
            if job is None:
                continue
            job.run()
            if isinstance(job, ColdFlipJob) and job.flipped:
                return job
            driver.events += driver.engine.finish(job)
        driver.clock.now_ns += SECOND_NS // 100
    raise AssertionError("no segment was moved")


@pytest.mark.parametrize("asked", ["opened", "found unreadable", "asked for by time"])
def test_a_segment_that_is_wanted_in_the_moment_of_its_move_does_not_count_as_deleted(
    disk: Disk, tmp_path: Path, asked: str
) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    job = flipped(driver)
    (moved,) = job.flipped
    assert moved not in hot_of(tmp_path)
    if asked == "opened":
        with pytest.raises(ColdStorageUnavailable) as put_off:
            driver.engine.open_segment(moved)
        assert put_off.value.is_coming
    elif asked == "asked for by time":
        assert driver.engine.owed.bundle_time(moved, 0)
    else:
        driver.engine.check_segment(moved)
    driver.events += driver.engine.finish(job)
    assert ColdOpened(moved) in driver.events, "whoever waits asks again"
    driver.run_for(60 * SECOND_NS)
    assert gaps_of(driver) == []
    assert numbers_through_descriptors(driver, [0, 1, 2]) == list(range(6))
    assert driver.claim_numbers("s") == list(range(6))


@pytest.mark.parametrize("deleted", ["before its end", "when it is whole", "after a fault"])
def test_the_copy_of_a_segment_that_is_deleted_meanwhile_goes_without_a_start(
    disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deleted: str
) -> None:
    monkeypatch.setattr("quiver_actors.store.jobs.cold.COPY_BYTES_A_RUN", 256)
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    job = copying(driver)
    while deleted == "when it is whole" and not job.is_done:
        job.run()
    if deleted == "after a fault":
        (tmp_path / "cold").rename(tmp_path / "away")
        job.run()
        assert job.fault
        (tmp_path / "away").rename(tmp_path / "cold")
    assert len(leftovers(tmp_path)) == 1
    driver.engine.claims.ack_through("s", 0, 1)
    driver.run_for(10 * SECOND_NS)
    assert hot_of(tmp_path) == [1, 2], "it is deleted while its copy is under way"
    driver.events += driver.engine.finish(job)
    driver.run_for(60 * SECOND_NS)
    assert (leftovers(tmp_path), hot_of(tmp_path)) == (["0000000000000001.qseg"], [2])
    assert gaps_of(driver) == []
    assert driver.claim_numbers("s") == [2, 3, 4, 5]


def copying(driver: EngineDriver) -> ColdCopyJob:
    """The first piece of a copy, which the loop has not taken back."""
    for _ in range(1_000):
        driver.events += driver.engine.tick()
        for job in (driver.engine.next_commit(), driver.engine.next_background(), driver.engine.storage.next_cold()):
            if job is None:
                continue
            job.run()
            if isinstance(job, ColdCopyJob):
                assert not job.is_done
                return job
            driver.events += driver.engine.finish(job)
        driver.clock.now_ns += SECOND_NS // 100
    raise AssertionError("no segment was copied")


def leftovers(tmp_path: Path) -> list[str]:
    """Names of all files of segments on the cold disk, whole or not."""
    return sorted(path.name for path in (tmp_path / "cold").glob("default/core_0/*/*.qseg*"))


def test_a_cold_file_that_somebody_deleted_is_told_as_lost(disk: Disk, tmp_path: Path) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    next((tmp_path / "cold").glob("default/core_0/*/0000000000000000.qseg")).unlink()
    driver.engine.check_segment(0)
    driver.run_for(20 * SECOND_NS)
    assert [gap.segment_seq for gap in gaps_of(driver)] == [0]
    driver.engine.close()
    driver.reopen()
    driver.settle()
    assert [info.segment_seq for info in driver.engine.segments()] == [1, 2]


@pytest.mark.parametrize("is_away", [False, True])
def test_a_damaged_list_is_made_anew_from_the_cold_disk(disk: Disk, tmp_path: Path, is_away: bool) -> None:
    driver = driver_of(disk, tmp_path)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    move(driver)
    driver.drain_and_close()
    path = tmp_path / "hot/default/core_0/quiver.cold"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    if is_away:
        (tmp_path / "cold").rename(tmp_path / "away")
        with pytest.raises(DiskError, match="No such file"):
            driver.reopen()
        (tmp_path / "away").rename(tmp_path / "cold")
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == list(range(6))
    assert any("found again on the cold disk" in note for note in driver.engine.recovery_notes)
