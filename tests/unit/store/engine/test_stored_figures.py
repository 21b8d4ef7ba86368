"""What an engine says it stores: exact, whatever brought the bundles, and after a restart; and for what limit it takes no more."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import GIB, KIB, MIB, SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.engine_figures import EngineFigures
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from quiver_actors.store.retention.limits import Limit, NoRoom
from quiver_actors.store.segment.reader import SegmentReader
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, drop_segment, numbered_batch, topic_settings
from tests.support.stage_driver import OWNER, StageDriver
from tests.unit.store.engine.damaged_store import closed_store, entry_offsets, flip, overwrite, segment


def stored(figures: EngineFigures) -> tuple[int, int]:
    return figures.stored_bundles, figures.stored_rows


def came_in(figures: EngineFigures) -> tuple[int, int]:
    return figures.bundles_in, figures.rows_in


def test_open_sealed_and_published_bundles_are_stored_also_after_a_restart() -> None:
    """A topic that was written by transactions alone showed 0 bundles beside 341 MiB, and every topic did after a restart."""
    driver = StageDriver(SimDisk(capacity_bytes=GIB))
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    driver.publish(driver.prepared(10, 11))
    driver.settle()
    driver.push_numbered(3, 2)
    driver.settle()
    assert stored(driver.engine.figures()) == came_in(driver.engine.figures()) == (7, 35)
    assert driver.engine.figures().bytes_in > 0
    driver.restart()
    assert stored(driver.engine.figures()) == (7, 35)
    assert came_in(driver.engine.figures()) == (0, 0), "that counts from the worker's start"


def test_bundles_that_everybody_has_are_stored_no_longer() -> None:
    driver = EngineDriver(SimDisk(capacity_bytes=GIB), topic_settings())
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 4)
    driver.settle()
    driver.seal()
    driver.push_numbered(4)
    driver.settle()
    for segment_seq, indexes, *_ in driver.claim("s", "x", 4):
        assert driver.resolve("s", "x", segment_seq, "ack", indexes, 0) == []
    driver.flush_progress()
    driver.settle()
    assert stored(driver.engine.figures()) == (1, 5)


@pytest.mark.parametrize(("min_free_bytes", "limit"), [(4 * MIB, Limit.MIN_FREE), (0, Limit.DISK)])
def test_the_limit_of_a_full_disk_is_named_and_forgotten_with_it(min_free_bytes: int, limit: Limit) -> None:
    disk = SimDisk(capacity_bytes=16 * MIB)
    retention = RetentionSettings(min_free_bytes=min_free_bytes)
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 * KIB, retention=retention))
    left_bytes = min_free_bytes // 2
    file = disk.create("filler")
    file.allocate(disk.free_bytes(".") - left_bytes)
    file.close()
    memory, _, _ = driver.layout([{0: numbered_batch(0)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.run_for(SECOND_NS)
    figures = driver.engine.figures()
    assert (figures.state, figures.limit, figures.limit_bytes) == (EngineState.FULL, limit, min_free_bytes)
    assert figures.limit_measured_bytes <= left_bytes
    assert str(NoRoom(limit, min_free_bytes, figures.limit_measured_bytes)) in str(driver.engine.intake.refusal())
    disk.unlink("filler")
    driver.run_for(2 * SECOND_NS)
    figures = driver.engine.figures()
    assert (figures.state, figures.limit) == (EngineState.READY, Limit.NONE)


def test_an_engine_at_its_cap_is_throttled_from_the_first_refused_push_until_there_is_room() -> None:
    """Status said READY while every push was refused."""
    driver = EngineDriver(SimDisk(capacity_bytes=GIB), topic_settings())
    met, allowed = NoRoom(Limit.SIZE_CAP, 48 * MIB, 47 * MIB), [False]
    driver.engine.storage.share_room(lambda _: allowed[0], lambda: met)
    memory, _, _ = driver.layout([{0: numbered_batch(0)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    assert driver.engine.figures().state == EngineState.READY, "a push that waits a moment is no refusal"
    assert "the node uses 47.0 MiB of retention.size_cap = 48.0 MiB" in str(driver.engine.intake.refusal())
    driver.engine.intake.note_refused()
    assert driver.engine.figures().state == EngineState.THROTTLED
    allowed[0] = True
    driver.settle()
    assert (driver.engine.figures().state, driver.engine.figures().limit) == (EngineState.READY, Limit.NONE)


def test_a_stage_without_room_names_the_limit() -> None:
    driver = StageDriver(SimDisk(capacity_bytes=GIB))
    met = NoRoom(Limit.CAP_SHARE, 10 * MIB, 9 * MIB)
    driver.engine.storage.share_room(lambda _: False, lambda: met)
    number = driver.begin()
    stage = driver.engine.stages.get(number, OWNER)
    assert not driver.engine.stages.can_stage(stage, 50 * KIB)
    driver.settle()
    assert driver.engine.figures().limit == Limit.CAP_SHARE
    assert driver.engine.stages.table.limit_met == met


def damaged_in_place(tmp_path: Path) -> Path:
    """A closed store of ten bundles in two segments, one of them damaged."""
    disk = PosixDisk(str(tmp_path))
    closed_store(disk)
    disk.close()
    path = tmp_path / segment()
    flip(path, entry_offsets(path)[3] + 200)
    return path


def test_what_a_rescue_has_lost_is_not_stored(tmp_path: Path) -> None:
    """The rebuilt segment keeps the row of a lost bundle, so that the others keep their ids; it counted as stored."""
    damaged_in_place(tmp_path)
    disk = PosixDisk(str(tmp_path))
    driver = EngineDriver(disk)
    driver.settle()
    assert stored(driver.engine.figures()) == (9, 45)
    driver.drain_and_close()
    driver.reopen()
    driver.settle()
    assert stored(driver.engine.figures()) == (9, 45), "the next start finds it in the manifest"
    drop_segment(driver.engine, 0, "evicted")
    driver.settle()
    assert stored(driver.engine.figures()) == (2, 10)
    driver.engine.close()
    disk.close()


def test_what_a_rescue_has_lost_of_a_compacted_segment_is_not_stored(tmp_path: Path) -> None:
    disk = PosixDisk(str(tmp_path))
    driver = EngineDriver(disk)
    driver.push_numbered(0, 400)
    driver.settle()
    driver.seal()
    driver.run_for(COMPACTION_AGE_NS + 10 * SECOND_NS)
    assert driver.engine.figures().compactions == 1
    assert stored(driver.engine.figures()) == (400, 2000)
    driver.drain_and_close()
    path = tmp_path / segment()
    reader = SegmentReader(path.read_bytes())
    stream = reader.streams[0]
    overwrite(path, stream.byte_offset + stream.byte_length // 2, bytes(range(1, 41)))
    driver.reopen()
    driver.settle()
    reader = driver.read(0)
    lost = len(reader.manifest.lost())
    assert lost > 0
    assert stored(driver.engine.figures()) == (400 - lost, 5 * (400 - lost))
    driver.engine.close()
    disk.close()
