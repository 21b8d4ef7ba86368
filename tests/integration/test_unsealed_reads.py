"""Commands and readers that claim nothing, on a node that seals nothing for an hour: they read what is durable, and seal nothing for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from quiver_actors import aio
from quiver_actors.base.model import ONLOOKER_PREFIX
from quiver_actors.cli.main import main
from quiver_actors.client import Client
from quiver_actors.errors import NotStored, UsageError
from tests.integration.client_node import ClientNode, client_fixture, node_fixture, numbers, take
from tests.integration.node_process import ROOT, command_line
from tests.support.commands import run_here
from tests.unit.node.worker.harness import until

node = node_fixture(config="[segment]\nmax_open_duration = '1h'\n")
client = client_fixture(scope="function")


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[-60:]
    client.create_topic(name)
    return name


def sealed_count(client: Client, topic: str) -> int:
    return sum(len(infos) for infos in client.segments(topic).values())


def test_what_can_be_read_is_listed_and_read_by_parts(client: Client, topic: str) -> None:
    for number in range(3):
        client.push(numbers(number), topic=topic)
    client.flush(topic)
    for number in range(3, 8):
        client.push(numbers(number), topic=topic)
    (found,) = client.readable(topic).values()
    (sealed,), (unsealed,) = found.sealed, found.unsealed
    assert (sealed.bundle_count, unsealed.bundle_count, unsealed.row_count, found.is_complete) == (3, 5, -1, True)
    reader = client.read_part(0, topic, unsealed.segment_seq, 1, 4)
    expected = [numbers(number) for number in range(4, 7)]
    assert [reader.bundle(index)[0] for index in range(1, 4)] == expected
    with pytest.raises(UsageError, match="5 bundles of it can be read"):
        client.read_part(0, topic, unsealed.segment_seq, 1, 6)
    with pytest.raises(NotStored):
        client.read_part(0, topic, 99, 0, 1)
    client.flush(topic)
    again = client.read_part(0, topic, unsealed.segment_seq, 1, 4)
    assert [again.bundle(index)[0] for index in range(1, 4)] == expected
    assert [reader.byte_count(index) for index in range(1, 4)] == [again.byte_count(index) for index in range(1, 4)]
    # What was mapped before stays readable.
    assert [reader.bundle(index)[0] for index in range(1, 4)] == expected


def test_asyncio_reads_what_is_not_sealed(node: ClientNode, client: Client, topic: str) -> None:
    client.push(numbers(1), topic=topic)

    async def read() -> None:
        async with aio.connect(node.directories.run) as connected:
            (found,) = (await connected.readable(topic)).values()
            (info,) = found.unsealed
            reader = await connected.read_part(0, topic, info.segment_seq, 0, 1)
            assert reader.bundle(0)[0] == numbers(1)

    asyncio.run(read())
    assert sealed_count(client, topic) == 0


def test_an_open_segment_is_read_after_a_restart_before_anybody_asks_what_there_is(
    node: ClientNode, client: Client, topic: str
) -> None:
    """A task that was planned before does so."""
    client.push(numbers(1), topic=topic)
    ((info,),) = (found.unsealed for found in client.readable(topic).values())
    node.kill_worker(0)
    with node.connect() as fresh:
        assert fresh.read_part(0, topic, info.segment_seq, 0, 1).bundle(0)[0] == numbers(1)


def test_export_writes_what_is_not_sealed(
    node: ClientNode, client: Client, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(3):
        client.push(numbers(number), topic=topic)
        if number == 1:
            client.flush(topic)
    for options, sealed in (([], 1), (["--flush"], 2)):
        command = ["export", topic, "--out", str(tmp_path / f"{sealed}"), "--run-dir", str(node.directories.run)]
        assert main([*command, "--json", *options]) == 0
        rows = sum(numbers(number).num_rows for number in range(3))
        assert [file["rows"] for file in json.loads(capsys.readouterr().out)["files"]] == [rows]
        assert sealed_count(client, topic) == sealed


def test_tail_prints_bundles_before_their_seal(node: ClientNode, client: Client, topic: str) -> None:
    for number in range(2):
        client.push(numbers(number), topic=topic)
    tail = ("tail", topic, "--count", "2", "--json", "--run-dir", str(node.directories.run))
    done = run_here(*tail, "--from", "earliest")
    assert [json.loads(line)["bundle_index"] for line in done.stdout.splitlines()] == [0, 1]
    command = command_line("quiver_actors.cli.main", *tail)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as live:
        try:

            def is_attached() -> bool:
                found = [info.subscriber for infos in client.subscribers(topic).values() for info in infos]
                return any(name.startswith(ONLOOKER_PREFIX) for name in found)

            until(is_attached, "the command")
            for number in (2, 3):
                client.push(numbers(number), topic=topic)
            assert [json.loads(line)["bundle_index"] for line in live.communicate(timeout=60)[0].splitlines()] == [2, 3]
        finally:
            live.kill()
    assert sealed_count(client, topic) == 0


def test_dead_letters_go_back_before_their_seal(node: ClientNode, client: Client, topic: str) -> None:
    with client.subscribe("picky", topic=topic, max_deliveries=1) as subscription:
        client.push(numbers(1), topic=topic)
        (delivery,) = take(subscription, 1)
        delivery.defer()
        subscription.flush()
    letters = f"{topic}-dead"

    def are_there() -> bool:
        with node.connect() as fresh:
            return letters in fresh.topics() and any(found.unsealed for found in fresh.readable(letters).values())

    until(are_there, "the letter")
    for options, replayed in ((["--dry-run"], 1), (["--yes"], 1), (["--yes"], 0)):
        command = ["subscribers", "replay-dead-letters", letters, "--json", "--run-dir", str(node.directories.run)]
        report = json.loads(run_here(*command, *options).stdout)
        assert sum(each["bundles"] for each in report["replayed"]) == replayed
    with node.connect() as fresh:
        assert sealed_count(fresh, letters) == sealed_count(fresh, topic) == 0
