"""Scans beside everything that happens to a topic: pushes, seals, compactions, evictions, and workers that are killed.

Each bundle holds its number in all of its rows, so a scan that is no snapshot shows itself: it has a hole, half a bundle, or other rows
when it is repeated.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client
from quiver_actors.client.exchange import Flow
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.requests import Requests
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.snapshots import Taken, taking_snapshot
from quiver_actors.client.statistics import SegmentStatistics
from quiver_actors.errors import NotStored, StorageUnavailable
from quiver_actors.query.dataset import TopicDataset
from quiver_actors.query.span import Span
from tests.integration.client_node import ClientNode, node_fixture
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


node = node_fixture(cores=1, config=CONFIG)


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


class Overtaken:
    """Requests of a client beside which something happens after each list of segments, before any of them is mapped."""

    def __init__(self, requests: Requests, meanwhile: Callable[[], object]) -> None:
        self._requests = requests
        self._meanwhile = meanwhile

    def statistics(self, topic: str) -> Flow[dict[int, dict[int, SegmentStatistics]]]:
        found = yield from self._requests.statistics(topic)
        self._meanwhile()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._requests, name)


@contextmanager
def short_lived(
    node: ClientNode, topic: str
) -> Iterator[tuple[Client, Client, Callable[[], None], Callable[[], None]]]:
    """Two clients, and what stores a segment of a topic and deletes all that there are."""
    with node.connect() as client, node.connect() as other:
        other.create_topic(topic)
        with other.subscribe("s", topic=topic):
            pass

        def store() -> None:
            other.push(bundle(1), topic=topic)
            other.flush(topic)

        def delete() -> None:
            for core, found in other.readable(topic).items():
                for info in found.infos:
                    last = BundleId(topic, core, info.segment_seq, info.bundle_count - 1)
                    other.ack_through(last, subscriber="s")
            until(lambda: not any(found.infos for found in other.readable(topic).values()), "an empty topic")

        yield client, other, store, delete
        other.delete_topic(topic)


def snapshot_beside(client: Client, topic: str, meanwhile: Callable[[], object]) -> Taken:
    requests = cast(Requests, Overtaken(client._requests, meanwhile))
    return client._exchange.run(taking_snapshot(requests, topic, Span(), verifies_checksums=True))


def test_a_snapshot_begins_again_where_all_that_was_listed_is_gone(node: ClientNode) -> None:
    with short_lived(node, "replaced") as (client, other, store, delete):
        store()
        (before,) = snapshot_beside(client, "replaced", lambda: None).snapshot.parts
        looks: list[int] = []

        def replace_once() -> None:
            looks.append(1)
            if len(looks) == 1:
                delete()
                store()

        (after,) = snapshot_beside(client, "replaced", replace_once).snapshot.parts
        assert (len(looks), after.end) == (2, 1)
        assert after.segment_seq > before.segment_seq
        assert other.segments("replaced")[after.core][0].segment_seq == after.segment_seq


def test_segments_that_go_faster_than_they_are_looked_at_are_an_error(node: ClientNode) -> None:
    with short_lived(node, "fleeting") as (client, _, store, delete):
        store()
        looks = []

        def replace() -> None:
            looks.append(1)
            delete()
            store()

        with pytest.raises(StorageUnavailable, match=r"'fleeting': 5 times everything.*retention\.keep_for"):
            snapshot_beside(client, "fleeting", replace)
        assert len(looks) == 5
        assert len(client.dataset("fleeting").to_table()) == ROWS_EACH


class Deleting(Overtaken):
    """Requests of a client while a worker has deleted the file of one segment, and not yet taken the job back: it still lists it."""

    def __init__(self, requests: Requests, segment_seq: int) -> None:
        super().__init__(requests, lambda: None)
        self._segment_seq = segment_seq

    def mapped_part(self, wanted: Any, part: SegmentPart, **options: Any) -> Flow[MappedSegment]:
        if part.segment_seq == self._segment_seq:
            raise NotStored(f"segment {part.segment_seq} is being deleted")
        return (yield from self._requests.mapped_part(wanted, part, **options))


def test_a_segment_that_is_being_deleted_is_not_said_to_be_on_the_disk(node: ClientNode) -> None:
    """What a snapshot has not from the disk is looked for in the archive; what it says to be on the disk is not."""
    with short_lived(node, "going") as (client, _, store, _):
        store()
        store()
        ((core, (first, second)),) = client.segments("going").items()
        requests = cast(Requests, Deleting(client._requests, first.segment_seq))
        taken = client._exchange.run(taking_snapshot(requests, "going", Span(), verifies_checksums=True))
        assert [part.segment_seq for part in taken.snapshot.parts] == [second.segment_seq]
        assert [info.segment_seq for info in taken.on_disk[core].segments] == [second.segment_seq]
        assert taken.on_disk[core].newest_segment_seq == second.segment_seq


def test_an_empty_topic_is_an_empty_snapshot(node: ClientNode) -> None:
    with short_lived(node, "emptied") as (client, _, store, delete):
        store()
        assert snapshot_beside(client, "emptied", delete).snapshot.parts == ()
