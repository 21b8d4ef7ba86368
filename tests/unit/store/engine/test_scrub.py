"""The scrub: what is read again when, how fast, and what is done about damage."""

from __future__ import annotations

import errno
from pathlib import Path

from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.disk_account import MEASURE_INTERVAL_NS
from quiver_actors.store.engine.events import GapFound, Replaced
from quiver_actors.store.jobs.upkeep import SCRUB_AGE_NS, SCRUB_REST, STALE_CHECKS_MAX, ScrubJob
from quiver_actors.store.segment.check import STEP_BYTES
from tests.disks.faulty import FaultyDisk
from tests.support.engine_driver import EngineDriver, topic_settings

DAY_NS = 86_400 * SECOND_NS
SEGMENTS = "default/core_0/segments"


def store(disk: Disk, segments: int = 1) -> EngineDriver:
    driver = EngineDriver(disk, topic_settings(segment_compaction="off", segment_statistics="off"))
    driver.engine.registrations.register("s", "earliest")
    for segment_seq in range(segments):
        driver.push_numbered(10 * segment_seq, 10)
        driver.settle()
        driver.seal()
        driver.clock.advance(SECOND_NS)
    driver.run_for(MEASURE_INTERVAL_NS)  # until nothing but scrubs is left to do
    return driver


def segment_sizes(driver: EngineDriver) -> list[int]:
    return [info.size_bytes for info in driver.engine.segments()]


def damage(tmp_path: Path, segment_seq: int, offset: int = 1000) -> None:
    path = tmp_path / SEGMENTS / f"{segment_seq:016}.qseg"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_every_segment_is_read_again_within_seven_days(disk: Disk) -> None:
    driver = store(disk, 3)
    sizes = segment_sizes(driver)
    driver.run_for(SCRUB_AGE_NS - 10 * SECOND_NS)
    assert driver.engine.figures().scrubbed_bytes == 0
    driver.run_for(DAY_NS)
    assert driver.engine.figures().scrubbed_bytes == sum(sizes) - 4 * len(sizes), "all but the checksums themselves"
    driver.run_for(7 * DAY_NS)
    assert driver.engine.figures().scrubbed_bytes == 2 * (sum(sizes) - 4 * len(sizes))


def test_what_was_checked_longest_ago_comes_first(disk: Disk) -> None:
    driver = store(disk, 3)
    driver.clock.advance(SCRUB_AGE_NS + DAY_NS)
    order = []
    while (job := driver.engine.next_background()) is not None:
        assert isinstance(job, ScrubJob)
        order.append(job.segment_seq)
        job.run()
        driver.engine.finish(job)
        driver.clock.advance(SECOND_NS)
    assert order == [0, 1, 2]


def test_it_rests_nineteen_times_as_long_as_it_works(disk: Disk) -> None:
    driver = store(disk, 2)
    driver.clock.advance(SCRUB_AGE_NS + DAY_NS)
    job = driver.engine.next_background()
    assert isinstance(job, ScrubJob)
    job.run()
    job.took_ns = 7 * MILLISECOND_NS
    driver.engine.finish(job)
    assert driver.engine.next_background() is None
    assert driver.engine.next_deadline_ns() == driver.clock.now_ns + SCRUB_REST * 7 * MILLISECOND_NS
    assert 1 / (1 + SCRUB_REST) <= 0.05


def test_a_slice_is_a_small_piece_of_the_file_and_others_come_in_between(disk: Disk) -> None:
    driver = store(disk)
    driver.clock.advance(SCRUB_AGE_NS + DAY_NS)
    job = driver.engine.next_background()
    assert isinstance(job, ScrubJob)
    assert 0 < next(job._steps) <= STEP_BYTES
    driver.engine.finish(job)
    driver.push_numbered(10, 5)
    driver.settle()
    driver.seal()
    assert [info.bundle_count for info in driver.engine.segments()] == [10, 5]


def test_the_age_of_the_oldest_check_is_shown(disk: Disk) -> None:
    driver = store(disk)
    sealed_at = driver.clock.unix_ns() - SECOND_NS - MEASURE_INTERVAL_NS
    assert driver.engine.figures().last_scrub_unix_ns == sealed_at
    driver.run_for(SCRUB_AGE_NS + DAY_NS)
    scrubbed_at = driver.engine.figures().last_scrub_unix_ns
    assert sealed_at + SCRUB_AGE_NS <= scrubbed_at <= driver.clock.unix_ns()
    driver.push_numbered(10)
    driver.settle()
    driver.seal()
    assert driver.engine.figures().last_scrub_unix_ns == scrubbed_at, "the younger one does not hide the older one"


def test_a_start_checks_everything_and_so_begins_anew(disk: Disk) -> None:
    driver = store(disk, 2)
    driver.run_for(5 * DAY_NS)
    driver.drain_and_close()
    driver.reopen()
    assert driver.engine.figures().last_scrub_unix_ns == 0, "not checked yet"
    driver.settle()
    assert driver.engine.figures().last_scrub_unix_ns == driver.clock.unix_ns()
    driver.run_for(5 * DAY_NS)
    assert driver.engine.figures().scrubbed_bytes == 0


def test_checks_of_segments_that_are_gone_are_forgotten_behind_one_that_stays(disk: Disk) -> None:
    driver = store(disk)
    upkeep = driver.engine._parts.upkeep
    for segment_seq in range(1, 10 * STALE_CHECKS_MAX):
        upkeep.checked(segment_seq)
        upkeep.forget(segment_seq)
    assert len(upkeep._oldest) <= STALE_CHECKS_MAX + 2
    driver.clock.advance(SCRUB_AGE_NS + DAY_NS)
    job = driver.engine.next_background()
    assert isinstance(job, ScrubJob)
    assert job.segment_seq == 0


def test_without_segments_there_is_no_age_and_no_work(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.run_for(30 * DAY_NS)
    figures = driver.engine.figures()
    assert (figures.last_scrub_unix_ns, figures.scrubbed_bytes) == (0, 0)


def test_damage_is_rescued_before_a_reader_meets_it(disk: Disk, tmp_path: Path) -> None:
    driver = store(disk, 2)
    damage(tmp_path, 0)
    driver.run_for(SCRUB_AGE_NS + DAY_NS)
    assert driver.engine.figures().quarantined == 1
    driver.read(0).verify_checksum()
    left = driver.claim_numbers("s")
    assert len(left) == 19
    driver.settle()
    gaps = [event for event in driver.events if isinstance(event, GapFound)]
    assert [(gap.segment_seq, gap.bundle_count) for gap in gaps] == [(0, 1)]
    assert [event.segment_seq for event in driver.events if isinstance(event, Replaced)] == [0]
    driver.run_for(7 * DAY_NS)
    assert driver.engine.figures().quarantined == 1, "it is whole now"


def test_bundles_that_were_claimed_before_the_damage_was_found_can_be_resolved_but_the_lost_one(
    disk: Disk, tmp_path: Path
) -> None:
    driver = store(disk)
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 100)
    damage(tmp_path, 0)
    driver.run_for(SCRUB_AGE_NS + DAY_NS)
    assert driver.engine.figures().quarantined == 1
    # The lost bundle is named in a gap notice by now.
    assert driver.resolve("s", "x", segment_seq, "ack", indexes, 0) == [("already_resolved", [1])]
    driver.flush_progress()
    assert driver.engine.segments() == []
    assert [(e.bundle_index, e.bundle_count) for e in driver.events if isinstance(e, GapFound)] == [(1, 1)]


def test_a_segment_that_is_deleted_is_not_scrubbed(disk: Disk) -> None:
    driver = store(disk)
    driver.clock.advance(SCRUB_AGE_NS + DAY_NS)
    job = driver.engine.next_background()
    assert isinstance(job, ScrubJob)
    next(job._steps)
    driver.engine.finish(job)
    for segment_seq, indexes, *_ in driver.claim("s", "x", 100):
        driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    driver.run_for(30 * DAY_NS)
    assert driver.engine.failure is None
    assert driver.engine.segments() == []


def test_a_read_error_is_damage_not_a_failure_of_the_engine(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    driver = store(disk)
    disk.fail("read", 1, errno.EIO, path_part=".qseg")
    driver.run_for(SCRUB_AGE_NS + DAY_NS)
    assert driver.engine.failure is None
    assert driver.engine.figures().quarantined == 1
    assert driver.claim_numbers("s") == list(range(10)), "the second reading gave everything"
