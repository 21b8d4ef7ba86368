"""A node is lost with its disk, and another one goes on from the archive with subscribers, producers, topics and numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import quiver_actors
from quiver_actors.archive.manifest_store import read_head, read_state
from quiver_actors.archive.node_state import NodeState, decode_state
from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.cli.main import main
from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.errors import DataLost
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_node, first_id, numbers
from tests.integration.test_archive import CONFIG, archived_ids, owner_of, status_of

INTERVAL = 'progress_interval = "{interval}"\n'


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = open_store(f"file://{tmp_path}/archive")
    yield made
    made.close()


@contextmanager
def node_of(
    url: str, data: Path | None = None, *, cores: int = 1, more: str = "", interval: str = "100ms"
) -> Iterator[ClientNode]:
    """A node that archives, on a copy of a data directory."""

    def lay_out(target: Path) -> None:
        if data is not None:
            shutil.copytree(data, target)

    with client_node(cores, CONFIG.format(url=url) + INTERVAL.format(interval=interval) + more, lay_out) as node:
        yield node


def state_of(store: ObjectStore) -> NodeState | None:
    """The state of the node that the archive has last."""
    head = read_head(store, "anode")
    return None if head is None or head.state is None else decode_state(read_state(store, head.state))


def wait_for_state(store: ObjectStore, says: Callable[[NodeState], bool]) -> None:
    wait_until(lambda: (found := state_of(store)) is not None and says(found), "the state says it", 60)


def keyed(client: Client, first: int, count: int) -> list[Receipt]:
    return list(client.push_many([numbers(n) for n in range(first, first + count)], producer="p", sequence=first))


def run_restore(store: ObjectStore, data: Path, *more: str) -> int:
    return main(["restore", "--archive", store.url, "--node", "anode", "--data-dir", str(data), *more])


def unsealed_count(state: NodeState) -> int:
    return sum(each.bundle_count for engine in state.engines for each in engine.unarchived if not each.is_sealed)


def take_all(client: Client, subscriber: str, topic: str = "default") -> tuple[list[int], list[GapNotice]]:
    """Every bundle and notice that a subscriber is owed now, acknowledged."""
    ids: list[int] = []
    gaps: list[GapNotice] = []
    with client.subscribe(subscriber, topic=topic, on_gap=gaps.append) as deliveries:
        while (delivery := deliveries.get(timeout=2.0)) is not None:
            assert isinstance(delivery, Delivery)
            with delivery:
                ids.append(first_id(delivery))
    return ids, gaps


def read_over(bundles: Iterator[Any]) -> list[int | str]:
    """The ids of bundles, and for each that is lost where it was."""
    found: list[int | str] = []
    for bundle in bundles:
        try:
            found.append(bundle.batch.column("id")[0].as_py())
        except DataLost:
            found.append(f"lost in {bundle.bundle_id.segment_seq}")
    return found


def expected(lost_segment: int) -> list[int | str]:
    return [
        *range(20),
        *[f"lost in {lost_segment}"] * 3,
        *(f"lost in {lost_segment + more}" for more in (1, 2)),
        20,
        21,
    ]


@pytest.mark.long
def test_a_node_that_lost_its_disk_goes_on_from_the_archive(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node_of(store.url) as node:
        with node.connect() as client:
            client.create_topic("travel", {"slots": {"flights": 0}, "retention.max_age": "30d"})
            client.create_topic("aside", {"archive.enabled": False})
            client.push({"flights": numbers(7)}, topic="travel")
            client.push(numbers(9), topic="aside")
            with client.subscribe("reader", start="earliest") as reader, client.subscribe("other", start="earliest"):
                before = []
                for first in range(0, 20, 5):
                    before += keyed(client, first, 5)
                    client.flush()
                for _ in range(8):
                    delivery = reader.get(timeout=30)
                    assert delivery is not None
                    delivery.ack()
            client.flush(until="archived", timeout=60)
            client.flush("travel", until="archived", timeout=60)
            lost = keyed(client, 20, 3)  # in the open log: never archived
            wait_for_state(store, lambda state: unsealed_count(state) == 3)
        copy = tmp_path / "copy"
        node.kill_supervisor()
        shutil.copytree(node.directories.data, copy)
        shutil.rmtree(node.directories.data)
    epoch = owner_of(store)
    data = tmp_path / "restored"
    assert run_restore(store, data, "--dry-run") == 0
    assert not data.exists()
    assert "at least 3 bundles" in capsys.readouterr().out
    assert run_restore(store, data, "--yes", "--json") == 0
    said = json.loads(capsys.readouterr().out)
    (engine,) = (each for each in said["engines"] if each["topic"] == "default")
    assert [each["bundles"] for each in engine["lost"] if each["bundles"]] == [3]
    assert (said["bare_topics"], said["epoch"]) == (["aside"], epoch + 1)
    assert run_restore(store, data, "--yes") == 2  # it is not empty any more

    with node_of(store.url, data) as node, node.connect() as client:
        assert client.topics()["travel"].slots == {"flights": 0}
        assert set(client.topics()) == {"default", "travel", "aside"}
        ids, gaps = take_all(client, "reader")
        assert ids == list(range(8, 20))
        at = lost[0].bundle_id.segment_seq
        assert [(gap.segment_seq, gap.bundle_count) for gap in gaps] == [(at, 3), (at + 1, None)]
        assert take_all(client, "other")[0] == list(range(20))
        # What is archived is known again, and what is lost is stored.
        again = keyed(client, 15, 7)
        assert [each.bundle_id for each in again[:5]] == [each.bundle_id for each in before[15:]]
        used = {each.bundle_id for each in [*before, *lost]}
        assert not used & {each.bundle_id for each in again[5:]}
        assert again[5].bundle_id.segment_seq > lost[0].bundle_id.segment_seq + 1000
        client.flush(until="archived", timeout=60)
        assert archived_ids(store) == [*range(20), 20, 21, 7]
        assert take_all(client, "reader")[0] == [20, 21]
        with quiver_actors.open_archive(store.url, node="anode") as archive:
            assert read_over(archive.read("default", 0)) == expected(at)
        assert read_over(client.read("default", 0, BundleId("default", 0, 0, 0))) == expected(at)
        with node_of(store.url, copy) as dead:
            wait_until(lambda: (found := status_of(dead)) is not None and found.state == "fenced", "it is fenced")
