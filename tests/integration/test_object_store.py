"""Nodes and decisions in an object store: announced there, decided there, asked there by workers. Through Arrow's client of S3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from quiver_actors.base.file_systems import below
from quiver_actors.errors import TransactionAborted
from quiver_actors.flight.members import members_of
from quiver_actors.spark import commit
from quiver_actors.transactions import Decisions
from tests.integration.node_process import ROOT, command_line
from tests.integration.spark_node import Node, wait_until
from tests.support.object_store import ObjectStore, object_store

if TYPE_CHECKING:
    from quiver_actors.spark.writer import TopicWriter

pytestmark = pytest.mark.spark

TOPIC = "objects"


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(f"node = 'node-a'\n[topics.{TOPIC}]\n[topics.late]\n")
    yield node
    node.remove()


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


def numbers(node: Node, topic: str) -> list[int]:
    with node.client() as client:
        client.flush(topic)
        bundles = [bundle for core in client.segments(topic) for bundle in client.read(topic, core)]
    return sorted(n for bundle in bundles for n in bundle.batch.column("id").to_pylist())


def writer(node: Node, **options: str) -> TopicWriter:
    from pyspark.sql.types import LongType, StructField, StructType

    from quiver_actors.spark.options import WRITE, parse_options
    from quiver_actors.spark.writer import TopicWriter

    checked = parse_options({"runDir": str(node.run_dir), **options}, WRITE)
    return TopicWriter(checked, StructType([StructField("id", LongType())]))


def rows(*ids: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"id": list(ids)})])


def test_nodes_announce_themselves_in_a_bucket_and_leave_it(node: Node, store: ObjectStore) -> None:
    nodes = store.uri("cluster/nodes")
    serve = command_line("quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir), "--nodes", nodes)
    with subprocess.Popen([*serve, "--listen", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert store.names() == ["cluster/nodes/node-a.json"]
            (member,) = members_of(store.uri("cluster/nodes", "s3a")).values()
            assert f"location={member.location} " in line
            # As a driver without a node of its own. Decisions go into the directory of nodes.
            job = writer(node, topic=TOPIC, nodes=nodes, txnAppId="job", txnVersion="1")
            job.commit([job.write(rows(1, 2, 3))])
            assert numbers(node, TOPIC) == [1, 2, 3]
            assert "cluster/nodes/_quiver_decisions/objects.job-1.0.json" in store.names()
            assert list(members_of(nodes)) == ["node-a"]
        finally:
            process.terminate()
            assert process.wait(30) == 0
    assert subprocess.run([*serve, "--leave"], cwd=ROOT, check=False, timeout=60).returncode == 0
    assert members_of(nodes) == {}


def test_of_two_drivers_of_one_write_one_has_decided(node: Node, store: ObjectStore) -> None:
    """Both have staged everything, on whatever node; one of them is thought to be dead."""
    name = {"topic": TOPIC, "checkpointLocation": store.uri("ck"), "txnAppId": "twice", "txnVersion": "1"}
    first, second = writer(node, **name), writer(node, **name)
    messages: list[Any] = [first.write(rows(10, 11)), second.write(rows(10, 11))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    third = writer(node, **name)
    third.commit([third.write(rows(10, 11))])
    assert [n for n in numbers(node, TOPIC) if n >= 10] == [10, 11]


def test_a_worker_asks_the_bucket_and_a_late_commit_is_told(node: Node, store: ObjectStore) -> None:
    name = {
        "topic": "late",
        "checkpointLocation": store.uri("ck"),
        "txnAppId": "late",
        "txnVersion": "1",
        "stageTtl": "1s",
    }
    late = writer(node, **name)
    written = late.write(rows(1))

    def staged() -> int:
        with node.client() as client:
            return sum(map(len, client.staged("late").values()))

    wait_until(lambda: not staged(), "the worker's own decision")
    decision = Decisions(below(store.uri("ck"), commit.DECISIONS_DIRECTORY)).newest("late.late-1")
    assert decision is not None
    assert not decision.is_commit
    with pytest.raises(TransactionAborted, match="run it again"):
        late.commit([written])
    again = writer(node, **{**name, "stageTtl": "1h"})
    again.commit([again.write(rows(1))])
    assert numbers(node, "late") == [1]
