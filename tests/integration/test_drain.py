"""`quiver drain` on a real node: what is waited for, what is said of those who are behind, and what a restart finds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.client import Client
from quiver_actors.errors import Draining, PushTimeout, WorkerUnavailable
from quiver_actors.flight.members import Member, MemberDirectory
from quiver_actors.store.wal.layout import CURSOR_NAME, HEADER_BYTES
from tests.integration.client_node import ClientNode, first_id, node_fixture, numbers, take
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line
from tests.integration.spark_node import micro_batch
from tests.support.commands import run_here
from tests.unit.node.worker.harness import until

CONFIG = """
[segment]
max_open_duration = "1h"
"""
"""Nothing is sealed unless something asks for it."""


node = node_fixture(cores=2, config=CONFIG, scope="function")


@contextmanager
def draining(node: ClientNode, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`quiver drain` in the background, from when every worker has stopped its intake."""
    command = command_line("quiver_actors.cli.main", "drain", "--run-dir", str(node.directories.run), *arguments)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_intake_stopped(node)
            yield process
        finally:
            process.kill()


def wait_intake_stopped(node: ClientNode) -> None:
    """Wait until the intake of every worker is stopped."""
    for _ in range(node.cores):
        node.process.wait_for("worker.intake_stop")


def status(node: ClientNode) -> Any:
    return json.loads(run_here("status", "--run-dir", str(node.directories.run), "--json").stdout)


def is_refused(client: Client) -> bool:
    """Whether a worker says that it drains; not before it has said anything."""
    with pytest.raises((Draining, PushTimeout, WorkerUnavailable)) as refused:
        client.push(numbers(99), timeout=0.5)
    return "is being drained" in str(refused.value)


def unsealed_bytes(node: ClientNode) -> int:
    """Bytes in logs that recovery would have to read: entries behind the header of the active log, and whole rotated logs."""
    logs = [path for path in node.directories.data.glob("*/core_*/wal/*") if path.name != CURSOR_NAME]
    assert len(logs) >= node.cores
    return sum(path.stat().st_size - HEADER_BYTES for path in logs)


def test_drain_waits_for_subscribers_and_a_restart_finds_nothing(node: ClientNode) -> None:
    with node.connect() as client, client.subscribe("exporter") as subscription:
        client.push_many([numbers(n) for n in range(300)])
        with draining(node, "--timeout", "30s") as process:
            delivered = take(subscription, 300)
            assert [first_id(delivery) for delivery in delivered] == list(range(300))
            assert process.poll() is None, "nothing is acknowledged yet"
            for delivery in delivered:
                delivery.ack()
            subscription.flush()
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
            assert (process.returncode, err) == (0, "")
            assert "everything is resolved" in out
    assert node.process.end()[0] == 0
    assert unsealed_bytes(node) == 0
    node.restart()
    with node.connect() as client, client.subscribe("exporter") as subscription:
        assert subscription.get(0.5) is None
        assert {(each["wal_bytes"], each["state"]) for each in status(node)["engines"]} == {(0, "ready")}
        client.push(numbers(7))
        client.flush()
        assert [first_id(delivery) for delivery in take(subscription, 1)] == [7]


def test_pushes_are_refused_while_subscribers_are_served(node: ClientNode) -> None:
    with node.connect() as client, client.subscribe("exporter") as subscription:
        client.push(numbers(1))
        with draining(node) as process:
            until(lambda: is_refused(client), "a refusal")
            with client.subscribe("latecomer", start="earliest") as latecomer:
                for consumer in (subscription, latecomer):
                    (delivery,) = take(consumer, 1)
                    delivery.ack()
                    consumer.flush()
                assert process.wait(DEADLINE_SECONDS) == 0


def test_who_is_behind_is_named_and_gets_the_rest_after_a_restart(node: ClientNode) -> None:
    with node.connect() as client:
        with client.subscribe("slow"), client.subscribe("done") as done:
            client.push_many([numbers(n) for n in range(20)])
            client.flush()
            for delivery in take(done, 20):
                delivery.ack()
        drained = run_here("drain", "--run-dir", str(node.directories.run), "--timeout", "300ms")
    assert drained.returncode == 5
    assert "subscriber slow of topic default: 20 bundles behind" in drained.stderr
    assert "nobody connected" in drained.stderr
    assert "quiver subscribers drop slow --topic default --yes" in drained.stderr
    assert "done" not in drained.stderr
    assert node.process.end()[0] == 0
    assert unsealed_bytes(node) == 0
    node.restart()
    with node.connect() as client, client.subscribe("slow") as slow:
        assert [first_id(delivery) for delivery in take(slow, 20)] == list(range(20))


@pytest.mark.spark
def test_a_streaming_query_lets_its_node_go_although_no_micro_batch_follows(node: ClientNode) -> None:
    """Asked as by Spark, which commits a micro-batch when it plans the next one that has rows, and asks for that all the time."""
    from pyspark.sql.types import LongType, StructField, StructType

    options = {"runDir": str(node.directories.run), "topic": "default", "startingOffsets": "earliest"}
    with node.connect() as client:
        client.push(numbers(1))
        client.flush()
    done: Any = micro_batch(options, StructType([StructField("id", LongType())]))
    again = [done.end, done.reader.getDefaultReadLimit()]
    assert done.reader.latestOffset(*again) == done.end
    with node.connect() as client:
        assert [info.pending for infos in client.subscribers().values() for info in infos if info.pending] == [1]
    with draining(node, "--timeout", "30s") as process:
        done.reader.latestOffset(*again)
        out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, "everything is resolved" in out) == (0, True)


def test_a_node_can_be_kept_for_those_who_are_behind(node: ClientNode) -> None:
    run_dir = str(node.directories.run)
    with node.connect() as client, client.subscribe("slow") as slow:
        client.push(numbers(1))
        first = run_here("drain", "--run-dir", run_dir, "--timeout", "200ms", "--keep-behind", "--json")
        report = json.loads(first.stdout)
        assert (first.returncode, report["drained"], report["ended"]) == (5, False, False)
        assert [(each["subscriber"], each["lag_bundles"]) for each in report["behind"]] == [("slow", 1)]
        assert {worker["state"] for worker in status(node)["workers"]} == {"draining"}
        (delivery,) = take(slow, 1)
        delivery.ack()
        slow.flush()
        second = run_here("drain", "--run-dir", run_dir, "--json")
        assert (second.returncode, json.loads(second.stdout)["drained"]) == (0, True)


def test_whoever_interrupts_it_is_told_that_the_intake_stays_stopped(node: ClientNode) -> None:
    with node.connect() as client, client.subscribe("slow") as slow:
        client.push(numbers(1))
        with draining(node, "--timeout", "10m") as process:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 130
        assert "takes no bundles; run `quiver drain` again" in said
        assert is_refused(client)
        assert [first_id(each) for each in take(slow, 1)] == [1]


def test_a_worker_that_is_started_again_meanwhile_takes_nothing_either(node: ClientNode) -> None:
    with node.connect() as client:
        client.subscribe("exporter").close()
        client.push_many([numbers(n) for n in range(10)])
        with draining(node, "--timeout", "30s") as process:
            for core in range(node.cores):
                node.signal_worker(core, signal.SIGKILL)
            wait_intake_stopped(node)
            until(lambda: is_refused(client), "the worker that has come back to refuse")
            with client.subscribe("exporter") as subscription:
                for delivery in take(subscription, 10):
                    delivery.ack()
                subscription.flush()
                assert process.wait(DEADLINE_SECONDS) == 0


def test_a_wrong_directory_of_nodes_is_told_before_the_intake_is_stopped(node: ClientNode) -> None:
    drain = ("drain", "--run-dir", str(node.directories.run), "--leave", "--nodes")
    refused = run_here(*drain, "node-a=grpc://127.0.0.1:8815")
    assert refused.returncode == 2, refused.stderr
    assert not any(worker["intake_stopped"] for worker in status(node)["workers"])


def test_without_a_node_there_is_nothing_to_drain(tmp_path: Path) -> None:
    drained = run_here("drain", "--run-dir", str(tmp_path))
    assert drained.returncode == 3
    assert "no node is running" in drained.stderr
    assert not os.listdir(tmp_path)


def test_a_bundle_that_nobody_can_take_becomes_a_dead_letter_while_draining(node: ClientNode) -> None:
    with node.connect() as client, client.subscribe("exporter", max_deliveries=1) as subscription:
        client.push(numbers(1))
        with draining(node) as process:
            (delivery,) = take(subscription, 1)
            delivery.defer()
            assert process.wait(DEADLINE_SECONDS) == 0
    assert node.process.end()[0] == 0
    assert not unsealed_bytes(node)
    node.restart()
    with node.connect() as client, client.subscribe("undertaker", topic="default-dead", start="earliest") as dead:
        (letter,) = take(dead, 1)
        assert letter[0].equals(numbers(1))


def test_a_node_with_staged_parts_does_not_leave_and_says_so(node: ClientNode, tmp_path: Path) -> None:
    """Regression: the node counted as drained and stayed listed, so readers went on asking a node that was down."""
    nodes = MemberDirectory(str(tmp_path))
    with node.connect() as client:
        nodes.announce(Member(client.node, "grpc://127.0.0.1:1"))
        stage = client.stage("undecided")
        stage.push(numbers(0))
        assert stage.prepare() is not None
    run_dir = str(node.directories.run)
    drained = run_here("drain", "--run-dir", run_dir, "--timeout", "30s", "--leave", "--nodes", str(tmp_path))
    assert drained.returncode == 5, drained.stderr
    assert f"the node stays in the directory of nodes {tmp_path}" in drained.stderr
    assert len(nodes.members()) == 1
