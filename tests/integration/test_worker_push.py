"""Pushing to a worker over its socket: acknowledgements, modes, rotation, large bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.base.metrics.figures import EngineFigure, RowKind, WorkerFigure
from quiver_actors.base.model import Durability
from quiver_actors.base.protocol import messages as m
from tests.unit.node.worker.faulty_disk import FaultyDisk
from tests.unit.node.worker.harness import WorkerThread, running, settings, table, topic, until


def faulty_disk(root: Path) -> FaultyDisk:
    (root / "data").mkdir()
    return FaultyDisk(str(root / "data"))


def engine_figure(worker: WorkerThread, figure: EngineFigure, topic_name: str = "default") -> int:
    rows = worker.region().rows
    return next(row.values[figure] for row in rows if row.kind == RowKind.ENGINE and row.label == topic_name)


def worker_figure(worker: WorkerThread, figure: WorkerFigure) -> int:
    return next(row.values[figure] for row in worker.region().rows if row.kind == RowKind.WORKER)


# --- acknowledgements ----------------------------------------------------------------------------------------------------


def test_many_pushes_in_flight_are_acknowledged_in_push_order(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        pushes = [client.push(table(number), table(number)) for number in range(300)]
        runs: list[m.AckRun] = []
        while len(runs) < len(pushes):
            runs += client.expect(m.Acked).runs
    assert [run.tag for run in runs] == [push.tag for push in pushes]
    assert [run.sequence for run in runs] == list(range(0, 600, 2))


@pytest.mark.parametrize(
    ("changes", "durability"),
    [
        ({"wal__flush_interval_ns": 25_000_000}, Durability.WRITTEN),
        ({"durability": "segment_only"}, Durability.OPEN_SEGMENT),
    ],
)
def test_receipt_names_what_the_mode_reaches(tmp_path: Path, changes: dict[str, Any], durability: int) -> None:
    with running(tmp_path, settings(topic(**changes))) as worker:
        client = worker.producer()
        for number in range(20):
            assert client.acked(client.push(table(number)))[1] == durability
        client.flush()
        client.register("s", credit=100)
        assert [values for _, _, values in client.values(20)] == [[number] for number in range(20)]


def test_written_mode_is_synced_by_the_timer_without_further_pushes(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(wal__flush_interval_ns=25_000_000))) as worker:
        client = worker.producer()
        client.push_and_wait(table(1))
        until(lambda: engine_figure(worker, EngineFigure.SEQUENCE_DURABLE) == 1, "the timer's sync")


def test_rotation_while_pushing_keeps_order_and_loses_nothing(tmp_path: Path) -> None:
    node = settings(topic(segment__target_size_bytes=64 << 10))
    with running(tmp_path, node) as worker:
        client = worker.producer()
        runs = []
        for first in range(0, 600, 100):
            # A hundred at once, which end a log: more may fill the queue of those to be sealed, and would be refused then.
            pushes = [client.push(table(*range(number, number + 100))) for number in range(first, first + 100)]
            runs += [client.acked(push)[0] for push in pushes]
            client.flush()
        client.register("s", credit=10_000)
        stored = client.values(600)
    assert [run.sequence for run in runs] == list(range(600))
    assert len({run.segment_seq for run in runs}) >= 12, "each hundred ends a log"
    ids = [(deliver.segment_seq, index) for deliver, index, _ in stored]
    assert ids == [(run.segment_seq, run.bundle_index) for run in runs]
    assert [values[0] for _, _, values in stored] == list(range(600))


def test_idle_segment_is_sealed_by_age(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(segment__max_open_duration_ns=30_000_000))) as worker:
        client = worker.producer()
        client.register("s", start="latest", credit=10)
        client.push_and_wait(table(7))
        assert [values for _, _, values in client.values(1)] == [[7]]
        segments = worker.data_dir / "default/core_0/segments"
        until(lambda: [path.name for path in segments.glob("*.qseg")] == ["0000000000000000.qseg"], "the seal")


# --- bundles ---------------------------------------------------------------------------------------------------------------


def test_bundle_larger_than_the_turn_buffer_and_the_segment_target(tmp_path: Path) -> None:
    node = settings(topic(segment__target_size_bytes=1 << 20), arena_bytes=1 << 20)
    big = pa.record_batch({"x": pa.array(range(2_000_000), pa.int64())})
    with running(tmp_path, node) as worker:
        client = worker.producer()
        client.push_and_wait(table(1))
        client.attach_arena(20 << 20)
        run = client.push_and_wait(big)
        client.attach_arena(1 << 20)
        client.push_and_wait(table(2))
        client.flush()
        client.register("s", credit=10)
        stored = {(deliver.segment_seq, index): values for deliver, index, values in client.values(3)}
    assert stored[run.segment_seq, run.bundle_index] == list(range(2_000_000))


def test_topics_are_separate_logs(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic("clicks"))) as worker:
        client = worker.producer()
        client.declare(1, table().schema, topic="clicks")
        client.push_and_wait(table(1))
        assert client.push_and_wait(table(2), topic="clicks", handle=1).sequence == 0
        client.flush("clicks")
        client.register("s", topic="clicks", credit=10)
        assert [values for _, _, values in client.values(1)] == [[2]]
