"""Which thread of a store's process syncs a push, and how many pushes share a sync."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.embedded import Store
from quiver_actors.errors import InvalidBundle
from tests.unit.embedded.batches import PATIENCE_SECONDS, numbered, stored, until


class Syncs:
    """The syncs of pushes in this process: which thread made each. While the gate is closed they wait."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        """Names of threads, in order. The thread that seals syncs other files, and is left out."""
        self.gate = threading.Event()
        self.gate.set()

    def fdatasync(self, descriptor: int, call: object = os.fdatasync) -> None:
        thread = threading.current_thread().name
        if thread != "quiver-seal":
            self.threads.append(thread)
            assert self.gate.wait(PATIENCE_SECONDS)
        call(descriptor)  # type: ignore[operator]


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    made = Syncs()
    monkeypatch.setattr(os, "fdatasync", made.fdatasync)
    return made


@pytest.fixture
def store(tmp_path: Path, syncs: Syncs) -> Iterator[Store]:
    with quiver_actors.open(tmp_path / "data") as opened:
        opened.push(numbered(0))
        syncs.threads.clear()
        yield opened
        syncs.gate.set()


def test_a_lone_push_syncs_once_in_the_thread_that_calls(store: Store, syncs: Syncs) -> None:
    own = threading.current_thread().name
    for number in range(1, 20):
        store.push(numbered(number))
    store.push({0: numbered(20), 1: numbered(20)})
    assert syncs.threads == [own] * 20


def test_a_group_that_is_pushed_at_once_is_synced_once_in_the_thread_that_calls(store: Store, syncs: Syncs) -> None:
    own = threading.current_thread().name
    receipts = [*store.push_many([numbered(number) for number in range(1, 40)])]
    receipts += store.push_many([{0: numbered(40)}, numbered(41)])
    assert syncs.threads == [own] * 2
    assert [receipt.sequence for receipt in receipts] == [*range(receipts[0].sequence, receipts[0].sequence + 41)]
    assert len({receipt.bundle_id for receipt in receipts}) == 41
    assert stored(store) == [*range(42)]


def test_bundles_in_front_of_a_wrong_one_are_stored(store: Store) -> None:
    with pytest.raises(InvalidBundle) as caught:
        store.push_many([numbered(1), numbered(2), 7, numbered(3)])
    assert "bundle 2 of this push_many" in str(caught.value.__notes__)
    assert stored(store) == [0, 1, 2]


def test_bundles_that_need_several_groups_are_all_stored(store: Store) -> None:
    assert len(store.push_many([])) == 0
    assert len(store.push_many([numbered(number) for number in range(1, 200)])) == 199
    assert stored(store) == [*range(200)]


def test_pushes_that_come_during_a_sync_share_the_next_one(store: Store, syncs: Syncs) -> None:
    worker = store._node.drive.worker
    host = worker.topic_host("default") if worker is not None else None
    assert host is not None
    intake = host.engine.intake
    bundles_before = intake.bundles_in
    pushers = [
        threading.Thread(target=store.push, args=(numbered(number),), name=f"pusher-{number}") for number in range(1, 9)
    ]
    syncs.gate.clear()
    try:
        pushers[0].start()
        until(lambda: syncs.threads == ["pusher-1"], "the first sync")
        for pusher in pushers[1:]:
            pusher.start()
        until(lambda: intake.bundles_in == bundles_before + len(pushers), "the other pushes")
        assert syncs.threads == ["pusher-1"], "nobody else syncs meanwhile"
    finally:
        syncs.gate.set()
        for pusher in pushers:
            pusher.join()
    assert len(syncs.threads) == 2, "seven pushes, one sync"
    assert sorted(stored(store)) == list(range(9))
