"""Datasets, batches and questions of clients on other hosts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import quiver_actors.aio
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, GapNotice
from quiver_actors.errors import ClosedError, QuotaExceeded, UnknownTopic, UsageError, WorkerUnavailable
from quiver_actors.flight import datasets
from quiver_actors.flight.client import RemoteClient, connect_remote
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.remote_dataset import RemoteDataset
from quiver_actors.flight.server import NodeServer
from quiver_actors.store.status.node_status import NodeStatus
from tests.integration.client_node import numbers
from tests.integration.remote.servers import Served


@pytest.fixture
def server(local: Client) -> Iterator[NodeServer]:
    with NodeServer(LocalNode("node-a", lambda: local), "grpc://127.0.0.1:0") as made:
        yield made


@pytest.fixture
def client(server: NodeServer) -> Iterator[RemoteClient]:
    with connect_remote(f"grpc://127.0.0.1:{server.port}") as connected:
        yield connected


@contextlib.contextmanager
def topic(local: Client, name: str, event_time: str = "") -> Iterator[str]:
    local.create_topic(name, {"event_time": event_time} if event_time else {})
    yield name
    local.delete_topic(name)


def rows(first: int) -> pa.RecordBatch:
    """Ten rows, of several types; dictionaries differ from bundle to bundle."""
    ids = range(first, first + 10)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array([f"k{number % 7}" for number in ids]).dictionary_encode(),
            "parts": pa.array([[number] if number % 3 else None for number in ids]),
            "note": pa.array([None if number % 2 else f"n{number}" for number in ids], pa.string_view()),
            "at": pa.array([number * 1_000_000 for number in ids], pa.timestamp("us", "UTC")),
        }
    )


def same(found: pa.Table, expected: pa.Table) -> bool:
    """Whether two tables have the same columns and rows, however these are cut, and whatever the order in their dictionaries."""
    return found.schema.equals(expected.schema) and found.to_pylist() == expected.to_pylist()


def test_a_dataset_is_the_local_one_s(client: RemoteClient, local: Client) -> None:
    with topic(local, "asked", event_time="at") as name:
        receipts = [local.push(rows(10 * number), topic=name) for number in range(20)]
        core, where = receipts[0].bundle_id.core, pc.field("id") >= 150
        choices: list[dict[str, object]] = [
            {},
            {"metadata": True},
            {"metadata": ["_quiver_bundle"], "where": "id >= 150"},
            {"where": where},
            {"start": receipts[5].bundle_id, "end": {core: receipts[9].bundle_id}},
            {"event_start": 20 * 10**9, "event_end": 50 * 10**9},
        ]
        for choice in choices:
            near, far = local.dataset(name, **choice), client.dataset(name, **choice)  # type: ignore[arg-type]
            assert far.schema.equals(near.schema, check_metadata=True), choice
            assert same(far.to_table(), near.to_table()), choice
            assert (far.count_rows(), far.slot_id, far.is_complete) == (near.count_rows(), 0, True)
        for filter in (where, pc.field("kind") == "k1", pc.field("note").is_null() & (pc.field("_quiver_bundle") > 3)):
            columns = {"twice": pc.field("id") * 2, "kind": pc.field("kind")}
            near, far = local.dataset(name), client.dataset(name)
            assert same(far.to_table(["note", "id"], filter=filter), near.to_table(["note", "id"], filter=filter))
            assert same(far.to_table(columns, filter=filter), near.to_table(columns, filter=filter))
            assert far.filter(filter).count_rows() == near.filter(filter).count_rows() > 0
        wider = pa.schema([("id", pa.float64()), ("more", pa.string())])
        assert same(far.replace_schema(wider).to_table(), near.replace_schema(wider).to_table())
        assert same(far.head(3), near.head(3))
        assert far.take([3, 1])["id"].to_pylist() == [3, 1]


def test_other_libraries_take_a_dataset_of_another_host(client: RemoteClient, local: Client) -> None:
    with topic(local, "taken") as name:
        for number in range(5):
            local.push(rows(10 * number), topic=name)
        far = client.dataset(name)
        assert duckdb.connect().sql("SELECT count(*), max(id) FROM far WHERE id >= 12 AND kind <> 'k1'").fetchall() == [
            (33, 49)
        ]
        assert pl.scan_pyarrow_dataset(far).filter(pl.col("id") > 44).collect()["id"].to_list() == [45, 46, 47, 48, 49]
        assert far.sort_by([("id", "descending")]).head(1)["id"].to_pylist() == [49]
        (fragment,) = far.get_fragments()
        assert fragment.to_table(columns=["id"], filter=pc.field("id") < 3)["id"].to_pylist() == [0, 1, 2]
        assert pa.RecordBatchReader.from_stream(far).read_all().num_rows == 50
        assert "taken" in far._repr_html_()
        with pytest.raises(UsageError, match="pickled"):
            far.__reduce__()


def test_what_a_scan_does_not_want_does_not_travel(
    client: RemoteClient, local: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[pa.RecordBatch] = []

    def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sent.append(batch)
            yield batch

    monkeypatch.setattr("quiver_actors.flight.server.explaining", counted)
    with topic(local, "narrow") as name:
        for number in range(20):
            local.push(rows(10 * number), topic=name)
        assert client.dataset(name).to_table(["id"], filter=pc.field("id") >= 190).num_rows == 10
    assert (sum(batch.num_rows for batch in sent), {batch.num_columns for batch in sent}) == (10, {1})


def test_a_snapshot_gives_the_same_rows_or_says_that_it_is_gone(
    client: RemoteClient, server: NodeServer, local: Client
) -> None:
    with topic(local, "kept") as name:
        local.push(rows(0), topic=name)
        far = client.dataset(name)
        local.push(rows(10), topic=name)
        assert far.count_rows() == 10
        assert client.dataset(name).count_rows() == 20
    assert far.to_table()["id"].to_pylist() == list(range(10))
    far.close()
    for dataset in (far, far.filter(pc.field("id") > 3)):
        with pytest.raises(ClosedError, match="make another one"):
            dataset.to_table()
    with pytest.raises(duckdb.Error):
        duckdb.connect().sql("SELECT count(*) FROM far").fetchall()
    assert isinstance(far.failure, ClosedError)


def test_the_node_forgets_what_nobody_uses(client: RemoteClient, server: NodeServer, local: Client) -> None:
    kept = server._node.remote_clients.datasets
    dataset: RemoteDataset | None = client.dataset("other")
    assert dataset is not None
    derived = dataset.filter(pc.scalar(value=True))
    del dataset
    gc.collect()
    assert client.dataset("other").count_rows() == derived.count_rows()
    del derived
    gc.collect()
    with client.dataset("other") as last:
        held = [last, *(client.dataset("other") for _ in range(datasets.DATASETS_MAX - 1))]
        with pytest.raises(QuotaExceeded, match="open datasets"):
            client.dataset("other")
        for each in held:
            each.close()
    local.push(numbers(1), topic="other")
    kept.segments_max = 1
    with client.dataset("other") as one:
        assert one.count_rows()
        with pytest.raises(QuotaExceeded, match="one token may hold 1;"):
            client.dataset("other")
    kept.segments_max = 10
    held = [client.dataset("other")]
    with client.dataset("other"):
        kept.idle_seconds = 0.0
        kept.close_idle()
    with pytest.raises(ClosedError):
        held[0].to_table()


def test_a_dataset_needs_the_server_that_made_it(served: Served, local: Client) -> None:
    with served.connect() as client:
        dataset = client.dataset("other")
        assert dataset.count_rows() == local.dataset("other").count_rows()
        served.kill()
        with pytest.raises(WorkerUnavailable):
            dataset.to_table()
        served.start()
        with pytest.raises(ClosedError, match="started anew"):
            dataset.to_table()


def test_what_cannot_be_asked_is_said_as_at_home(client: RemoteClient, local: Client) -> None:
    for each in (client, local):
        with pytest.raises(UnknownTopic):
            each.dataset("nowhere")
        with pytest.raises(UsageError, match="choose one"):
            each.dataset("travel")
        with pytest.raises(UsageError, match="start"):
            each.dataset("other", start=1.5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="filter"):
            each.dataset("other").filter(5)
        with pytest.raises(UsageError):
            each.dataset("other", where="id >")


def test_rows_of_dictionaries_reach_any_flight_client(client: RemoteClient, local: Client) -> None:
    with topic(local, "words") as name:
        for number in range(3):
            words = pa.array([f"w{number}", None]).dictionary_encode()
            local.push({0: pa.record_batch({"d": words})}, topic=name)
        assert client.sql(f"SELECT d FROM {name}").read_all()["d"].to_pylist() == ["w0", None, "w1", None, "w2", None]
        assert client.dataset(name).to_table()["d"].to_pylist() == ["w0", None, "w1", None, "w2", None]


def test_batches_hold_many_bundles_and_are_acknowledged_at_once(client: RemoteClient, local: Client) -> None:
    with topic(local, "many") as name, client.subscribe("b", topic=name) as deliveries:
        receipts = client.push_many(map(numbers, range(0, 300, 3)), topic=name)
        found: list[BundleId] = []
        for batch in deliveries.batches(max_rows=60):
            assert batch.row_count <= 60
            assert batch.row_counts(0) == [3] * len(batch)
            assert batch.table["id"].to_pylist() == [
                value for each in batch.deliveries for value in each.batch["id"].to_pylist()
            ]
            found += batch.bundle_ids
            with batch:
                batch.deliveries[0].defer() if len(found) == len(batch) else None
            batch.ack().wait()
            if len(found) == len(receipts) + 1:
                break
        assert sorted(set(found)) == [receipt.bundle_id for receipt in receipts]
        assert deliveries.all_drained()
        with pytest.raises(UsageError, match="max_rows"):
            deliveries.batches(max_rows=0)


def test_notices_come_between_batches(client: RemoteClient, local: Client) -> None:
    with topic(local, "torn") as name:
        with local.subscribe("g", topic=name):
            pass
        receipts = [local.push(numbers(number), topic=name) for number in range(5)]
        local.seek("g", receipts[2].bundle_id, topic=name)
        with client.subscribe("g", topic=name, gaps="deliver") as deliveries:
            batches = deliveries.batches()
            notice, batch = next(batches), next(batches)
            assert isinstance(notice, GapNotice)
            assert batch.bundle_ids == [receipt.bundle_id for receipt in receipts[2:]]
            batch.reject()
        assert client.subscribers(name) == local.subscribers(name)


def test_a_batch_of_a_lost_consumer_is_delivered_again(served: Served, local: Client) -> None:
    with topic(local, "again") as name, served.connect() as client:
        with client.subscribe("s", topic=name) as deliveries:
            client.push_many(map(numbers, range(5)), topic=name)
            batch = next(deliveries.batches())
            served.kill()
            served.start()
            again = next(deliveries.batches())
            assert again.bundle_ids == batch.bundle_ids
            with pytest.raises(WorkerUnavailable):
                batch.ack().wait()
            again.ack().wait()
            assert deliveries.pending_count() == 0
        client.ack_through(batch.bundle_ids[-1], subscriber="s")
        assert deliveries.claims_lost == 5


def test_the_status_is_that_of_the_node(served: Served, local: Client) -> None:
    with served.connect() as client:
        found = client.status()
    assert found["node"]["running"]
    assert set(found["node"]["topics"]) >= {"travel", "other"}
    assert found["node"]["run_dir"] == str(local.run_dir)

    async def look() -> NodeStatus:
        async with quiver_actors.aio.connect(local.run_dir) as client:
            return await client.status()

    for here in (local.status(), asyncio.run(look())):
        assert here.keys() == found.keys()
        for name in ("run_dir", "data_dir", "topics"):
            assert here["node"][name] == found["node"][name]
