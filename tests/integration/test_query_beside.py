"""Scans beside everything that happens to a topic: pushes, seals, compactions, evictions, and workers that are killed.

Each bundle holds its number in all of its rows, so a scan that is no snapshot shows itself: it has a hole, half a bundle, or other rows
when it is repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.client import Client
from quiver_actors.query.dataset import TopicDataset
from tests.integration.client_node import ClientNode, client_node
from tests.unit.node.worker.harness import until

CONFIG = """
[segment]
target_size = "512KiB"
max_open_duration = "20ms"
[retention]
size_cap = "16MiB"
size_cap_policy = "drop_oldest"
min_free = "1MiB"
[topics.busy]
"""
ROWS_EACH = 2048


def bundle(number: int) -> pa.RecordBatch:
    return pa.record_batch(
        {"number": np.full(ROWS_EACH, number, np.int64), "row": np.arange(ROWS_EACH, dtype=np.int64)}
    )


@contextmanager
def pushing(node: ClientNode) -> Iterator[Callable[[], int]]:
    """Push numbered bundles until the end; gives how many were acknowledged."""
    acknowledged, ended = [0], threading.Event()

    def push() -> None:
        with node.connect() as client:
            while not ended.is_set():
                client.push_many([bundle(acknowledged[0] + n) for n in range(16)], topic="busy", timeout=60)
                acknowledged[0] += 16

    thread = threading.Thread(target=push)
    thread.start()
    try:
        yield lambda: acknowledged[0]
    finally:
        ended.set()
        thread.join()


def check_snapshot(dataset: TopicDataset, acknowledged: int) -> int:
    """Check that the rows are whole bundles in order, with everything that was acknowledged and not evicted; returns the first number."""
    found = dataset.to_table()
    assert found.column_names == ["number", "row"], (dataset, dataset.is_complete, acknowledged)
    numbers = found.column("number").to_numpy()
    assert len(numbers) % ROWS_EACH == 0
    assert (found.column("row").to_numpy().reshape(-1, ROWS_EACH) == np.arange(ROWS_EACH)).all()
    each = numbers.reshape(-1, ROWS_EACH)
    assert (each == each[:, :1]).all()
    # A push that a killed worker had not acknowledged may be stored twice: then it comes again as a whole.
    distinct = sorted({*each[:, 0].tolist()})
    assert distinct == list(range(distinct[0], distinct[-1] + 1))
    assert distinct[-1] >= acknowledged - 1 or not dataset.is_complete
    assert dataset.to_table() == found
    return int(distinct[0])


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(cores=1, config=CONFIG) as started:
        yield started


def test_every_scan_is_a_snapshot(node: ClientNode) -> None:
    with node.connect() as client, pushing(node) as acknowledged:
        # Files that a dataset holds count until it goes, and evictions take others instead: only a small one is kept.
        kept: list[tuple[TopicDataset, pa.Table]] = []
        firsts = []
        for round_number in range(12):
            until(partial(lambda so_many: acknowledged() >= so_many, (round_number + 1) * 64), "pushes")
            before = acknowledged()
            dataset = client.dataset("busy")
            if round_number == 0:
                kept.append((dataset, dataset.to_table()))
            firsts.append(check_snapshot(dataset, before))
            del dataset
            if round_number in (4, 8):
                node.kill_worker(0)
        assert firsts[-1] > firsts[0], "nothing was evicted: the test shows less than it should"
        for dataset, table in kept:
            assert dataset.to_table() == table
        _check_sql(client)


def _check_sql(client: Client) -> None:
    statement = (
        "SELECT count(*) AS n, count(DISTINCT number) AS bundles, max(number) - min(number) + 1 AS span FROM busy"
    )
    (row,) = client.sql(statement).read_all().to_pylist()
    assert row["bundles"] == row["span"]
    assert row["n"] % ROWS_EACH == 0
