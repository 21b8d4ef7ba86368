"""Limits and kinds of work that meet: a message larger than what logs may hold, a segment that is dropped while it is being rescued."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.engine import EngineState
from quiver_actors.store.jobs.rescue import RescueJob
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, drop_segment, topic_settings

SMALL = {0: pa.record_batch({"blob": pa.array([bytes(5 * KIB)])})}
LARGE = {0: pa.record_batch({"blob": pa.array([bytes(2 * MIB)])})}
HOUR_NS = 3600 * SECOND_NS


def test_a_message_larger_than_all_logs_may_be_does_not_wait_for_the_open_segment_to_be_old() -> None:
    settings = topic_settings(
        segment_target_size_bytes=64 * KIB, segment_max_open_duration_ns=HOUR_NS, wal_max_size_bytes=MIB
    )
    driver = EngineDriver(SimDisk(), settings)
    driver.push(SMALL)
    driver.settle()
    size_bytes = len(driver.layout([LARGE])[0])
    assert not driver.engine.intake.can_stage(size_bytes), "at wal.max_size, which it alone passes"
    driver.settle()
    assert [info.bundle_count for info in driver.engine.segments()] == [1], "what stood in its way was sealed"
    assert driver.engine.intake.can_stage(size_bytes)
    driver.push(LARGE)
    driver.settle()
    driver.seal()
    assert [info.bundle_count for info in driver.engine.segments()] == [1, 1]


def test_a_segment_dropped_while_its_rescue_is_out_is_gone_once(tmp_path: Path) -> None:
    driver = EngineDriver(PosixDisk(str(tmp_path)))
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 8)
    driver.settle()
    driver.seal()
    path = tmp_path / f"default/core_0/segments/{0:016}.qseg"
    path.chmod(0o600)
    path.write_bytes(bytes(100))
    driver.engine.check_segment(0)
    while not isinstance(job := driver.engine.next_background(), RescueJob):
        assert job is not None
        job.run()
        driver.events += driver.engine.finish(job)
    drop_segment(driver.engine, 0, "expired")
    job.run()
    driver.events += driver.engine.finish(job)
    driver.run_for(SECOND_NS)
    assert driver.engine.state is EngineState.READY
    assert driver.engine.segments() == []
    assert [(gap.segment_seq, gap.bundle_count) for gap in driver.take_gaps("s")] == [(0, 8)]
    driver.push_numbered(8)
    driver.settle()
    driver.seal()
    assert driver.claim_numbers("s") == [8]


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
def test_only_what_will_be_synced_asks_for_a_look_when_its_interval_is_over(durability: str) -> None:
    settings = topic_settings(durability=durability, wal_flush_interval_ns=SECOND_NS // 40)
    driver = EngineDriver(SimDisk(), settings)
    driver.push(SMALL)
    driver.settle()
    driver.push(SMALL)
    driver.clock.advance(SECOND_NS)
    driver.settle()
    deadline_ns = driver.engine.next_deadline_ns()
    assert deadline_ns is not None
    assert deadline_ns > driver.clock.now_ns
