"""Objects that are to be deleted: however many they are, the head that names them stays small, and all of them go."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from quiver_actors.archive import garbage, upkeep
from quiver_actors.archive.garbage import LIST_KEYS, next_turn, shortened
from quiver_actors.archive.keys import StreamKey, crc_key, pack_key, part_key, segment_key, staged_key, state_key
from quiver_actors.archive.manifest import encode
from quiver_actors.archive.manifest_store import ManifestWriter
from quiver_actors.archive.merging import Merging
from quiver_actors.archive.uploads import Throttle
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore
from tests.support.faulty_objects import FaultyStore
from tests.unit.archive.test_manifest_store import an_owner

STREAM = StreamKey("topic", "17", 0)
FEW = 4


@pytest.fixture(autouse=True)
def _short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LIST_KEYS", FEW)


def put_all(store: ObjectStore, keys: list[str]) -> None:
    for key in keys:
        store.put(key, [b"x"], 1)


def own(store: ObjectStore) -> ManifestWriter:
    return ManifestWriter.own(store, "node", an_owner(), None)


def some_keys() -> list[str]:
    segment = segment_key("node", STREAM, 5, 0)
    return [
        *(part_key("node", number, "00000000") for number in range(3 * FEW)),
        state_key("node", 7, "00000000"),
        segment,
        crc_key(segment),
    ]


def test_the_head_names_few_and_all_are_deleted(store: ObjectStore) -> None:
    writer, keys = own(store), some_keys()
    put_all(store, keys)
    for key in keys:
        writer.release(key)
    assert len(writer.head.garbage) <= FEW + len(keys) // FEW
    before = len(writer.head.garbage)
    while turn := next_turn(writer.head.garbage, frozenset(writer.head.garbage)):
        assert 0 < writer.collect_garbage(turn) <= FEW
    assert before > 3
    assert [info.key for info in store.objects("node")] == ["node/manifest.head"]


def test_the_archiver_deletes_in_turns_what_was_named_by_no_head_for_two_looks(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "UPKEEP_NS", 0)
    writer, keys = own(store), some_keys()
    put_all(store, keys)
    for key in keys:
        writer.release(key)
    keeper = upkeep.Upkeep(store, Merging(store, "node", 0, Throttle(0, print), print))
    left = []
    while writer.head.garbage:
        keeper.advance(writer, {})
        left.append(len([info for info in store.objects("node") if info.key in keys]))
    keeper.close()
    assert left[:2] == [len(keys)] * 2, "readers of a former head have the time between two looks"
    assert all(before - after <= FEW for before, after in pairwise(left))
    assert left[-1] == 0


def test_keys_that_may_come_back_are_in_no_list(store: ObjectStore) -> None:
    keys = [pack_key("node", STREAM, number, number + 1, 7) for number in range(2 * FEW)]
    keys += [staged_key("node", STREAM, number, 0, 7) for number in range(2 * FEW)]
    assert shortened(store, "node", 3, keys) == tuple(keys)


def test_a_head_whose_answer_is_lost_makes_the_same_list_again(store: ObjectStore) -> None:
    assert shortened(store, "node", 3, some_keys()) == shortened(store, "node", 3, some_keys())


@pytest.mark.parametrize("at", range(FEW))
def test_a_deletion_that_fails_is_made_again(store: ObjectStore, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "REQUESTS_AT_ONCE", 1)
    keys = some_keys()[:FEW]
    put_all(store, keys)
    named = shortened(store, "node", 3, keys)
    assert len(named) == 1
    with pytest.raises(ArchiveUnavailable):
        garbage.delete(FaultyStore(store, at), named)
    garbage.delete(store, named)
    assert list(store.objects("node")) == []


def test_a_list_that_is_damaged_deletes_nothing_but_itself(store: ObjectStore) -> None:
    keys = some_keys()[:FEW]
    put_all(store, keys)
    (named,) = shortened(store, "node", 3, keys)
    store.put(named, [b"node/manifest.head\n"], 19)
    garbage.delete(store, [named])
    assert sorted(info.key for info in store.objects("node")) == sorted(keys)


def test_an_hour_of_commits_leaves_a_small_head(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four commits a second leave as many keys: 14,400 of them made a head of a megabyte, which each commit read and replaced."""
    monkeypatch.setattr(garbage, "LIST_KEYS", LIST_KEYS)
    writer = own(store)
    hour = tuple(part_key("node", number, "00000000") for number in range(14_400))
    writer.release(hour[0])
    head = writer.head
    named = shortened(store, "node", head.commit + 1, hour)
    assert len(encode(head)) + sum(map(len, named)) < 32_000 < sum(map(len, hour))
