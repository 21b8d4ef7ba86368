"""One append and one sync make the progress of many subscribers durable; the files that every program reads are brought up behind it."""

from __future__ import annotations

import contextlib
import errno
from collections import Counter

import pytest

from quiver_actors.base.rights import Ownership
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import UnsupportedVersion
from quiver_actors.store.engine import EngineState, progress_journal
from quiver_actors.store.jobs.records import BringUpJob, FilesJob
from quiver_actors.store.subscriber.progress import (
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_progress,
)
from quiver_actors.store.subscriber.progress_journal import PROGRESS_JOURNAL, decode_progress_journal
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.disks.simulated import SimDisk
from tests.golden.parser import parse_progress
from tests.support.engine_driver import EngineDriver, drop_segment
from tests.unit.store.engine.journaled import (
    BUNDLES,
    JOURNAL,
    NAMES,
    PATHS,
    SETTINGS,
    acknowledge,
    delivered,
    driven,
    progress_path,
    resolved_in_file,
)


def test_one_sync_covers_all_subscribers_of_a_flush() -> None:
    disk = FaultyDisk(SimDisk())
    names = [f"live-{number}" for number in range(64)]
    driver = driven(disk, names)
    acknowledge(driver, 0, names)
    before = Counter(site.kind for site in disk.history)
    for index in range(1, 11):
        acknowledge(driver, index, names)
    made = Counter(site.kind for site in disk.history) - before
    assert (made["fdatasync"], made["write"], made["create"], made["sync_directory"]) == (10, 10, 0, 0)


def test_a_lone_subscriber_has_no_journal() -> None:
    disk = SimDisk()
    driver = driven(disk, ["ann"])
    acknowledge(driver, 3, ["ann"])
    assert not disk.exists(JOURNAL)
    assert resolved_in_file(disk, "ann") == [3]


def test_what_was_told_to_be_durable_survives_the_power() -> None:
    disk = SimDisk()
    driver = driven(disk)
    for index in (0, 1, 7):
        ticket = acknowledge(driver, index)
        assert driver.engine.progress.durable >= ticket
    assert disk.exists(JOURNAL)
    owed = [index for index in range(BUNDLES) if index not in (0, 1, 7)]
    for mode in CrashMode:
        left = disk.crash(mode)
        assert delivered(left) == dict.fromkeys(NAMES, owed), mode
        assert not left.exists(JOURNAL)
        assert delivered(left.crash(CrashMode.DROP)) == dict.fromkeys(NAMES, owed), "the start has made it durable"


def test_a_power_loss_at_any_call_costs_nothing_that_was_durable() -> None:
    for calls in range(1, 1_000):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        driver = driven(disk)
        disk.crash_at(disk.mutating_count + calls)
        durable: list[int] = []
        with contextlib.suppress(SimulatedCrash):
            for index in range(3):
                acknowledge(driver, index)
                durable.append(index)
            driver.engine.registrations.register("new", "latest")
            driver.flush_progress()
            driver.drain_and_close()
        for seed, mode in enumerate((CrashMode.GARBLE, CrashMode.SCATTER, CrashMode.SCATTER)):
            for found in delivered(inner.crash(mode, seed)).values():
                assert set(found) >= set(range(3, BUNDLES)), "only what was acknowledged may be missing"
                assert not set(found) & set(durable), f"durable before call {calls}, and delivered again"
        if disk.mutating_count < calls:
            return
    raise AssertionError("the run does not end")


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_an_error_of_any_call_that_passes_costs_nothing(error: int) -> None:
    reached: set[int] = set()
    for calls in range(1, 200):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        driver = driven(disk)
        fault = disk.fail("mutating", calls, error, written_share=0.5)
        durable = []
        for index in range(5):
            ticket = acknowledge(driver, index)
            driver.clock.advance(SECOND_NS)
            driver.settle()
            if driver.engine.state is EngineState.FAILED:
                break
            assert driver.engine.progress.durable >= ticket, f"call {calls} failed once and holds up progress"
            durable.append(index)
        reached.add(len(durable))
        assert error == errno.EIO or len(durable) == 5 or fault.hits, calls
        for found in delivered(inner.crash(CrashMode.DROP)).values():
            assert set(found) >= set(range(5, BUNDLES))
            assert not set(found) & set(durable), calls
        if not fault.hits:
            break
    assert 5 in reached


def test_a_journal_whose_sync_found_no_room_is_not_written_to_again() -> None:
    inner = SimDisk()
    disk = FaultyDisk(inner)
    driver = driven(disk)
    acknowledge(driver, 0)
    acknowledge(driver, 1)
    disk.fail("fdatasync", 1, errno.ENOSPC, path_part="quiver.progress.tmp")
    ticket = acknowledge(driver, 2)
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert driver.engine.state is EngineState.READY
    assert driver.engine.progress.durable >= ticket
    assert not disk.exists(JOURNAL)
    assert [resolved_in_file(inner, name) for name in NAMES] == [[0, 1, 2]] * 3


def test_rot_at_any_byte_costs_acknowledgements_and_never_a_bundle() -> None:
    disk = SimDisk()
    driver = driven(disk)
    for index in range(4):
        acknowledge(driver, index, NAMES if index % 2 else NAMES[:2])
    content = disk.contents()[JOURNAL]
    kept = decode_progress_journal(content).frame_count
    assert kept == 4
    frame_bytes = (len(content) - 24) // 4
    for offset in range(0, len(content), 13):
        left = disk.crash(CrashMode.DROP)
        assert left.flip_bit(JOURNAL, offset, offset % 8)
        again = EngineDriver(left, SETTINGS)
        quarantined = again.engine._parts.quarantine.count
        assert quarantined == (offset < len(content) - frame_bytes - 60 or quarantined), offset
        again.settle()
        for name in NAMES:
            assert set(again.claim_numbers(name)) >= set(range(4, BUNDLES)), offset
        assert not again.told


def test_a_damaged_journal_is_kept_in_quarantine() -> None:
    disk = SimDisk()
    driver = driven(disk)
    for index in range(3):
        acknowledge(driver, index)
    content = disk.contents()[JOURNAL]
    left = disk.crash(CrashMode.DROP)
    left.flip_bit(JOURNAL, 24 + 40, 0)
    again = EngineDriver(left, SETTINGS)
    kept = [
        data for path, data in left.contents().items() if path.startswith(f"{PATHS.quarantine}/quiver.progress.tmp")
    ]
    assert [len(data) for data in kept] == [len(content)]
    assert any(JOURNAL in note for note in again.engine.recovery_notes)
    again.settle()
    assert [sorted(again.claim_numbers(name)) for name in NAMES] == [list(range(3, BUNDLES))] * 3, (
        "the last frame counts"
    )


def test_a_program_that_does_not_know_the_journal_delivers_again_and_loses_nothing() -> None:
    disk = SimDisk()
    driver = driven(disk)
    for index in range(BUNDLES):
        acknowledge(driver, index)
    driver.seal()
    left = disk.crash(CrashMode.DROP)
    left.unlink(JOURNAL)  # as every open reaps what is temporary
    for name in NAMES:
        decode_progress(left.contents()[progress_path(name)])
    assert delivered(left) == {name: [*range(BUNDLES)] for name in NAMES}


def test_a_segment_goes_only_once_the_files_need_it_no_more() -> None:
    disk = SimDisk()
    driver = driven(disk)
    driver.seal()
    for index in range(BUNDLES):
        acknowledge(driver, index, NAMES[:2])
    assert disk.exists(JOURNAL)
    for index in range(BUNDLES):
        driver.resolve("cat", "cat", 0, "ack", [index])
    driver.engine.progress.flush()
    segment = PATHS.segment(0)
    for _ in range(20):
        job = driver.engine.next_background()
        if job is None:
            break
        watermarks = [parse_progress(disk.contents()[progress_path(name)]).oldest_incomplete_seg for name in NAMES]
        assert disk.exists(segment) or min(watermarks) == 1
        job.run()
        driver.engine.finish(job)
    assert not disk.exists(segment)
    assert not disk.exists(JOURNAL)


def test_a_dropped_segment_goes_only_once_the_files_need_it_no_more() -> None:
    disk = SimDisk()
    driver = driven(disk)
    driver.seal()
    for index in range(BUNDLES):
        acknowledge(driver, index, NAMES[:2])
    drop_segment(driver.engine, 0, "evicted")
    driver.settle()
    assert not disk.exists(PATHS.segment(0))
    left = disk.crash(CrashMode.DROP)
    again = EngineDriver(left, SETTINGS)
    again.settle()
    assert [again.claim_numbers(name) for name in NAMES] == [[], [], []]
    assert [(notice.segment_seq, notice.reason) for notice in again.told] == [(0, "evicted")], "cat alone lost it"


def test_a_name_that_comes_anew_has_nothing_of_the_old_one_at_any_call() -> None:
    for calls in range(1, 300):
        inner = SimDisk()
        disk = FaultyDisk(inner)
        driver = driven(disk)
        acknowledge(driver, 0)
        acknowledge(driver, 1)
        disk.crash_at(disk.mutating_count + calls)
        is_new = False
        with contextlib.suppress(SimulatedCrash):
            driver.engine.registrations.unregister("ann")
            driver.engine.registrations.register("ann", "earliest")
            driver.flush_progress()
            is_new = True
        for mode in (CrashMode.DROP, CrashMode.KEEP, CrashMode.SCATTER):
            found = delivered(inner.crash(mode, calls))
            assert found["ann"][-10:] == list(range(2, BUNDLES))
            assert not is_new or found["ann"] == list(range(BUNDLES)), "acknowledged by another of that name"
            assert found["ben"] == list(range(2, BUNDLES))
        if is_new:
            return
    raise AssertionError("the run does not end")


def test_a_file_that_somebody_else_has_written_since_counts() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    acknowledge(driver, 1)
    left = disk.crash(CrashMode.DROP)
    entries = {0: SegmentProgress(BUNDLES, (1 << 5).to_bytes(8, "little"))}
    anew = SubscriberProgress(oldest_incomplete_seg=0, entries=entries, trusted_watermark=True)
    file = left.create(progress_path("ann"))
    file.write([encode_progress(anew)], 0)
    file.fsync()
    left.unlink(progress_path("cat"))
    left.sync_directory(PATHS.root)
    found = delivered(left, ["ann", "ben"])
    assert found["ann"] == [index for index in range(BUNDLES) if index != 5]
    assert found["ben"] == list(range(2, BUNDLES))
    assert not left.exists(progress_path("cat")), "somebody has forgotten it"


def test_a_damaged_progress_file_is_made_whole_by_its_record() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    acknowledge(driver, 1)
    left = disk.crash(CrashMode.DROP)
    left.flip_bit(progress_path("ann"), 20, 3)
    assert delivered(left) == {name: [*range(2, BUNDLES)] for name in NAMES}


def test_a_clean_stop_leaves_the_files_alone() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 4)
    acknowledge(driver, 6)
    driver.drain_and_close()
    assert not disk.exists(JOURNAL)
    assert [resolved_in_file(disk, name) for name in NAMES] == [[4, 6]] * 3


def test_the_files_follow_after_a_while() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 4)
    assert disk.exists(JOURNAL)
    assert resolved_in_file(disk, "ann") == []
    driver.run_for(progress_journal.JOURNAL_AGE_NS)
    assert not disk.exists(JOURNAL)
    assert [resolved_in_file(disk, name) for name in NAMES] == [[4]] * 3


def test_a_journal_that_is_large_is_brought_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_journal, "JOURNAL_BYTES_MAX", 600)
    disk = SimDisk()
    driver = driven(disk)
    kinds = []
    for index in range(6):
        for name in NAMES:
            driver.resolve(name, name, 0, "ack", [index])
        driver.engine.progress.flush()
        while (job := driver.engine.next_background()) is not None:
            kinds.append(type(job))
            job.run()
            driver.engine.finish(job)
        assert len(disk.contents().get(JOURNAL, b"")) <= 600
    assert [kind for kind in kinds if kind is not FilesJob].count(BringUpJob) == 2
    monkeypatch.setattr(progress_journal, "JOURNAL_BYTES_MAX", 100)
    acknowledge(driver, 7)
    assert not disk.exists(JOURNAL)
    assert resolved_in_file(disk, "cat") == [*range(6), 7]


def test_owners_and_notices_go_to_the_files_at_once() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    assert disk.exists(JOURNAL)
    driver.engine.registrations.give("ann", Ownership(1001))
    driver.flush_progress()
    assert decode_progress(disk.contents()[progress_path("ann")]).ownership == Ownership(1001)
    assert not disk.exists(JOURNAL)


def test_a_seek_back_is_as_durable_as_an_acknowledgement() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    acknowledge(driver, 1)
    driver.engine.registrations.seek("ann", "earliest")
    driver.resolve("ben", "ben", 0, "ack", [2])
    driver.flush_progress()
    found = delivered(disk.crash(CrashMode.DROP))
    assert found == {"ann": [*range(BUNDLES)], "ben": [*range(3, BUNDLES)], "cat": [*range(2, BUNDLES)]}


def test_progress_of_bundles_behind_a_segment_that_was_sealed_meanwhile() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    driver.seal()
    driver.push_numbered(BUNDLES, 3)
    driver.settle()
    acknowledge(driver, 1)
    for name in NAMES:
        (grant,) = driver.claim(name, name, 3)
        driver.resolve(name, name, grant.segment_seq, "ack", [1])
    driver.flush_progress()
    assert disk.exists(JOURNAL)
    owed = [*range(2, BUNDLES), BUNDLES, BUNDLES + 2]
    assert delivered(disk.crash(CrashMode.DROP)) == dict.fromkeys(NAMES, owed)


def test_a_journal_of_a_newer_program_is_refused_and_left_alone() -> None:
    disk = SimDisk()
    driver = driven(disk)
    acknowledge(driver, 0)
    acknowledge(driver, 1)
    left = disk.crash(CrashMode.DROP)
    content = left.contents()[JOURNAL]
    header = PROGRESS_JOURNAL.seal(content[:8] + b"\2\0" + content[10:20])
    file = left.create(JOURNAL)
    file.write([header, content[24:]], 0)
    file.fsync()
    with pytest.raises(UnsupportedVersion):
        EngineDriver(left, SETTINGS)
    assert left.contents()[JOURNAL] == header + content[24:]
