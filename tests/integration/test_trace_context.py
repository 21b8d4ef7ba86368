"""The trace that a push belongs to reaches whoever gets the bundle, by every way that a bundle can take."""

from __future__ import annotations

import asyncio
import json

import pytest

from quiver_actors import aio
from quiver_actors.client import Client
from quiver_actors.errors import UsageError
from quiver_actors.spark.options import WRITE, parse_options
from quiver_actors.spark.task import write_task
from tests.integration.client_node import ClientNode, client_fixture, node_fixture, numbers, take
from tests.support.commands import run_here

PARENTS = [f"00-{trace:032x}-{trace:016x}-01" for trace in range(1, 9)]


node = node_fixture()
client = client_fixture(scope="function")


def test_it_is_on_the_delivery_however_it_was_pushed(node: ClientNode, client: Client) -> None:
    async def push_as_task(trace: str) -> None:
        async with aio.connect(node.directories.run) as tasks:
            await tasks.push({"flights": numbers(3)}, topic="travel", trace_context=trace)

    headers = {"traceparent": PARENTS[0], "tracestate": "vendor=1"}
    with client.subscribe("traced", topic="travel", slots=["flights"]) as subscription:
        client.push({"flights": numbers(0)}, topic="travel", trace_context=headers)
        client.push({"flights": numbers(1)}, topic="travel", producer="p", sequence=1, trace_context=PARENTS[1])
        with client.transaction("traced") as transaction:
            transaction.push({"flights": numbers(2)}, topic="travel", trace_context=PARENTS[2])
        asyncio.run(push_as_task(PARENTS[3]))
        client.push({"flights": numbers(4)}, topic="travel")
        client.flush("travel")
        found = {delivery.batch["id"][0].as_py(): delivery.trace_context for delivery in take(subscription, 5)}
    assert found == {0: headers, 1: {"traceparent": PARENTS[1]}, 2: {"traceparent": PARENTS[2]}} | {
        3: {"traceparent": PARENTS[3]},
        4: {},
    }


def test_many_bundles_of_one_slot_belong_to_one_trace_and_have_a_batch_still(client: Client) -> None:
    with client.subscribe("many") as subscription:
        client.push_many([numbers(n) for n in range(100)], trace_context=PARENTS[4])
        for number, delivery in enumerate(take(subscription, 100)):
            assert delivery.batch["id"][0].as_py() == number
            assert (delivery.row_count, delivery.trace_context) == (3, {"traceparent": PARENTS[4]})
            delivery.ack()


def test_a_dead_letter_belongs_to_the_trace_of_its_bundle(client: Client) -> None:
    with client.subscribe("mourner", topic="other", max_deliveries=1) as subscription:
        client.push(numbers(3), topic="other", trace_context=PARENTS[5])
        take(subscription, 1)[0].defer()
        with client.subscribe("undertaker", topic="other-dead", start="earliest") as dead:
            (letter,) = take(dead, 1)
            assert letter.trace_context == {"traceparent": PARENTS[5]}
            assert letter.batch.equals(numbers(3))


def test_tail_shows_it(node: ClientNode, client: Client) -> None:
    with client.subscribe("keeper", topic="quick"):
        client.push(numbers(1), topic="quick", trace_context=PARENTS[6])
    tail = ["tail", "quick", "--from", "earliest", "--count", "1", "--run-dir", str(node.directories.run)]
    shown = run_here(*tail, "--json")
    assert json.loads(shown.stdout)["trace_context"] == {"traceparent": PARENTS[6]}, shown.stderr
    assert PARENTS[6] in run_here(*tail).stdout


def test_what_is_no_trace_context_is_refused_before_anything_is_pushed(client: Client) -> None:
    with pytest.raises(UsageError, match="00-<32>-<16>-<2>"):
        client.push(numbers(0), trace_context="not a trace")


def test_a_spark_write_may_belong_to_a_trace(node: ClientNode, client: Client) -> None:
    given = {"topic": "other", "runDir": str(node.directories.run), "traceparent": PARENTS[7]}
    with client.subscribe("spark", topic="other") as subscription:
        write_task(parse_options(given, WRITE), None, iter([numbers(1)]))
        (delivery,) = take(subscription, 1)
        assert delivery.trace_context == {"traceparent": PARENTS[7]}
        assert delivery.batch.num_rows == 3
