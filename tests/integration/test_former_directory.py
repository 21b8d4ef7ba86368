"""A directory that commit 90d0418 has written, killed with work under way, under a whole node of this release: supervisor, workers, and the
public client. See `tests/golden/make_former.py` for what is in it."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.client import Client, Delivery, GapNotice
from tests.golden.test_former import FORMER, OWED
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node
from tests.support.engine_driver import numbered_batch

LOST = (2, 1, 1, "damaged")
"""Bundle 51, of which everybody has a notice that nobody was told of."""
NEW = [900, 901, 902]


def lay_out(data: Path) -> None:
    with tarfile.open(FORMER) as archive:
        archive.extractall(data, filter="data")


def number_of(delivery: Delivery) -> int:
    """The number of the bundle; its values are the ones that were pushed."""
    batch = delivery[0]
    number: int = batch.column("number")[0].as_py()
    assert batch.equals(numbered_batch(number, rows=batch.num_rows))
    assert batch.num_rows == (1 if 100 <= number < 600 else 5)
    return number


def read(client: Client, subscriber: str, count: int, *, notices: int = 0, acks: bool = True) -> list[int]:
    """The numbers that a subscriber gets."""
    found: list[int] = []
    told: list[tuple[int, int, int | None, str]] = []
    with client.subscribe(subscriber, gaps="deliver") as events:
        while len(found) < count or len(told) < notices:
            item = events.get(timeout=60)
            assert item is not None, f"{len(found)} of {count} bundles, {len(told)} of {notices} notices"
            if isinstance(item, GapNotice):
                told.append((item.segment_seq, item.bundle_index_first, item.bundle_count, item.reason))
                continue
            found.append(number_of(item))
            if acks:
                item.ack()
        events.flush()
    assert told == [LOST] * notices
    return found


def push_keyed(client: Client, first: int, count: int) -> list[bool]:
    """Push what producer "p" pushes with those numbers; whether each was stored before."""
    return [
        client.push(numbered_batch(54 + sequence), producer="p", sequence=sequence).duplicate
        for sequence in range(first, first + count)
    ]


def stop(node: ClientNode) -> None:
    node.process.stop()


def kill(node: ClientNode) -> None:
    node.kill_supervisor()


def test_an_embedded_store_reads_all_of_it_and_goes_on(tmp_path: Path) -> None:
    lay_out(tmp_path)
    for notices in (1, 0):
        with quiver_actors.open(tmp_path) as store:
            assert all({each.subscriber for each in known} == set(OWED) for known in store.subscribers().values())
            assert read(store, "half", len(OWED["half"]), notices=notices, acks=False) == OWED["half"]
            assert push_keyed(store, 0, 2) == [True, True]


def test_an_embedded_store_delivers_all_of_it_and_what_is_new(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with quiver_actors.open(tmp_path) as store:
        for subscriber, owed in OWED.items():
            assert read(store, subscriber, len(owed), notices=1) == owed
        store.push_many(map(numbered_batch, NEW))
    with quiver_actors.open(tmp_path) as store:
        for subscriber in OWED:
            assert read(store, subscriber, len(NEW)) == NEW
            with store.subscribe(subscriber) as events:
                wait_until(events.all_drained, "nothing else is owed")


@pytest.mark.parametrize(("cores", "end"), [(1, kill), (2, stop)])
def test_a_node_reads_all_of_it_goes_on_and_starts_again(cores: int, end: Callable[[ClientNode], None]) -> None:
    with client_node(cores=cores, config="", prepare=lay_out) as node:
        with node.connect() as client:
            assert all({each.subscriber for each in known} == set(OWED) for known in client.subscribers().values())
            assert read(client, "fresh", len(OWED["fresh"]), notices=1) == OWED["fresh"]
            assert read(client, "half", len(OWED["half"]), notices=1, acks=False) == OWED["half"]
            assert push_keyed(client, 0, 2) == [True, True]
            for number in NEW:
                client.push(numbered_batch(number))
            assert sorted(read(client, "fresh", len(NEW))) == NEW
        end(node)
        node.restart()
        with node.connect() as client:
            assert sorted(read(client, "half", len(OWED["half"]) + len(NEW))) == sorted([*OWED["half"], *NEW])
            assert sorted(read(client, "done", len(OWED["done"]) + len(NEW), notices=1)) == sorted(
                [*OWED["done"], *NEW]
            )
            assert push_keyed(client, 0, 2) == [True, True]
            client.push(numbered_batch(903))
            assert read(client, "fresh", 1) == [903]
            with client.subscribe("fresh") as events:
                wait_until(events.all_drained, "nothing else is owed")
        assert (node.directories.data / "quiver.version").read_text() == "quiver-data 3\n"
