"""A log, or a part of a transaction, takes no push after which its segment could list more than a reader accepts."""

from __future__ import annotations

import pyarrow as pa

from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.segment.layout import STREAMS_MAX
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.admission import PUSH_SLOTS_MAX
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.stage_driver import StageDriver

SCHEMA = pa.schema({"n": pa.int8()}).serialize().to_pybytes()
SLOTS = 64
BEGUN = STREAMS_MAX - PUSH_SLOTS_MAX


def begin_streams(builder: SegmentBuilder) -> None:
    """Begin as many streams as that many small bundles of ever other schemas do."""
    for first in range(0, BEGUN, SLOTS):
        schemas = [StreamSchema(slot, (first + slot).to_bytes(32, "little"), SCHEMA) for slot in range(SLOTS)]
        builder.append(first, 0, -1, 64, [(schema, 1, 192, 64, 64, ()) for schema in schemas])
    assert builder.stream_count > BEGUN


def test_a_log_that_has_many_streams_is_followed_by_another_one() -> None:
    driver = EngineDriver(SimDisk())
    driver.push_numbered(0)
    log = driver.engine._parts.logs.active
    assert log is not None
    assert log.holds_another_push
    begin_streams(log.builder)
    (run,) = driver.push_numbered(1)
    assert (run.segment_seq, run.bundle_index) == (log.segment_seq + 1, 0)


def test_a_part_that_has_many_streams_is_followed_by_another_one() -> None:
    driver = StageDriver(SimDisk())
    number = driver.begin()
    driver.push_staged(number, 0)
    stage = driver.engine.stages.table.by_number[number]
    begin_streams(stage.parts[0].builder)
    driver.push_staged(number, 1)
    assert [part.builder.bundle_count for part in stage.parts[1:]] == [1]
    assert numbered_batch(1).num_rows == stage.parts[1].builder.row_count
