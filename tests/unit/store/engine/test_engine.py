"""One engine on a real file system, driven job by job: what is acknowledged when, what seals, what is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.model import Durability
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import AlreadyRunning, ConfigMismatch, Draining, NotStored, ProtocolError, UnknownSubscriber
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine, EngineState
from quiver_actors.store.engine.events import Sealed
from quiver_actors.store.jobs.removal import DeleteJob
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings


def sealed(driver: EngineDriver) -> list[tuple[int, int]]:
    return [(event.segment_seq, event.bundle_count) for event in driver.events if isinstance(event, Sealed)]


# --- acknowledgement -----------------------------------------------------------------------------------------------------


def test_a_push_is_acknowledged_as_synced_only_after_its_commit(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.push_numbered(0, 3)
    assert driver.engine.group_commit.acknowledges == (0, Durability.SYNCED)
    driver.commit()
    assert driver.engine.group_commit.acknowledges == (3, Durability.SYNCED)


def test_a_commit_covers_only_what_was_written_when_it_was_made(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.push_numbered(0, 2)
    job = driver.engine.next_commit()
    assert job is not None
    driver.push_numbered(2, 2)
    assert driver.engine.next_commit() is None, "one commit at a time"
    job.run()
    driver.engine.finish(job)
    assert driver.engine.group_commit.acknowledges[0] == 2
    driver.commit()
    assert driver.engine.group_commit.acknowledges[0] == 4


def test_with_a_flush_interval_a_push_is_acknowledged_once_written_and_synced_by_the_timer(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(wal_flush_interval_ns=25 * MILLISECOND_NS))
    driver.push_numbered(0)
    driver.settle()  # gives the first log its name; a file under a temporary name would not survive a killed process
    driver.push_numbered(1)
    assert driver.engine.group_commit.acknowledges == (2, Durability.WRITTEN)
    driver.settle()
    assert driver.engine.group_commit.sequence_durable == 1, "not synced before the interval"
    deadline = driver.engine.next_deadline_ns()
    assert deadline is not None
    assert deadline <= driver.clock.now_ns + 25 * MILLISECOND_NS
    driver.clock.advance(25 * MILLISECOND_NS)
    driver.settle()
    assert driver.engine.group_commit.sequence_durable == 2, "an idle engine syncs by its timer"


def test_segment_only_acknowledges_in_the_open_segment_and_syncs_at_the_seal(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(durability="segment_only"))
    driver.push_numbered(0)
    driver.settle()
    driver.push_numbered(1)
    assert driver.engine.group_commit.acknowledges == (2, Durability.OPEN_SEGMENT)
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert driver.engine.group_commit.sequence_durable < 2
    driver.seal()
    assert driver.engine.group_commit.sequence_durable == 2


# --- sealing ---------------------------------------------------------------------------------------------------------------


def test_sealing_by_size(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    for first in range(0, 600, 20):
        driver.push_numbered(first, 20)
        driver.settle()
    driver.engine.registrations.register("s", "earliest")
    assert len(sealed(driver)) > 2
    driver.seal()
    assert driver.claim_numbers("s") == list(range(600))


def test_sealing_by_age_also_when_nothing_arrives(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(segment_max_open_duration_ns=2 * SECOND_NS))
    driver.push_numbered(0)
    driver.settle()
    assert sealed(driver) == []
    deadline = driver.engine.next_deadline_ns()
    assert deadline is not None
    driver.clock.advance(deadline - driver.clock.now_ns)
    driver.settle()
    assert sealed(driver) == [(0, 1)]


@pytest.mark.parametrize(
    ("settings", "sealed_after_seconds"),
    [
        ({}, 600),
        ({"durability": "segment_only"}, 5),
        ({"durability": "segment_only", "segment_max_unsynced_duration_ns": 20 * SECOND_NS}, 20),
        ({"durability": "segment_only", "segment_max_open_duration_ns": 3 * SECOND_NS}, 3),
        ({"segment_max_unsynced_duration_ns": SECOND_NS}, 600),
        ({"retention": RetentionSettings(max_age_ns=100 * SECOND_NS)}, 10),
        ({"retention": RetentionSettings(max_age_ns=7 * 24 * 3600 * SECOND_NS)}, 600),
        ({"durability": "segment_only", "retention": RetentionSettings(max_age_ns=20 * SECOND_NS)}, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("is_changed", [False, True], ids=["opened so", "set live"])
def test_the_age_at_which_a_topic_seals(
    disk: Disk, settings: dict[str, Any], sealed_after_seconds: int, is_changed: bool
) -> None:
    driver = EngineDriver(disk, topic_settings() if is_changed else topic_settings(**settings))
    driver.push_numbered(0)
    driver.settle()
    if is_changed:
        driver.engine.change_settings(topic_settings(**settings))
    driver.clock.advance(sealed_after_seconds * SECOND_NS - MILLISECOND_NS)
    driver.settle()
    assert sealed(driver) == []
    driver.clock.advance(MILLISECOND_NS)
    driver.settle()
    assert sealed(driver) == [(0, 1)]


def test_sealing_by_bundle_count(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(segment_max_bundle_count=4))
    for number in range(9):
        driver.push_numbered(number)
        driver.settle()
    assert sealed(driver) == [(0, 4), (1, 4)]


def test_sealing_by_stream_count(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(segment_max_stream_count=3))
    for number in range(5):
        driver.push({0: pa.record_batch({f"column_{number}": pa.array([number])})})
        driver.settle()
    assert sealed(driver) == [(0, 3)]


def test_draining_seals_and_leaves_nothing_to_recover(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.push_numbered(0, 5)
    driver.drain_and_close()
    driver.reopen()
    assert driver.engine.recovery_notes == []
    assert [info.bundle_count for info in driver.engine.segments()] == [5]
    driver.push_numbered(5)
    driver.seal()
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1]
    assert driver.read(1).sequence(0) == 5, "exact numbers after a clean stop"


def test_a_draining_engine_refuses_pushes(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.drain()
    assert not driver.engine.intake.can_stage(100)
    assert isinstance(driver.engine.intake.refusal(), Draining)


def test_a_bundle_larger_than_a_segment_gets_a_log_of_its_size(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    large = pa.record_batch({"x": pa.array(range(100_000), pa.int64())})
    driver.push_numbered(0)
    driver.push({0: large})
    driver.settle()
    driver.seal()
    assert driver.read(1).bundle(0)[0].equals(large)


# --- what is stored ----------------------------------------------------------------------------------------------------------


def test_bundles_keep_the_ids_and_order_of_their_acknowledgement_across_a_kill(disk: Disk) -> None:
    driver = EngineDriver(disk)
    (run,) = driver.push_numbered(0, 3)
    driver.commit()
    driver.engine._lock.release()
    driver.reopen()
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    reader = driver.read(run.segment_seq)
    assert [reader.bundle(run.bundle_index + i)[0].column(0)[0].as_py() for i in range(3)] == [0, 1, 2]
    assert [reader.sequence(i) for i in range(3)] == [run.sequence, run.sequence + 1, run.sequence + 2]


def test_dictionaries_of_one_push_that_grow_are_read_back_as_pushed(disk: Disk) -> None:
    words = [f"w{number}" for number in range(200)]
    batches = [
        pa.record_batch({"w": pa.DictionaryArray.from_arrays(pa.array([n], pa.uint16()), pa.array(words[: n + 1]))})
        for n in range(100)
    ]
    driver = EngineDriver(disk)
    driver.push(*({3: batch} for batch in batches))
    driver.settle()
    driver.seal()
    reader = driver.read(0)
    assert [reader.bundle(n)[3].column(0).to_pylist() for n in range(100)] == [[f"w{n}"] for n in range(100)]
    assert reader.bundle(50)[3].schema == batches[50].schema
    assert len(reader.streams) == 1, "each extends the one before as a prefix"


def test_a_push_whose_bytes_changed_after_the_crc_is_refused_and_stores_nothing(disk: Disk) -> None:
    driver = EngineDriver(disk)
    memory, push, schemas = driver.layout([{0: numbered_batch(0)}])
    memory[200] ^= 1
    driver.engine.intake.can_stage(len(memory))
    driver.run_background()
    with pytest.raises(ProtocolError, match="CRC"):
        driver.engine.intake.stage(memory, push, schemas)
    driver.push_numbered(1)
    driver.settle()
    driver.seal()
    assert driver.read(0).bundle_count == 1


# --- subscribers and deletion ----------------------------------------------------------------------------------------------


def test_latest_starts_behind_what_is_in_the_open_segment(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.push_numbered(0, 3)
    driver.engine.registrations.register("new", "latest")
    driver.engine.registrations.register("old", "earliest")
    driver.push_numbered(3, 2)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("new") == [3, 4]
    assert driver.claim_numbers("old") == [0, 1, 2, 3, 4]


def test_latest_in_an_open_segment_holds_across_a_kill(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.push_numbered(0, 3)
    driver.engine.registrations.register("new", "latest")
    driver.push_numbered(3, 2)
    driver.settle()
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("new") == [3, 4]


def test_a_segment_is_deleted_only_when_every_subscriber_has_durably_resolved_it(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk)
    for subscriber in ("a", "b"):
        driver.engine.registrations.register(subscriber, "latest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    segment = tmp_path / "default/core_0/segments/0000000000000000.qseg"
    for subscriber in ("a", "b"):
        assert segment.exists()
        for segment_seq, indexes, *_ in driver.claim(subscriber, "x", 10):
            driver.resolve(subscriber, "x", segment_seq, "ack", indexes, 0)
        driver.run_background()
        assert segment.exists(), "not before the progress is durable"
        driver.flush_progress()
    assert not segment.exists()


def test_a_segment_whose_file_is_gone_before_its_delete_is_finished_is_not_stored(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 10)
    driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.engine.progress.flush()
    while not isinstance(job := driver.engine.next_background(), DeleteJob):
        assert job is not None
        job.run()
        driver.engine.finish(job)
    job.run()
    with pytest.raises(NotStored, match="is being deleted"):
        driver.engine.open_segment(segment_seq)
    driver.engine.finish(job)
    with pytest.raises(NotStored):
        driver.engine.open_segment(segment_seq)


def test_resolved_bundles_do_not_come_back_after_a_kill_once_progress_is_durable(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 10)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 10)
    driver.resolve("s", "x", segment_seq, "ack", indexes[1::2], 0)
    driver.flush_progress()
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()
    assert driver.claim_numbers("s") == [0, 2, 4, 6, 8]


def test_unregister_deletes_the_progress_file_and_frees_segments(disk: Disk, tmp_path: Path) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("keeps", "latest")
    driver.engine.registrations.register("goes", "latest")
    driver.push_numbered(0)
    driver.settle()
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("keeps", "x", 10)
    driver.resolve("keeps", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    assert len(driver.engine.segments()) == 1
    ticket, owed = driver.engine.registrations.unregister("goes")
    assert owed == 1
    driver.settle()
    assert driver.engine.progress.durable >= ticket
    assert not (tmp_path / "default/core_0/quiver.sub.goes").exists()
    assert driver.engine.segments() == []
    with pytest.raises(UnknownSubscriber):
        driver.claim("goes", "x", 1)


# --- the door ---------------------------------------------------------------------------------------------------------------


def test_a_directory_opens_once(disk: Disk) -> None:
    driver = EngineDriver(disk)
    with pytest.raises(AlreadyRunning):
        Engine.open(disk, driver.directory, driver.settings, 0, driver.clock)


def test_another_slot_table_is_refused_while_the_log_holds_entries(disk: Disk) -> None:
    driver = EngineDriver(disk, topic_settings(slots={"a": 0}))
    driver.push_numbered(0)
    driver.commit()
    driver.engine._lock.release()
    driver.settings = topic_settings(slots={"b": 0})
    with pytest.raises(ConfigMismatch, match="slot table"):
        driver.reopen()
    driver.settings = topic_settings(slots={"a": 0})
    driver.reopen()
    assert [info.bundle_count for info in driver.engine.segments()] == [1]


def test_figures_count_what_is_there(disk: Disk) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    driver.push_numbered(0, 4)
    driver.settle()
    figures = driver.engine.figures()
    assert figures.state == EngineState.READY
    assert (figures.bundles_in, figures.rows_in, figures.open_segment_bundles) == (4, 20, 4)
    assert driver.engine.owed.subscriber_figures()["s"].lag_bundles == 4
    driver.seal()
    figures = driver.engine.figures()
    assert (figures.segments, figures.segment_bundles, figures.wal_bytes) == (1, 4, 0)
    assert driver.engine.owed.subscriber_figures()["s"].lag_bundles == 4
