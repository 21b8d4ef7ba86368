"""A node served to other hosts: `quiver serve`, asked through Arrow Flight."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as fl
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from quiver_actors.errors import (
    ClosedError,
    NotAllowed,
    NotStored,
    TopicRecreated,
    TransactionAborted,
    UnknownTopic,
    WorkerUnavailable,
)
from quiver_actors.flight.contract import (
    Acknowledge,
    AskSlotRows,
    AskWeights,
    BundleRange,
    Contents,
    DropRun,
    HoldTerms,
    Look,
    ReadTicket,
    SlotRows,
    schema_bytes,
)
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.members import MemberDirectory, members_of
from quiver_actors.flight.remote import RemoteNode
from quiver_actors.flight.server import NodeServer
from quiver_actors.spark.nodes import node_set
from quiver_actors.spark.options import READ, parse_options
from quiver_actors.spark.stream_readers import HAS_ADMISSION_CONTROL
from tests.integration.flight_tls import written_to
from tests.integration.spark_node import Node, micro_batch, wait_until

CONFIG = (
    "node = 'node-a'\n[segment]\nmax_open_duration = '200ms'\n[topics.held]\n[topics.other]\n[topics.raced]\n"
    "[topics.named.slots]\nonly = 0\n"
)
SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node(CONFIG)
    with node.client() as client:
        for first in range(0, 40, 10):
            client.push(pa.record_batch({"n": range(first, first + 10)}, schema=SCHEMA), key=str(first))
    yield node
    node.remove()


@contextmanager
def serving(node: Node, *options: str) -> Iterator[str]:
    """`quiver serve`; its location."""
    command = [sys.executable, "-m", "quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir)]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", *options], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("quiver serving: node=node-a "), line
            yield line.split("location=")[1].split()[0]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def rows_of(node: RemoteNode | LocalNode, contents: Contents) -> list[int]:
    ranges = [
        BundleRange(core.core, info.segment_seq, 0, info.bundle_count)
        for core in contents.cores
        for info in core.segments
    ]
    ticket = ReadTicket("default", {"0": 0}, ranges, schema_bytes(SCHEMA))
    return sorted(n for batch in node.read(ticket) for n in batch.column("n").to_pylist())


def test_a_remote_node_answers_as_the_local_one(node: Node, tmp_path: Path) -> None:
    directory = tmp_path / "nodes"
    with serving(node, "--nodes", str(directory)) as location, node.client() as client:
        (member,) = members_of(str(directory)).values()
        assert (member.node, member.location) == ("node-a", location)
        local, remote = LocalNode("node-a", lambda: client), RemoteNode("node-a", location)
        look = Look("default", flush=True)
        contents = remote.look(look)
        assert contents == local.look(look)
        assert rows_of(remote, contents) == rows_of(local, contents) == list(range(40))
        assert remote.schemas("default") == local.schemas("default")
        core = next(core for core in contents.cores if core.segments)
        weights = AskWeights("default", core.core, core.segments[0].segment_seq, None)
        assert remote.weights(weights) == local.weights(weights)
        assert sum(remote.weights(weights).rows) == core.segments[0].row_count
        ask = AskSlotRows("default", {core.core: [core.segments[0].segment_seq, 999]})
        expected = {core.core: {core.segments[0].segment_seq: {0: core.segments[0].row_count}}}
        assert remote.slot_rows(ask) == local.slot_rows(ask) == SlotRows(expected)
        with pytest.raises(UnknownTopic, match="node-a"):
            remote.look(Look("nowhere"))
        with pytest.raises(NotStored):
            list(remote.read(ReadTicket("default", {"0": 0}, [BundleRange(0, 999, 0, 1)], schema_bytes(SCHEMA))))
        skipping = ReadTicket("default", {"0": 0}, [BundleRange(0, 999, 0, 1)], schema_bytes(SCHEMA), skip_missing=True)
        assert list(remote.read(skipping)) == []
        remote.close()
    command = [sys.executable, "-m", "quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir), "--leave"]
    assert subprocess.run([*command, "--nodes", str(directory)], check=False, timeout=60).returncode == 0
    assert MemberDirectory(str(directory)).members() == {}


def test_a_remote_hold_keeps_segments_until_it_acknowledges(node: Node) -> None:
    with serving(node) as location, node.client() as client:
        remote = RemoteNode("node-a", location)
        hold = Look("held", hold=HoldTerms("reader", 60 * 10**9, {}))
        first = remote.look(hold)
        assert all(core.is_new for core in first.cores)
        receipt = client.push(pa.record_batch({"n": [1, 2]}), topic="held")
        client.flush("held")
        again = remote.look(hold)
        assert not any(core.is_new for core in again.cores)
        (core,) = (core for core in again.cores if core.segments)
        assert core.oldest == (receipt.bundle_id.segment_seq, 0)
        remote.acknowledge(Acknowledge("held", "reader", core.core, receipt.bundle_id.segment_seq, 0))
        wait_until(lambda: not any(client.segments("held").values()), "the segment's end")
        remote.close()


def test_only_who_has_the_token_is_answered(node: Node, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    with serving(node, "--token-file", str(token)) as location:
        assert RemoteNode("node-a", location, token="open sesame").look(Look("default")).node == "node-a"
        for wrong in (None, "open", "open sesame "):
            with pytest.raises(NotAllowed, match="token"):
                RemoteNode("node-a", location, token=wrong).look(Look("default"))
        taken = location.rpartition("/")[2]
        command = [sys.executable, "-m", "quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir)]
        second = subprocess.run(
            [*command, "--listen", taken], stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
        assert second.returncode == 2
        assert f"cannot serve on {taken}" in second.stderr


def test_only_who_trusts_the_certificate_and_has_the_token_reads(node: Node, tmp_path: Path) -> None:
    """Through the options of a Spark read, as a host that has no node of its own."""
    certificate, key = written_to(tmp_path)
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    token.chmod(0o600)
    tls = ("--tls-cert", str(certificate), "--tls-key", str(key), "--token-file", str(token))
    with serving(node, *tls) as location:
        assert location.startswith("grpc+tls://127.0.0.1:")
        given = {"runDir": str(tmp_path), "nodes": f"node-a={location}", "pushTimeout": "5s"}
        trusting = {**given, "tlsRoots": str(certificate), "token": "open sesame"}
        remote = node_set(parse_options(trusting, READ)).get("node-a")
        assert isinstance(remote, RemoteNode)
        assert rows_of(remote, remote.look(Look("default", flush=True))) == list(range(40))
        for wrong in ({"tlsRoots": None}, {"token": "sesame"}):
            options = {name: value for name, value in {**trusting, **wrong}.items() if value is not None}
            with pytest.raises((NotAllowed, WorkerUnavailable)):
                node_set(parse_options(options, READ)).get("node-a").look(Look("default"))
        with pytest.raises(WorkerUnavailable):
            RemoteNode("node-a", location.replace("grpc+tls", "grpc"), timeout_seconds=5).look(Look("default"))


class Counting(NodeServer):
    """Remembers what it was asked."""

    def __init__(self, node: LocalNode) -> None:
        self.asked: list[str] = []
        super().__init__(node, "grpc://127.0.0.1:0")

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        self.asked.append(action.type)
        return super().do_action(context, action)


@pytest.mark.parametrize(("topic", "asked"), [("named", []), ("default", ["AskSlotRows"])])
def test_planning_a_micro_batch_is_one_round_trip(node: Node, tmp_path: Path, topic: str, asked: list[str]) -> None:
    """One round trip more, about the segments of the micro-batch only, where the topic does not say which slots it has.

    Spark 4.1 does not say where the query stands when it asks for the end of the micro-batch; there it is a second one.
    """
    with node.client() as client, Counting(LocalNode("node-a", lambda: client)) as server:
        if topic == "named":
            client.push_many([pa.record_batch({"n": range(40)}, schema=SCHEMA)], topic=topic)
            client.flush(topic)
        given = {"nodes": f"node-a=grpc://127.0.0.1:{server.port}", "runDir": str(tmp_path), "topic": topic}
        options = {**given, "startingOffsets": "earliest", "pushTimeout": "30s"}
        reader, _, partitions = micro_batch(options, StructType([StructField("n", LongType())]))
        assert server.asked == [*(["Look"] if HAS_ADMISSION_CONTROL else ["Look", "Look"]), *asked]
        rows = [n for each in partitions for batch in reader.read(each) for n in batch.column("n").to_pylist()]
        assert sorted(rows) == list(range(40))


def test_losers_go_with_the_publish_from_every_worker_of_the_node(node: Node) -> None:
    with node.client() as client:
        tokens = {}
        for number in range(8):  # keys of both workers
            stage = client.stage("raced", topic="raced", partition=0, attempt=number, key=str(number))
            stage.push(pa.record_batch({"n": [number]}, schema=SCHEMA))
            token = stage.prepare()
            assert token is not None
            tokens[token.core] = token
        assert set(tokens) == {0, 1}
        client.decide("raced", 0, [tokens[0]])
        LocalNode("node-a", lambda: client).publish([tokens[0].encode()])
        wait_until(lambda: not any(client.staged("raced").values()), "the end of what has lost")
        stored = [bundle for core in tokens for bundle in client.read("raced", core)]
        assert [bundle.bundle_id.core for bundle in stored] == [0]


def test_a_hold_of_a_topic_that_was_deleted_is_given_up(node: Node) -> None:
    """`quiver serve` lives on: it answered `TopicDeleted` of the new topic, as long as somebody asked again within a minute."""
    with node.client() as client:
        local, look = LocalNode("node-a", lambda: client), Look("short", hold=HoldTerms("reader", 10**10, {}))
        client.create_topic("short")
        assert len(local.look(look).cores) == 2
        client.delete_topic("short")
        client.create_topic("short")

        def is_answered() -> bool:
            with suppress(UnknownTopic, TopicRecreated):  # each connection says it once
                return len(local.look(look).cores) == 2
            return False

        assert any(is_answered() for _ in range(10))
        local.close_idle_holds(0)


def test_a_hold_that_waits_for_slow_workers_is_not_idle(node: Node) -> None:
    """Regression: the hold was closed during the look, which then opened one that nobody closed for as long as the server ran."""
    with node.client() as client:
        local = LocalNode("node-a", lambda: client)
        local.look(Look("held", hold=HoldTerms("slow", 10**10, {})))
        (kept,) = local._holds.values()
        with kept.lock:  # As a look has it.
            local.close_idle_holds(0)
            assert len(kept.hold.look()) == 2
        local.close_idle_holds(0)
        assert not local._holds
        with pytest.raises(ClosedError):
            kept.hold.look()


def test_an_epoch_that_was_aborted_is_dropped_whatever_it_has_staged(node: Node) -> None:
    with serving(node) as location, node.client() as client:
        ready = client.stage("job", topic="other", partition=0)
        ready.push(pa.record_batch({"n": [1]}, schema=SCHEMA))
        ready.prepare()
        still_open = client.stage("job", topic="other", partition=1)
        still_open.push(pa.record_batch({"n": [2]}, schema=SCHEMA))
        later = client.stage("job", topic="other", partition=0, epoch=1)
        later.push(pa.record_batch({"n": [3]}, schema=SCHEMA))
        RemoteNode("node-a", location).drop_run(DropRun("other", "job", 0))
        wait_until(lambda: [stage.epoch for found in client.staged("other").values() for stage in found] == [1], "it")
        with pytest.raises(TransactionAborted):
            still_open.prepare()
        token = later.prepare()
        assert token is not None
        client.publish([token])
        client.flush("other")
        found = [
            n
            for core in client.segments("other")
            for bundle in client.read("other", core)
            for n in bundle.batch.column("n").to_pylist()
        ]
        assert found == [3]


def test_a_node_that_is_gone_is_named(node: Node) -> None:
    with serving(node) as location:
        pass
    with pytest.raises(WorkerUnavailable, match=r"node-a at grpc://127\.0\.0\.1"):
        RemoteNode("node-a", location, timeout_seconds=5).look(Look("default"))
