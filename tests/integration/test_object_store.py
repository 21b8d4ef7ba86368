"""Nodes and decisions in an object store: announced there, decided there, asked there by workers. Conditional puts, and Arrow."""

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
LATE = {"url": "late", "uri": "late-through-arrow"}
BOTH = pytest.mark.parametrize("kind", ["url", "uri"])
"""A plain URL is for conditional puts, a URI with options for Arrow's client."""


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def node(store: ObjectStore) -> Iterator[Node]:
    """A node that finds the store in its environment."""
    node = Node(f"node = 'node-a'\n[topics.{TOPIC}]\n" + "".join(f"[topics.{topic}]\n" for topic in LATE.values()))
    yield node
    node.remove()


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
    nodes = store.url("cluster/nodes")
    serve = command_line("quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir), "--nodes", nodes)
    with subprocess.Popen([*serve, "--listen", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            (member,) = members_of(store.url("cluster/nodes", "s3a")).values()
            assert f"location={member.location} " in line
            assert members_of(store.uri("cluster/nodes")) == {"node-a": member}
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


@BOTH
def test_of_two_drivers_of_one_write_one_has_decided(node: Node, store: ObjectStore, kind: str) -> None:
    """Both have staged everything, on whatever node; one of them is thought to be dead."""
    place, ids = getattr(store, kind)(f"ck-{kind}"), {"url": (10, 11), "uri": (20, 21)}[kind]
    name = {"topic": TOPIC, "checkpointLocation": place, "txnAppId": "twice", "txnVersion": "1"}
    first, second = writer(node, **name), writer(node, **name)
    messages: list[Any] = [first.write(rows(*ids)), second.write(rows(*ids))]
    first.commit(messages[:1])
    second.commit(messages[1:])
    third = writer(node, **name)
    third.commit([third.write(rows(*ids))])
    assert [n for n in numbers(node, TOPIC) if n >= ids[0]] == list(ids)


@BOTH
def test_a_worker_asks_the_bucket_and_a_late_commit_is_told(node: Node, store: ObjectStore, kind: str) -> None:
    topic, place = LATE[kind], getattr(store, kind)(f"late-{kind}")
    name = {"topic": topic, "checkpointLocation": place, "txnAppId": "late", "txnVersion": "1", "stageTtl": "1s"}
    late = writer(node, **name)
    written = late.write(rows(1))

    def staged() -> int:
        with node.client() as client:
            return sum(map(len, client.staged(topic).values()))

    wait_until(lambda: not staged(), "the worker's own decision")
    decision = Decisions(below(place, commit.DECISIONS_DIRECTORY)).newest(f"{topic}.late-1")
    assert decision is not None
    assert not decision.is_commit
    with pytest.raises(TransactionAborted, match="run it again"):
        late.commit([written])
    again = writer(node, **{**name, "stageTtl": "1h"})
    again.commit([again.write(rows(1))])
    assert numbers(node, topic) == [1]
