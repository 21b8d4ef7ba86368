"""Prepared stages of transactions outlive the disk of their node: they come back prepared, or they are lost, named and aborted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.archive.manifest_store import read_head
from quiver_actors.client import Client
from quiver_actors.errors import TransactionAborted, TransactionLost
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from quiver_actors.transactions import Decisions, Token
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode
from tests.integration.test_archive import archived_ids
from tests.integration.test_restore import node_of, run_restore, state_of, wait_for_state
from tests.integration.transacting import numbers, states, visible


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    made = open_store(f"file://{tmp_path}/archive")
    yield made
    made.close()


def staged(client: Client, txn_id: str, *values: int, decisions: str | None = None, until: str = "prepared") -> Token:
    with client.stage(txn_id, decisions=decisions) as stage:
        stage.push_many(numbers(value) for value in values)
        token = stage.prepare(until=until)
    assert token is not None
    return token


def archived_stages(store: ObjectStore) -> set[str]:
    state = state_of(store)
    engines = () if state is None else state.engines
    return {stage.txn_id for engine in engines for stage in engine.prepared if stage.is_archived}


def stage_objects(store: ObjectStore, token: Token) -> list[str]:
    return [each.key for each in store.objects("anode/manifest.stages") if f"/{token.number:016d}." in each.key]


def state_key(store: ObjectStore) -> str | None:
    head = read_head(store, "anode")
    return None if head is None or head.state is None else head.state.key


def lose(node: ClientNode, copy: Path | None = None) -> None:
    """Kill the node at once, and its disk with it."""
    node.kill_supervisor()
    if copy is not None:
        shutil.copytree(node.directories.data, copy)
    shutil.rmtree(node.directories.data)


def test_prepared_stages_are_published_by_the_node_that_takes_over(
    store: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Decisions(str(tmp_path / "decisions"))
    with node_of(store.url) as node:
        with node.connect() as client:
            published = staged(client, "published", 1, 2)
            client.publish(client.decide("published", 0, [published]).tokens)
            client.push(numbers(3))
            own = staged(client, "own", 10, 11, decisions=str(node.directories.data / "quiver.decisions"))
            shared = staged(client, "shared", 20, 21, decisions=log.location, until="archived")
            assert "shared" in archived_stages(store)
            lost = staged(client, "lost", 30, decisions=log.location)
            client.flush(until="archived", timeout=60)
            wait_for_state(store, lambda _: archived_stages(store) == {"own", "shared", "lost"})
        lose(node)
    for key in stage_objects(store, lost):
        store.delete(key)
    data = tmp_path / "restored"
    assert run_restore(store, data, "--yes", "--json") == 1, "a stage is damaged in the store"
    said = json.loads(capsys.readouterr().out)
    assert [each["txn_id"] for each in said["carried_stages"]] == ["own", "shared"]
    assert [(each["txn_id"], each["stage"], each["outcome"]) for each in said["lost_stages"]] == [
        ("lost", lost.number, "abort")
    ]
    with node_of(store.url, data) as node, node.connect() as client:
        assert states(client) == ["prepared", "prepared"]
        assert visible(client) == [1, 2, 3]
        with pytest.raises(TransactionAborted):
            log.commit("lost", 0, [lost])
        with pytest.raises(TransactionLost, match="is not in the archive"):
            client.publish([lost])
        client.publish([published])  # all of it is archived
        for _ in range(2):
            client.publish(log.commit("shared", 0, [shared]).tokens, drop_others=True)
            client.publish(client.decide("own", 0, [own]).tokens, drop_others=True)
        assert visible(client) == [1, 2, 3, 20, 21, 10, 11]
        client.flush(until="archived", timeout=60)
        assert archived_ids(store) == [1, 2, 3, 20, 21, 10, 11]
        wait_for_state(store, lambda _: not archived_stages(store))
        lose(node)
    again = tmp_path / "again"
    assert run_restore(store, again, "--yes") == 0
    assert "prepared:" not in capsys.readouterr().out
    with node_of(store.url, again) as node, node.connect() as client:
        assert states(client) == []
        assert visible(client) == [1, 2, 3, 20, 21, 10, 11]


def test_a_segment_is_recorded_with_a_state_that_does_not_call_its_stage_prepared(
    store: ObjectStore, tmp_path: Path
) -> None:
    with node_of(store.url) as node:
        with node.connect() as client:
            client.push(numbers(1))
            client.flush(until="archived", timeout=60)
            token = staged(client, "txn", 2, 3)
            wait_for_state(store, lambda _: archived_stages(store) == {"txn"})
        copy = tmp_path / "copy"
        lose(node, copy)
    before = state_key(store)
    with node_of(store.url, copy, interval="1h") as node:
        wait_until(lambda: state_key(store) != before, "the only state of this node in this hour", 60)
        assert archived_stages(store) == {"txn"}
        with node.connect() as client:
            client.publish(client.decide("txn", 0, [token]).tokens)
            client.flush(until="archived", timeout=60)
        lose(node)
    data = tmp_path / "restored"
    assert run_restore(store, data, "--yes") == 0
    with node_of(store.url, data) as node, node.connect() as client:
        assert (visible(client), states(client)) == ([1, 2, 3], [])
        decision = client.decide("txn", 0, None)
        assert decision.is_commit, "the decision is as old as the segment"
