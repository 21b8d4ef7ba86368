"""Idempotent producers of a node that is started with ever other numbers of workers: each bundle is stored once, and is found again."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.base.core_dirs import RETIRED_NAME, find_core_dirs
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client
from quiver_actors.errors import SequenceGap
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, first_id, numbers, take
from tests.integration.node_process import run_quiver

CONFIG = """
[segment]
max_open_duration = "50ms"
"""
PRODUCERS = [f"sensor-{number}" for number in range(6)]


def restart(node: ClientNode, cores: int, *, is_killed: bool = False) -> None:
    if is_killed:
        node.kill_supervisor()
    else:
        node.process.stop()
    node.restart(cores)


class Pusher:
    """Pushes what it has not pushed yet, and some of what it has, and compares the receipts."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, int], BundleId] = {}
        self._following = dict.fromkeys(PRODUCERS, 0)

    def push(self, client: Client, new: int = 10, again: int = 5) -> None:
        for producer in PRODUCERS:
            following = self._following[producer]
            first = max(0, following - again)
            wanted = range(first, following + new)
            receipts = client.push_many((numbers(n) for n in wanted), producer=producer, sequence=first)
            assert [receipt.duplicate for receipt in receipts] == [n < following for n in wanted]
            for number, receipt in zip(wanted, receipts, strict=True):
                assert self.ids.setdefault((producer, number), receipt.bundle_id) == receipt.bundle_id
            self._following[producer] = following + new


@pytest.mark.timeout(300)
def test_numbers_go_on_whatever_the_number_of_workers_and_nothing_is_stored_twice() -> None:
    """The same holds once the cores that stored them were delivered, drained and retired."""
    pusher, read = Pusher(), Counter[BundleId]()
    with client_node(2, CONFIG) as node:
        data = str(node.directories.data)
        for cores, is_killed in ((2, None), (3, False), (2, True), (1, False), (3, True)):
            if is_killed is not None:
                restart(node, cores, is_killed=is_killed)
            with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
                pusher.push(client)
                while len(read) < len(pusher.ids):
                    delivery = subscription.get(30.0)
                    assert delivery is not None
                    read[delivery.bundle_id] += 1
                    delivery.ack()
                subscription.flush(60.0)
                if cores == 1:
                    wait_until(lambda: set(find_core_dirs(data)) == {0}, "core 1 and 2 are retired")
                    assert os.path.isdir(f"{data}/default/{RETIRED_NAME}/core_2")
                with pytest.raises(SequenceGap):
                    client.push(numbers(0), producer=PRODUCERS[0], sequence=1000)
    assert set(read) == set(pusher.ids.values())
    assert set(read.values()) == {1}


@pytest.mark.timeout(300)
def test_a_call_that_lives_across_the_change_stores_each_bundle_once() -> None:
    with client_node(3, CONFIG) as node, node.connect(timeout=120.0) as client:
        client.subscribe("s", start="earliest").close()
        half = threading.Semaphore(0)

        def bundles() -> Iterator[pa.RecordBatch]:
            for number in range(3000):
                if number in (1000, 2000):
                    half.release()
                yield numbers(number)

        def change_twice() -> None:
            for cores in (2, 3):
                assert half.acquire(timeout=60)
                restart(node, cores, is_killed=True)

        changer = threading.Thread(target=change_twice)
        changer.start()
        receipts = client.push_many(bundles(), producer="p", sequence=0, timeout=120.0)
        changer.join(60)
        assert len({receipt.bundle_id for receipt in receipts}) == 3000
        with node.connect() as fresh, fresh.subscribe("s") as subscription:
            found = [first_id(delivery) for delivery in take(subscription, 3000)]
        assert sorted(found) == list(range(3000))


@pytest.mark.timeout(300)
def test_two_clients_of_one_name_race_for_the_new_place() -> None:
    pusher = Pusher()
    with client_node(2, CONFIG) as node:
        with node.connect() as client:
            pusher.push(client)
        restart(node, 3)
        found: list[list[BundleId]] = []

        def push_again() -> None:
            with node.connect() as client:
                for producer in PRODUCERS:
                    receipts = client.push_many((numbers(n) for n in range(20)), producer=producer, sequence=0)
                    found.append([receipt.bundle_id for receipt in receipts])

        racers = [threading.Thread(target=push_again) for _ in range(2)]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join(120)
        assert len(found) == 2 * len(PRODUCERS)
        assert len({id_ for ids in found for id_ in ids}) == 20 * len(PRODUCERS)
        for (producer, number), id_ in pusher.ids.items():
            assert sum(ids[number] == id_ for ids in found) == 2, f"{producer}/{number}"


@pytest.mark.timeout(300)
def test_a_node_that_has_left_and_comes_back_with_other_workers_knows_its_producers(tmp_path: Path) -> None:
    pusher = Pusher()
    with client_node(2, CONFIG) as node:
        with node.connect() as client:
            pusher.push(client)
        drain = ("drain", "--run-dir", str(node.directories.run), "--leave", "--nodes", str(tmp_path))
        drained = run_quiver(*drain, "--timeout", "30s")
        assert drained.returncode == 0, drained.stderr
        assert node.process.end()[0] == 0
        node.restart(3)
        with node.connect() as client:
            pusher.push(client)


def test_a_gap_is_told_also_where_the_worker_must_ask_the_other_cores_first() -> None:
    """The first push of a generation is refused until what other cores hold is known; the gap stands behind that."""
    with client_node(1, CONFIG) as node:
        with node.connect() as client:
            client.push_many((numbers(n) for n in range(5)), producer=PRODUCERS[0], sequence=0)
        restart(node, 2)
        with node.connect() as client:
            with pytest.raises(SequenceGap, match="push the 5 bundles between them first"):
                client.push(numbers(10), producer=PRODUCERS[0], sequence=10)
            assert not client.push(numbers(5), producer=PRODUCERS[0], sequence=5).duplicate
