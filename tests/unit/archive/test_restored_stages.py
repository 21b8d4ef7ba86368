"""Prepared stages in a restored directory: they may be published as before, or are lost, named, and their transactions aborted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import quiver_actors
from quiver_actors.archive.node_state import PreparedStage
from quiver_actors.embedded import Store
from quiver_actors.errors import (
    TransactionAborted,
    TransactionLost,
)
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import PreparedRecord, decode_prepared, encode_prepared
from quiver_actors.transactions import Decisions, Token
from tests.disks.simulated import SimDisk
from tests.support.restorable import (
    put_state,
    run,
    state_in,
    store_on,
    tree,
)


def staged_path(objects: SimDisk) -> str:
    (path,) = [path for path in tree(objects) if path.endswith(".stage")]
    return path


def stage_in(store: ObjectStore) -> PreparedStage:
    (engine,) = state_in(store).engines
    (stage,) = engine.prepared
    return stage


def test_a_prepared_stage_comes_back_and_may_be_published_as_often_as_before(objects: SimDisk, tmp_path: Path) -> None:
    record = decode_prepared(stage_in(store_on(objects)).record)
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert restored.lost_stages == []
    token = token_of(record)
    with quiver_actors.open(data) as store:
        assert [each.state for each in store.staged()[0]] == ["prepared"]
        store.publish([token])
        store.publish([token])
    with quiver_actors.open(data) as store:
        store.publish([token])
        assert last_ids(store) == [50, 60]
        with pytest.raises(TransactionLost, match="too old"):
            store.publish([msgspec.structs.replace(token, number=token.number + 1)])


def last_ids(store: Store) -> list[int]:
    """The first value of each bundle of the last segment."""
    last = store.segments()[0][-1]
    segment = store.read_segment(0, "default", last.segment_seq)
    return [segment.bundle(index)[0].column("id")[0].as_py() for index in range(last.bundle_count)]


def token_of(record: PreparedRecord) -> Token:
    order, (part,) = record.order, record.parts
    return Token(
        txn_id=order.txn_id,
        epoch=order.epoch,
        partition=order.partition,
        attempt=order.attempt,
        number=record.number,
        expires_unix_ns=record.expires_unix_ns,
        node="",
        topic="default",
        core=0,
        incarnation=record.incarnation.hex(),
        bundles=part.bundles,
        rows=part.rows,
        size_bytes=part.size_bytes,
    )


@pytest.mark.parametrize("damage", ["missing", "changed", "cut"])
def test_a_stage_that_is_damaged_in_the_archive_is_lost_and_its_transaction_aborted(
    objects: SimDisk, tmp_path: Path, damage: str
) -> None:
    path = staged_path(objects)
    if damage == "missing":
        objects.unlink(path)
    else:
        file = objects.open_write(path)
        file.write([b"?"], 500) if damage == "changed" else file.truncate(400)
        file.close()
    record = decode_prepared(stage_in(store_on(objects)).record)
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert [(each.stage.number, each.outcome) for each in restored.lost_stages] == [(record.number, "abort")]
    with quiver_actors.open(data) as store:
        assert not any(store.staged().values())
        with pytest.raises(TransactionAborted, match="by quiver restore"):
            store.decide("txn", record.order.epoch, [token_of(record)])
        with pytest.raises(TransactionLost, match="in the archive"):
            store.publish([token_of(record)])


@pytest.mark.parametrize("is_committed", [True, False])
def test_the_log_of_the_decision_is_asked_about_a_lost_stage(
    objects: SimDisk, tmp_path: Path, is_committed: bool
) -> None:
    stage = stage_in(store_on(objects))
    record = decode_prepared(stage.record)
    log = Decisions(str(tmp_path / "log"))
    order = msgspec.structs.replace(record.order, decisions=log.location)
    record = msgspec.structs.replace(record, order=order)
    if is_committed:
        log.commit("txn", 0, [token_of(record)])
    lost = msgspec.structs.replace(stage, record=encode_prepared(record), is_archived=False)
    put_state(store_on(objects), {"prepared": (lost,)})
    restored = run(SimDisk(), store_on(objects))
    assert [each.outcome for each in restored.lost_stages] == ["commit" if is_committed else "abort"]
    found = log.newest("txn")
    assert found is not None
    assert found.is_commit is is_committed


def test_a_log_that_cannot_be_asked_is_told(objects: SimDisk) -> None:
    stage = stage_in(store_on(objects))
    record = decode_prepared(stage.record)
    order = msgspec.structs.replace(record.order, decisions="/dev/null/log")
    record = msgspec.structs.replace(record, order=order)
    put_state(
        store_on(objects),
        {"prepared": (msgspec.structs.replace(stage, record=encode_prepared(record), is_archived=False),)},
    )
    (lost,) = run(SimDisk(), store_on(objects)).lost_stages
    assert "/dev/null/log cannot be used" in lost.outcome
