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
from quiver_actors.store.files.paths import TRANSACTIONS_NAME
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import (
    JournalRecord,
    PreparedRecord,
    PublishedRecord,
    decode_prepared,
    encode_journal,
    encode_prepared,
)
from quiver_actors.transactions import Decisions, Token
from tests.disks.faulty import FaultyDisk, SimulatedCrash
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
        with pytest.raises(TransactionLost, match="of the node that died"):
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


# --- stages that were published before the node died -----------------------------------------------------------------------


def put_journal(store: ObjectStore, *published: tuple[int, int, int]) -> None:
    """Let the state say where stages were published: number, first and last segment. Segments up to 2 are archived."""
    (engine,) = state_in(store).engines
    journal = JournalRecord(100, published=[PublishedRecord(*each) for each in published])
    put_state(store, {"files": {**engine.files, TRANSACTIONS_NAME: encode_journal(journal)}})


def numbered(token: Token, number: int) -> Token:
    return msgspec.structs.replace(token, number=number)


def test_what_was_published_and_archived_is_published_again_without_an_error(objects: SimDisk, tmp_path: Path) -> None:
    token = token_of(decode_prepared(stage_in(store_on(objects)).record))
    put_journal(store_on(objects), (70, 1, 2), (71, 2, 3), (72, 3, 3))
    data, again = tmp_path / "restored", tmp_path / "again"
    data.mkdir(mode=0o700)
    faulty = FaultyDisk(PosixDisk(str(data)))
    faulty.crash_at(30)
    with pytest.raises(SimulatedCrash):
        run(faulty, store_on(objects))
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert restored.plan.engines[0].lost_publishes == [71, 72]
    again.mkdir(mode=0o700)
    run(PosixDisk(str(again)), store_on(objects))
    for directory in (data, again):
        with quiver_actors.open(directory) as store:
            store.publish([numbered(token, 70)])
            assert numbers_of(store) == [0, 1, 2], "nothing is new"
            for lost in (71, 72):
                with pytest.raises(TransactionLost, match="before all of its bundles were archived"):
                    store.publish([numbered(token, lost)])
            with pytest.raises(TransactionLost, match="of the node that died: its directory was restored"):
                store.publish([numbered(token, 73)])


@pytest.mark.parametrize(("segments", "after"), [((2, 2), "published"), ((2, 3), "lost"), ((3, 4), "prepared")])
def test_a_stage_that_the_state_calls_prepared_and_published_comes_once(
    objects: SimDisk, tmp_path: Path, segments: tuple[int, int], after: str
) -> None:
    record = decode_prepared(stage_in(store_on(objects)).record)
    put_journal(store_on(objects), (record.number, *segments))
    data = tmp_path / "restored"
    data.mkdir(mode=0o700)
    restored = run(PosixDisk(str(data)), store_on(objects))
    assert restored.plan.engines[0].lost_publishes == ([record.number] if after == "lost" else [])
    with quiver_actors.open(data) as store:
        assert [each.state for each in store.staged()[0]] == (["prepared"] if after == "prepared" else [])
        if after == "lost":
            with pytest.raises(TransactionLost, match="was published"):
                store.publish([token_of(record)])
        else:
            store.publish([token_of(record)])
        assert len(numbers_of(store)) == (4 if after == "prepared" else 3)


def numbers_of(store: Store) -> list[int]:
    return [info.segment_seq for info in store.segments()[0]]
