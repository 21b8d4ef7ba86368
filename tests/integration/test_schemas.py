"""The schema of a topic on a node of two cores, by every way there is to ask for it, also after a kill and a restart."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from quiver_actors import aio
from quiver_actors.base.widening import SchemaConflict
from quiver_actors.errors import InvalidBundle, NotStored, UnknownSlot, UnknownTopic
from quiver_actors.flight.contract import schema_of
from quiver_actors.flight.local import LocalNode
from tests.integration.client_node import ClientNode, client_node
from tests.support.commands import run_here

CONFIG = """
[topics.travel]
slots = { flights = 3, weather = 4 }
[topics.empty]
"""
PLAIN = pa.record_batch({"carrier": ["UA"], "delay": pa.array([7], pa.int16())})
CODED = pa.record_batch(
    {"carrier": pa.array(["UA"]).dictionary_encode(), "delay": pa.array([70_000], pa.int32()), "gate": ["B1"]}
)
WIDE = pa.schema([("carrier", pa.string()), ("delay", pa.int32()), ("gate", pa.string())])


@pytest.fixture(scope="module")
def node() -> Iterator[ClientNode]:
    with client_node(cores=2, config=CONFIG) as running, running.connect() as client:
        for key in range(4):
            client.push({"flights": PLAIN}, topic="travel", key=str(key))
        client.flush("travel")
        for key in range(4):
            client.push({"flights": CODED}, topic="travel", key=str(key))
        yield running


def by_name(schema: pa.Schema) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in schema}


def test_all_ways_to_ask_give_one_schema_of_sealed_and_open_segments(node: ClientNode) -> None:
    with node.connect() as client:
        assert by_name(client.schema("travel", "flights")) == by_name(WIDE)
        assert by_name(client.schema("travel")) == by_name(WIDE), "no other slot has anything"
        found = LocalNode("n", lambda: client).schemas("travel").by_slot
        assert {slot: {schema_of(message) for message in messages} for slot, messages in found.items()} == {
            3: {PLAIN.schema, CODED.schema}
        }

    async def ask() -> pa.Schema:
        async with aio.connect(node.directories.run) as client:
            assert len(await client.schemas("travel")) == 4
            return await client.schema("travel", 3)

    assert by_name(asyncio.run(ask())) == by_name(WIDE)


def test_the_command_shows_it(node: ClientNode) -> None:
    run_dir = str(node.directories.run)
    done = run_here("topics", "show", "travel", "--schema", "--run-dir", run_dir)
    assert done.returncode == 0, done.stderr
    assert "# slot 3 flights, 2 stored schemas\n" in done.stdout
    assert {"carrier: string", "delay: int32", "gate: string"} < set(done.stdout.splitlines())
    done = run_here("topics", "show", "travel", "--schema", "--json", "--run-dir", run_dir)
    (slot,) = json.loads(done.stdout)["slots"]
    assert (slot["slot"], slot["name"], slot["stored_schemas"]) == (3, "flights", 2)
    assert {"name": "gate", "type": "string", "nullable": True} in slot["columns"]
    done = run_here("topics", "show", "empty", "--schema", "--run-dir", run_dir)
    assert (done.returncode, done.stdout) == (0, "# topic empty has nothing stored: its columns are not known\n")


def test_what_has_no_schema_is_an_error_that_says_why(node: ClientNode) -> None:
    with node.connect() as client:
        with pytest.raises(NotStored, match="'empty' has nothing stored"):
            client.schema("empty")
        with pytest.raises(NotStored, match="nothing in slot 'weather'"):
            client.schema("travel", "weather")
        with pytest.raises(UnknownSlot):
            client.schema("travel", "trains")
        with pytest.raises(UnknownTopic):
            client.schema("trains")


def test_a_conflict_says_which_segments_hold_what() -> None:
    with client_node(cores=1, config=CONFIG) as node, node.connect() as client:
        client.push(PLAIN)
        client.flush()
        client.push(pa.record_batch({"delay": ["late"]}))
        conflict = r"'delay'.*int16 in segment 0 of core 0; string in segment 1 of core 0"
        with pytest.raises(SchemaConflict, match=conflict):
            client.schema()
        done = run_here("topics", "show", "default", "--schema", "--run-dir", str(node.directories.run))
        assert done.returncode == 1
        assert "'delay'" in done.stderr
        client.push({1: PLAIN, 2: CODED})
        with pytest.raises(InvalidBundle, match=r"slots \[0, 1, 2\]: name one"):
            client.schema()
        assert client.schema("default", 2) == CODED.schema


def test_it_is_the_same_after_the_workers_were_killed_and_after_a_restart() -> None:
    with client_node(cores=2, config=CONFIG) as node:
        with node.connect() as client:
            for key in range(4):
                client.push(PLAIN, key=str(key))
            client.flush()
            node.kill_worker(0)
            node.kill_worker(1)
            assert by_name(client.schema()) == by_name(PLAIN.schema)
        node.kill_supervisor()
        node.restart()
        with node.connect() as client:
            assert by_name(client.schema()) == by_name(PLAIN.schema)
