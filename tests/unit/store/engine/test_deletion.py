"""A segment goes only once what says that nobody needs it is durable, and looking for such segments costs next to nothing."""

from __future__ import annotations

import errno
from random import Random

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.engine import deletions
from quiver_actors.store.jobs.records import ProgressJob
from quiver_actors.store.jobs.removal import DeleteJob
from quiver_actors.store.subscriber.grants import Grant
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings
from tests.support.instructions import instructions_of


def stored(driver: EngineDriver) -> list[int]:
    return [info.segment_seq for info in driver.engine.segments()]


def with_segments(disk: FaultyDisk, count: int, *subscribers: str) -> EngineDriver:
    driver = EngineDriver(disk, topic_settings(segment_compaction="off"))
    for subscriber in subscribers:
        driver.engine.registrations.register(subscriber, "earliest")
    driver.settle()
    for number in range(count):
        driver.push_numbered(number)
        driver.seal()
    return driver


def fail_writes_of_progress(disk: FaultyDisk) -> None:
    """There is no room for progress, not even where the ballast was; deletes would go on."""
    for nth in range(1, 50):
        disk.fail("write", nth, errno.ENOSPC, path_part="quiver.sub.")


def what_a_crash_leaves(disk: FaultyDisk) -> EngineDriver:
    inner = disk.inner
    assert isinstance(inner, SimDisk)
    driver = EngineDriver(inner.crash(CrashMode.DROP))
    driver.settle()
    return driver


def test_many_go_in_parts_and_what_is_more_important_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletions, "DELETE_FILES_MAX", 2)
    driver = with_segments(FaultyDisk(SimDisk()), 7, "s")
    driver.engine.registrations.seek("s", "latest")
    done: list[tuple[str, list[int]]] = []
    while (job := driver.engine.next_background()) is not None:
        segment_seqs = list(job.segment_seqs) if isinstance(job, DeleteJob) else []
        done.append((type(job).__name__, segment_seqs))
        if segment_seqs == [0, 1]:
            # What is to be checked is left alone meanwhile; new progress does not wait for the rest.
            driver.engine.check_segment(4)
            driver.engine.registrations.register("late", "latest")
        job.run()
        driver.engine.finish(job)
    first = done.index(("DeleteJob", [0, 1]))
    assert done[first + 1 :][:3] == [("FilesJob", []), ("DeleteJob", [2, 3]), ("DeleteJob", [5, 6])]
    assert [job for job in done[first + 4 :] if job[0] in ("VerifyJob", "DeleteJob")] == [
        ("VerifyJob", []),
        ("DeleteJob", [4]),
    ]
    assert stored(driver) == []


def test_a_job_deletes_so_many_bytes_and_at_least_one_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = with_segments(FaultyDisk(SimDisk()), 5, "s")
    size_bytes = max(info.size_bytes for info in driver.engine.segments())
    monkeypatch.setattr(deletions, "DELETE_BYTES_MAX", 3 * size_bytes)
    driver.engine.registrations.seek("s", "latest")
    driver.engine.progress.flush()
    found = []
    while (job := driver.engine.next_background()) is not None:
        if isinstance(job, DeleteJob):
            found.append(list(job.segment_seqs))
            monkeypatch.setattr(deletions, "DELETE_BYTES_MAX", 1)
        job.run()
        driver.engine.finish(job)
    assert found == [[0, 1, 2], [3], [4]]


@pytest.mark.parametrize("start", ["latest", "bundle:0/3/0"])
def test_a_subscriber_that_begins_behind_a_segment_lets_it_go_only_once_it_is_durable(start: str) -> None:
    disk = FaultyDisk(SimDisk())
    driver = with_segments(disk, 3)
    fail_writes_of_progress(disk)
    driver.engine.registrations.register("late", start)
    driver.settle()
    assert stored(driver) == [0, 1, 2]
    left = what_a_crash_leaves(disk)
    assert (left.engine.registrations.names(), stored(left)) == ([], [0, 1, 2]), (
        "nothing was lost for a subscriber that never was"
    )
    disk.heal()
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert stored(driver) == []


def test_a_seek_lets_segments_go_only_once_it_is_durable() -> None:
    disk = FaultyDisk(SimDisk())
    driver = with_segments(disk, 3, "s")
    fail_writes_of_progress(disk)
    driver.engine.registrations.seek("s", "latest")
    driver.settle()
    left = what_a_crash_leaves(disk)
    assert stored(left) == [0, 1, 2]
    assert left.claim_numbers("s") == []
    assert [(notice.reason, notice.segment_seq, notice.bundle_count) for notice in left.told] == [
        ("dropped", segment_seq, 1) for segment_seq in range(3)
    ]
    disk.heal()
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert stored(driver) == []


def test_a_subscriber_that_goes_lets_segments_go_only_once_it_is_gone_for_good() -> None:
    disk = FaultyDisk(SimDisk())
    driver = with_segments(disk, 4, "stays", "goes")
    granted = driver.claim("stays", "owner", 4)
    for grant in granted[:3]:
        driver.resolve("stays", "owner", grant.segment_seq, "ack", [0])
    driver.flush_progress()
    driver.resolve("stays", "owner", 3, "ack", [0])
    fail_writes_of_progress(disk)
    driver.engine.registrations.unregister("goes")
    driver.settle()
    left = what_a_crash_leaves(disk)
    assert sorted(left.engine.registrations.names()) == ["goes", "stays"]
    assert left.claim_numbers("goes") == [0, 1, 2, 3]
    assert left.told == []
    disk.heal()
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert stored(driver) == []


@pytest.mark.parametrize("stops_cleanly", [True, False])
def test_nobody_is_told_of_a_segment_that_was_deleted_when_not_all_progress_was_written_since(
    stops_cleanly: bool,
) -> None:
    """One subscriber's file does not name it any more, the other's still does: it was taken for one that somebody had removed."""
    disk = FaultyDisk(SimDisk())
    driver = with_segments(disk, 3, "ann", "ben")
    for subscriber in ("ann", "ben"):
        driver.claim(subscriber, "owner", 3)
        driver.resolve(subscriber, "owner", 1, "ack", [0])
    driver.flush_progress()
    driver.settle()
    driver.resolve("ann", "owner", 2, "ack", [0])
    driver.flush_progress()
    assert stored(driver) == [0, 2]
    if stops_cleanly:
        driver.drain_and_close()
    left = what_a_crash_leaves(disk)
    assert (left.claim_numbers("ann"), left.claim_numbers("ben")) == ([0], [0, 2])
    assert left.told == []
    assert left.engine.storage.losses.by_reason["damaged"].segments == 0
    left.drain_and_close()


def test_a_segment_that_somebody_else_removed_is_told_where_progress_shows_it() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(segment_compaction="off"))
    for subscriber in ("ann", "ben", "cat"):
        driver.engine.registrations.register(subscriber, "earliest")
    for first, count in ((0, 1), (1, 3), (4, 1)):
        driver.push_numbered(first, count)
        driver.seal()
    for subscriber, done in (("ann", [1]), ("cat", [0, 1, 2])):
        driver.claim(subscriber, "owner", 4)
        driver.resolve(subscriber, "owner", 1, "ack", done)
    driver.drain_and_close()
    disk.unlink(f"{driver.directory}/segments/{1:016}.qseg")
    left = EngineDriver(disk)
    left.settle()
    lost = {}
    for subscriber in ("ann", "ben", "cat"):
        assert left.claim_numbers(subscriber) == [0, 4]
        lost[subscriber] = [(gap.bundle_index_first, gap.bundle_count) for gap in left.told]
        left.told.clear()
    assert lost == {"ann": [(0, 1), (2, 1)], "ben": [(0, 3)], "cat": []}, "to ben the numbers around it prove it"


def test_asking_for_background_work_costs_the_same_whatever_is_stored() -> None:
    costs = []
    for count in (4, 60):
        driver = with_segments(FaultyDisk(SimDisk()), count, "a", "b")
        driver.flush_progress()
        costs.append(instructions_of(driver.engine.next_background))
    assert costs[0] == costs[1]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_nothing_that_nobody_needs_stays(seed: int) -> None:
    """A flush searches only some segments for unneeded ones; it must find everything that nobody needs."""
    random, headroom = Random(seed), RetentionSettings(steady_state_headroom_bytes=seed % 3 * 16 * KIB)
    driver = EngineDriver(SimDisk(), topic_settings(segment_compaction="off", retention=headroom))
    engine, names, held = driver.engine, ["a", "b", "c"], list[tuple[str, Grant]]()
    engine.registrations.register("a", "earliest")
    for number in range(120):
        name = random.choice(names)
        step = random.choice(["push", "push", "claim", "ack", "ack", "register", "leave", "seek", "drop", "reopen"])
        present = name in engine.registrations.names()
        if step == "push":
            driver.push_numbered(number)
            driver.seal()
        elif step == "claim" and present:
            held += [(name, grant) for grant in driver.claim(name, "owner", 3)]
        elif step == "ack" and held:
            who, grant = held.pop(random.randrange(len(held)))
            if who in engine.registrations.names():
                engine.claims.resolve(who, "owner", grant.segment_seq, grant.token, "ack", grant.indexes, 0)
        elif step == "register":
            engine.registrations.register(name, random.choice(["latest", "earliest"]))
        elif step == "leave" and present and random.random() < 0.3:
            engine.registrations.unregister(name)
        elif step == "seek" and present:
            engine.registrations.seek(name, random.choice(["latest", "earliest"]))
        elif step == "drop" and (segments := stored(driver)) and random.random() < 0.3:
            drop_segment(engine, random.choice(segments), "dropped")
        elif step == "reopen" and random.random() < 0.2:
            driver.drain_and_close()
            engine, held = driver.reopen(), []
        driver.settle()
        driver.run_for(SECOND_NS)
        processed = engine._parts.sealed_segments.deletions.processed()
        assert set(processed) == engine.retention.spool(processed), f"after {step} of {name}"


def test_a_flush_of_an_unregistered_subscriber_does_not_pass_for_the_notices_of_its_successor() -> None:
    """Regression: the successor's notices were never written, so after the next start nobody was told."""
    driver = EngineDriver(SimDisk())
    driver.engine.registrations.register("s", "earliest")
    for first in (0, 1):
        driver.push_numbered(first)
        driver.settle()
        driver.seal()
    drop_segment(driver.engine, 0, "dropped")
    while not isinstance(job := driver.engine.next_background(), ProgressJob):
        assert job is not None
        job.run()
        driver.engine.finish(job)
    driver.engine.registrations.unregister("s")
    driver.engine.registrations.register("s", "earliest")
    job.run()
    driver.engine.finish(job)
    driver.settle()
    drop_segment(driver.engine, 1, "dropped")
    driver.settle()
    assert driver.engine.segments() == []
    driver.engine.close()
    driver.reopen()
    assert [(gap.segment_seq, gap.bundle_count) for gap in driver.take_gaps("s")] == [(1, 1)]


def test_a_deletion_that_waits_for_room_goes_on_when_the_last_subscriber_has_left() -> None:
    """The deletion was decided while everybody was done with the segments. Who comes before the files go is not owed them."""
    disk = FaultyDisk(SimDisk())
    driver = with_segments(disk, 2, "s")
    driver.engine.registrations.seek("s", "latest")
    while not isinstance(job := driver.engine.next_background(), DeleteJob):
        assert job is not None
        job.run()
        driver.engine.finish(job)
    job.error = DiskError("unlink", "segments", errno.ENOSPC, "no room for the cursor")
    driver.engine.finish(job)
    driver.engine.registrations.unregister("s")
    driver.engine.registrations.register("late", "earliest")
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert stored(driver) == []
    assert driver.engine.claims.claim("late", object(), 10) == []
