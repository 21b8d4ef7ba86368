"""Transactions while workers and producers are killed, and while the node changes its number of cores."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from quiver_actors.client import Client
from quiver_actors.errors import (
    TransactionAborted,
    TransactionLost,
)
from tests.integration.client_node import ClientNode, client_node, take
from tests.integration.transacting import PATIENCE_SECONDS, eventually, numbers, stage, states, visible


@pytest.fixture
def fresh() -> Iterator[ClientNode]:
    with client_node(cores=1) as running:
        yield running


def test_killed_workers_at_each_step(fresh: ClientNode) -> None:
    """Open: lost, and the stage says so. Prepared, and published: as if nothing had happened."""
    with fresh.connect() as client:
        staged = client.stage("killed")
        staged.push(numbers(1))
        fresh.kill_worker(0)
        with pytest.raises(TransactionAborted):
            staged.push(numbers(2))
        token = stage(client, "killed", 1, 2)
        fresh.kill_worker(0)
        assert states(client) == ["prepared"]
        assert visible(client) == []
        client.publish(client.decide("killed", 0, [token]).tokens)
        fresh.kill_worker(0)
        client.publish([token])
        assert visible(client) == [1, 2]
        fresh.kill_supervisor()
        fresh.restart()
        client.publish([token])
        assert visible(client) == [1, 2]


def test_tokens_of_a_core_that_the_node_no_longer_has_are_published_by_its_heir() -> None:
    with client_node(cores=2) as node:
        with node.connect() as client:
            tokens = [stage(client, "heir", 10 * part, partition=part, key=f"k{part}") for part in range(4)]
        assert {token.core for token in tokens} == {0, 1}
        node.process.stop()
        node.restart(cores=1)
        with node.connect() as client:
            assert visible(client) == []
            client.publish(client.decide("heir", 0, tokens).tokens, drop_others=True)
            assert sorted(visible(client)) == [0, 10, 20, 30]
            _consume(client, 4)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (node.directories.data / "default" / "core_1").exists():
                assert time.monotonic() < deadline, "the core was not retired"
        node.process.stop()
        node.restart(cores=1)
        with node.connect() as client:
            client.publish(tokens)
            never = msgspec.structs.replace(next(token for token in tokens if token.core == 1), number=99)
            with pytest.raises(TransactionLost, match="was not published"):
                client.publish([never])
            gone = msgspec.structs.replace(never, core=7)
            with pytest.raises(TransactionLost, match="nothing is left of its directory"):
                client.publish([gone])


def _consume(client: Client, bundles: int) -> None:
    with client.subscribe("all", start="earliest") as subscription:
        for delivery in take(subscription, bundles):
            delivery.ack()
        subscription.flush()


PRODUCER = """
import os, sys
import pyarrow as pa
from quiver_actors.client import connect
from quiver_actors.client.transaction import Transaction
run_dir, die_at = sys.argv[1:]
step = 0
def maybe_die(*_):
    global step
    step += 1
    if step == int(die_at):
        os.kill(os.getpid(), 9)
client = connect(run_dir)
for name in ("decide", "publish", "find_decision"):
    def wrapped(*args, _inner=getattr(client, name), **options):
        maybe_die()
        result = _inner(*args, **options)
        maybe_die()
        return result
    setattr(client, name, wrapped)
with client.transaction("job") as txn:
    for n in range(20):
        txn.push(pa.record_batch({"n": pa.array([n], pa.int64())}))
        if n == 10:
            maybe_die()
print("steps", step)
"""


def test_a_producer_that_is_killed_at_any_step_and_run_again_stores_everything_once(fresh: ClientNode) -> None:
    """find, push, decide and publish: it dies before and after each of them, and is run again until it ends well."""
    with fresh.connect() as client:
        for die_at in range(1, 9):
            done = subprocess.run(
                [sys.executable, "-c", PRODUCER, fresh.directories.run, str(die_at)],
                check=False,
                capture_output=True,
                text=True,
                timeout=120,
            )
            if done.returncode == 0:
                assert "steps" in done.stdout
                break
            assert done.returncode == -signal.SIGKILL, done.stderr
        else:
            pytest.fail("the producer never came to its end")
        eventually(client, (list(range(20)), []))


def test_workers_killed_while_transactions_run_lose_and_double_nothing(fresh: ClientNode) -> None:
    """A few transactions, run until they are done, while their worker is killed again and again."""
    with fresh.connect(timeout=60.0) as client:
        for job in range(6):
            _run_until_done(fresh, client, job)
        assert sorted(visible(client)) == list(range(60))


def _run_until_done(node: ClientNode, client: Client, job: int) -> None:
    kills = 1
    while True:
        try:
            with client.transaction(f"job-{job}", timeout=60.0) as txn:
                for n in range(10):
                    txn.push(numbers(10 * job + n))
                    if n == 3 * (job % 4) and kills:
                        kills -= 1
                        os.kill(node.pids[0], signal.SIGKILL)
                        node.wait_worker_ready(0)
            return
        except TransactionAborted:
            continue
