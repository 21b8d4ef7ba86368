"""Idempotent producers against a real node: what is pushed again is stored once, across kills of either side."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors import aio
from quiver_actors.client import Client
from quiver_actors.errors import SequenceGap, SequenceTooOld, UsageError
from tests.integration.client_node import ClientNode, client_fixture, client_node, node_fixture
from tests.integration.transacting import numbers, visible

node = node_fixture(cores=2)
client = client_fixture(scope="function")


def test_the_same_key_gives_the_same_receipt(client: Client, node: ClientNode) -> None:
    receipts = client.push_many((numbers(n) for n in range(1, 201)), producer="p", sequence=1)
    assert [receipt.duplicate for receipt in receipts] == [False] * 200
    with node.connect() as another:
        again = another.push_many((numbers(n) for n in range(150, 251)), producer="p", sequence=150)
    assert [receipt.duplicate for receipt in again] == [True] * 51 + [False] * 50
    assert [receipt.bundle_id for receipt in again[:51]] == [receipt.bundle_id for receipt in receipts[149:]]
    assert client.push(numbers(1), producer="p", sequence=1).bundle_id == receipts[0].bundle_id
    assert sorted(visible(client)) == list(range(1, 251))


def test_wrong_numbers_are_refused(client: Client) -> None:
    client.push(numbers(1), topic="other", producer="q", sequence=10)
    with pytest.raises(SequenceGap, match="the next one is 11"):
        client.push(numbers(1), topic="other", producer="q", sequence=12)
    with pytest.raises(SequenceTooOld):
        client.push(numbers(1), topic="other", producer="q", sequence=9)
    wrongs: list[dict[str, Any]] = [
        {"producer": "q"},
        {"sequence": 1},
        {"producer": "q", "sequence": 11, "key": "k"},
        {"producer": "", "sequence": 1},
    ]
    for wrong in wrongs:
        with pytest.raises(UsageError):
            client.push(numbers(1), topic="other", **wrong)
    assert visible(client, "other") == [1]


def test_tasks_push_idempotently_too(node: ClientNode) -> None:
    async def push_twice() -> list[bool]:
        async with aio.connect(node.directories.run) as client:
            first = await client.push_many([numbers(1), numbers(2)], topic="other", producer="task", sequence=1)
            again = await client.push(numbers(2), topic="other", producer="task", sequence=2)
            assert again.bundle_id == first[1].bundle_id
            return [receipt.duplicate for receipt in [*first, again]]

    assert asyncio.run(push_twice()) == [False, False, True]


def test_the_key_travels_with_the_bundle(client: Client) -> None:
    with client.subscribe("keys", topic="other", start="latest") as subscription:
        client.push({0: numbers(5), 63: pa.record_batch({"trace": ["x"]})}, topic="other", producer="r", sequence=3)
        delivery = subscription.get(timeout=30)
        assert delivery is not None
        (envelope,) = delivery[63].to_pylist()
        delivery.ack()
    assert envelope == {"trace": "x", "quiver.producer": "r", "quiver.producer_sequence": 3}


def test_workers_killed_while_a_producer_pushes_lose_and_double_nothing() -> None:
    with client_node(cores=1) as node, node.connect(timeout=60.0) as client:
        pushed = threading.Semaphore(0)

        def bundles() -> Iterator[pa.RecordBatch]:
            for number in range(6000):
                if number in (1500, 4000):
                    pushed.release()
                yield numbers(number)

        def kill_twice() -> None:
            for _ in range(2):
                assert pushed.acquire(timeout=60)
                os.kill(node.pids[0], signal.SIGKILL)
                node.wait_worker_ready(0)

        killer = threading.Thread(target=kill_twice)
        killer.start()
        receipts = client.push_many(bundles(), producer="p", sequence=0, timeout=60.0)
        killer.join(60)
        assert len({receipt.bundle_id for receipt in receipts}) == 6000
        assert visible(client) == list(range(6000))
        client.push_many((numbers(n) for n in range(5990, 6010)), producer="p", sequence=5990)
        assert visible(client) == list(range(6010))
