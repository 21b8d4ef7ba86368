"""Transactions against a real node: nothing shows before it is decided, then everything does, once, whatever is killed on the way."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.client import Client
from quiver_actors.errors import (
    DecisionUnavailable,
    InvalidBundle,
    TransactionAborted,
    TransactionDecided,
    TransactionLost,
    UnknownTopic,
    UnknownTransaction,
    UsageError,
)
from quiver_actors.transactions import Decisions
from tests.integration.capped_node import wait_until
from tests.integration.client_node import ClientNode, client_fixture, node_fixture, take
from tests.integration.transacting import PATIENCE_SECONDS, eventually, numbers, stage, states, visible
from tests.support.commands import run_here

node = node_fixture(cores=2)
client = client_fixture(scope="function")


def test_stages_of_two_workers_become_visible_when_they_are_published(client: Client) -> None:
    tokens = [stage(client, "two", 10 * part, 10 * part + 1, partition=part, key=f"k{part}") for part in (1, 2, 3)]
    assert {token.core for token in tokens} == {0, 1}
    assert [(token.bundles, token.rows) for token in tokens] == [(2, 2)] * 3
    assert visible(client) == []
    assert states(client) == ["prepared"] * 3
    decision = client.decide("two", 0, tokens)
    for _ in range(2):
        client.publish(decision.tokens)
        assert sorted(visible(client)) == [10, 11, 20, 21, 30, 31]
    assert states(client) == []


def test_published_bundles_are_delivered_behind_those_before_them(node: ClientNode) -> None:
    with node.connect() as client, client.subscribe("order", topic="other", start="earliest") as subscription:
        with client.stage("order", topic="other", key="k") as staged:
            staged.push_many(numbers(n) for n in range(100))
            client.push(numbers(-1), topic="other", key="k")
            token = staged.prepare()
            assert token is not None
            client.publish([token])
            client.push(numbers(-2), topic="other", key="k")
        got: list[int] = []
        while len(got) < 102:
            (delivery,) = take(subscription, 1)
            got += delivery[0].column(0).to_pylist()
            delivery.ack()
    assert got == [-1, *range(100), -2]


def test_large_bundles_and_many_schemas_are_staged(client: Client) -> None:
    with client.stage("large", topic="quick") as staged:
        big = pa.record_batch({"n": pa.array(range(2_000_000), pa.int64())})
        staged.push({0: big})
        for field in range(50):
            staged.push({1: pa.record_batch({f"f{field}": pa.array([field])})})
        token = staged.prepare()
    assert token is not None
    assert token.rows == 2_000_050
    client.publish([token])
    infos = [info for infos in client.segments("quick").values() for info in infos]
    assert sum(info.row_count for info in infos) == 2_000_050


def test_what_is_aborted_never_shows(client: Client) -> None:
    before = visible(client)
    token = stage(client, "gone", 1)
    decision = client.decide("gone", 0, None)
    assert decision.outcome == "abort"
    for _ in range(2):
        client.abort_tokens([token])
    with pytest.raises(TransactionLost, match="was dropped: aborted"):
        client.publish([token])
    with pytest.raises(TransactionAborted, match="in epoch 1"):
        client.decide("gone", 0, [token])
    with client.stage("gone", epoch=1) as staged:
        staged.push(numbers(2))
    with client.stage("gone", epoch=1) as staged:
        assert staged.prepare() is None, "nothing was pushed"
    assert visible(client) == before
    eventually(client, (sorted(before), []))


def test_wrong_calls_are_refused(client: Client) -> None:
    with pytest.raises(UnknownTopic):
        client.stage("t", topic="nosuch")
    with pytest.raises(UsageError, match="absolute path"):
        client.stage("t", decisions="relative/decisions")
    with pytest.raises(UsageError, match="ttl"):
        client.stage("t", ttl=0)
    with client.stage("t") as staged:
        staged.push(numbers(1))
        token = staged.prepare()
        with pytest.raises(UsageError, match="not open any more"):
            staged.push(numbers(2))
    assert token is not None
    with pytest.raises(UnknownTransaction, match="is of transaction 't', not 'u'"):
        client.publish([msgspec.structs.replace(token, txn_id="u")])
    with pytest.raises(TransactionLost, match="replaced"):
        client.publish([msgspec.structs.replace(token, incarnation="00" * 16)])
    client.abort_tokens([token])
    with pytest.raises(InvalidBundle, match="more bundles than item counts"), client.stage("t") as staged:
        staged.push_many([numbers(1), numbers(2)], item_counts=[1])


def test_a_transaction_is_all_or_nothing_and_once(client: Client) -> None:
    before = sorted(visible(client))
    with pytest.raises(InvalidBundle):
        _transact(client, "once", numbers(1), {})
    for run in range(3):
        with client.transaction("once") as txn:
            assert txn.is_done == (run > 0)
            txn.push(numbers(1001))
            txn.push({3: numbers(7)}, topic="travel")
            assert sorted(visible(client)) == (before if not run else sorted([*before, 1001]))
    assert sorted(visible(client)) == sorted([*before, 1001])
    assert sum(info.bundle_count for infos in client.segments("travel").values() for info in infos) == 1
    eventually(client, (sorted([*before, 1001]), []))


def _transact(client: Client, txn_id: str, *bundles: Any) -> None:
    with client.transaction(txn_id) as txn:
        for bundle in bundles:
            txn.push(bundle)


def test_what_nobody_decides_is_dropped_after_its_time(client: Client, tmp_path: Path) -> None:
    before = sorted(visible(client))
    log = Decisions(str(tmp_path / "decisions"))
    token = stage(client, "late", 5, decisions=log.location, ttl=0.2)
    eventually(client, (before, []))
    with pytest.raises(TransactionAborted, match="run it again, in epoch 1"):
        log.commit("late", 0, [token])
    assert log.open_epoch("late") == 1


def test_what_was_decided_is_published_by_the_worker_itself(client: Client, tmp_path: Path) -> None:
    """The driver dies between its decision and the publish."""
    before = sorted(visible(client))
    log = Decisions(str(tmp_path / "decisions"))
    winners = [
        stage(client, "decided", 100 + part, partition=part, decisions=log.location, ttl=5.0, key="k")
        for part in range(2)
    ]
    stage(client, "decided", 999, partition=0, attempt=1, decisions=log.location, ttl=5.0, key="k")
    log.commit("decided", 0, winners)
    eventually(client, (sorted([*before, 100, 101]), []))


def test_a_decision_log_that_cannot_be_reached_keeps_the_token(client: Client, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    token = stage(client, "stuck", 6, decisions=str(tmp_path / "file" / "d"), ttl=0.1)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(info.note for infos in client.staged().values() for info in infos):
        assert time.monotonic() < deadline
    assert states(client) == ["prepared"]
    with pytest.raises(DecisionUnavailable, match="nobody can tell whether it was committed"):
        client.abort_tokens([token])
    (tmp_path / "file").unlink()  # the log can be reached again: nothing was decided
    client.abort_tokens([token])


def test_a_stage_does_not_outlive_its_connection(node: ClientNode, client: Client) -> None:
    other = node.connect()
    staged = other.stage("lost")
    staged.push(numbers(1))
    assert states(client) == ["open"]
    other.close()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while states(client):
        assert time.monotonic() < deadline


def test_operators_see_and_end_transactions(node: ClientNode, client: Client, tmp_path: Path) -> None:
    before = sorted(visible(client))
    log = Decisions(str(tmp_path / "decisions"))
    lost = stage(client, "op-lost", 70, decisions=log.location)
    kept = stage(client, "op-kept", 71)
    run_dir = ("--run-dir", str(node.directories.run))
    listed = run_here("transactions", "list", *run_dir)
    assert listed.returncode == 0, listed.stderr
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["TRANSACTION", "op-lost", "op-kept"]
    found = json.loads(run_here("transactions", "list", "--json", *run_dir).stdout)["stages"]
    assert [(each["transaction"], each["state"], each["bundles"]) for each in found] == [
        ("op-lost", "prepared", 1),
        ("op-kept", "prepared", 1),
    ]
    wait_until(lambda: "transactions: 2 staged, " in run_here("status", *run_dir).stdout, "status to show the stages")
    undecided = run_here("transactions", "publish", "op-kept", *run_dir)
    assert undecided.returncode == 2
    assert "was not committed" in undecided.stderr
    assert run_here("transactions", "drop", "op-lost", "--yes", *run_dir).returncode == 0
    with pytest.raises(TransactionAborted):
        log.commit("op-lost", 0, [lost])
    client.decide("op-kept", 0, [kept])
    assert "cannot be dropped" in run_here("transactions", "drop", "op-kept", "--yes", *run_dir).stderr
    assert run_here("transactions", "publish", "op-kept", *run_dir).returncode == 0
    assert sorted(visible(client)) == sorted([*before, 71])
    assert run_here("transactions", "list", *run_dir).stdout == "nothing is staged\n"


def test_nobody_drops_what_was_committed_and_is_not_published_yet(client: Client) -> None:
    """An operator's drop, a late abort, a publisher that knows of one winner only: `publish` then raised TransactionLost."""
    first, second = stage(client, "kept", 1), stage(client, "kept", 2, partition=1)
    loser = stage(client, "kept", 3, partition=1, attempt=1)
    client.decide("kept", 0, [first, second])
    for token in (first, second):
        with pytest.raises(TransactionDecided, match="was committed by transaction 'kept'"):
            client.abort_tokens([token])
        with pytest.raises(TransactionDecided):
            client.drop_stages(
                token.topic, token.core, token.incarnation, [token.number, loser.number], "by an operator"
            )
    client.publish([first], drop_others=True)
    client.publish([first, second], drop_others=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while states(client):
        assert time.monotonic() < deadline, states(client)
    assert {1, 2} <= set(visible(client))
    with pytest.raises(TransactionLost):
        client.publish([loser])


def test_what_a_decision_log_does_not_tell_about_is_kept(client: Client, tmp_path: Path) -> None:
    log = tmp_path / "decisions"
    log.mkdir()
    token = stage(client, "untold", 1, decisions=str(log))
    (log / "untold.0.json").write_text("not a decision")
    with pytest.raises(DecisionUnavailable, match="is kept"):
        client.abort_tokens([token])
    client.publish([token])
