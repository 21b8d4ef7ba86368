"""Old segments leave the manifest in their order, and the store only after that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver_actors.archive.expiry import UnhurriedClock, expire_stream
from quiver_actors.archive.keys import crc_key
from quiver_actors.archive.manifest import key_of
from quiver_actors.archive.manifest_store import Addition, ManifestWriter
from quiver_actors.archive.merging import Merging
from quiver_actors.archive.upkeep import Upkeep
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.config import ArchiveSettings, TopicSettings
from quiver_actors.cli.main import main
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectInfo, ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.support.engine_driver import ManualClock
from tests.support.faulty_objects import FaultyStore
from tests.unit.archive.test_manifest_store import STREAM, a_hole, a_segment, own, rows

EXPIRE_NS = 10**18
NOW_NS = EXPIRE_NS + 35
"""Half of the segments of `filled` are over age then."""


def filled(store: ObjectStore) -> ManifestWriter:
    """Segments 0 to 5 in three parts, each with its two objects; segment n was ingested from 10 n to 10 n + 9."""
    writer = own(store)
    for first in (0, 2, 4):
        segments = [a_segment(first), a_segment(first + 1)]
        for segment in segments:
            key = key_of("node", STREAM, segment)
            store.put(key, [b"content"], 7)
            store.put(crc_key(key), [b"sums"], 4)
        writer.commit({STREAM: Addition(segments, [a_hole(3)] if first == 2 else [], first + 1)})
    return writer


def objects(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.objects("node/topic"))


@pytest.mark.parametrize(("before", "left"), [(0, 6), (9, 6), (10, 5), (20, 4), (35, 3), (45, 2), (1000, 0)])
def test_segments_over_age_go_in_their_order(store: ObjectStore, before: int, left: int) -> None:
    writer = filled(store)
    assert expire_stream(store, writer, writer.head.streams[0], before) == 6 - left
    assert rows(store)[0] == list(range(6 - left, 6))
    assert len(objects(store)) == 12, "nothing is deleted in the store before it has left the manifest"
    assert writer.head.streams[0].expired_through == (5 - left if left < 6 else -1)
    assert writer.head.streams[0].archived_through == 5
    writer.collect_garbage(writer.head.garbage)
    wanted = [key_of("node", STREAM, a_segment(number)) for number in range(6 - left, 6)]
    assert objects(store) == sorted([*wanted, *map(crc_key, wanted)])
    assert rows(store)[0] == list(range(6 - left, 6))


def test_what_is_archived_after_that_goes_behind_it(store: ObjectStore) -> None:
    writer = filled(store)
    expire_stream(store, writer, writer.head.streams[0], 35)
    writer.commit({STREAM: Addition([a_segment(6)], [], 6)})
    assert rows(store)[0] == [3, 4, 5, 6]
    assert expire_stream(store, writer, writer.head.streams[0], 35) == 0


def test_what_the_archiver_has_changed_since_the_manifest_was_read_is_neither_named_twice_nor_lost(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quiver_actors.archive.manifest_store.SMALL_PARTS_MAX", 3)
    writer = filled(store)
    (before,) = writer.head.streams
    writer.commit({STREAM: Addition([a_segment(6)], [], 6)})  # all of its parts are one by now
    assert expire_stream(store, writer, before, 20) == 2
    assert rows(store)[0] == [2, 3, 4, 5, 6]
    (ref,) = writer.head.streams[0].parts
    with pytest.raises(ArchiveUnavailable, match="changed since it was read"):
        writer.expire(STREAM, before.parts[:1], None, 5, [])
    assert (writer.head.streams[0].parts, rows(store)[0]) == ((ref,), [2, 3, 4, 5, 6])


class StoreWithAClock(FaultyStore):
    """A store that says when its objects were written."""

    def head(self, key: str) -> ObjectInfo | None:
        found = super().head(key)
        return None if found is None else found._replace(modified_unix_ns=NOW_NS)


@pytest.mark.parametrize(("wrong_by_ns", "left"), [(-EXPIRE_NS, 6), (0, 3), (EXPIRE_NS, 3)])
def test_a_machine_that_starts_with_a_clock_that_is_ahead_expires_nothing_for_it(
    store: ObjectStore, wrong_by_ns: int, left: int
) -> None:
    clocked, wall = StoreWithAClock(store), ManualClock(NOW_NS)
    wall.wrong_by_ns = wrong_by_ns
    writer = filled(store)
    upkeep = Upkeep(clocked, Merging(store, "node", 0, Throttle(0, print), print), wall)
    settings = TopicSettings(archive=ArchiveSettings(expire_ns=EXPIRE_NS))
    upkeep.advance(writer, {STREAM.topic: settings})
    upkeep.close()
    assert len(rows(store)[0]) == left


def test_a_clock_that_is_set_ahead_expires_nothing_and_one_that_is_set_back_keeps_more() -> None:
    wall = ManualClock(1000)
    clock = UnhurriedClock(wall)
    wall.wrong_by_ns = 10**18
    wall.advance(5)
    assert clock.unix_ns() == 1005
    wall.wrong_by_ns = -100
    assert clock.unix_ns() == 905


def test_the_command_shows_and_does_it_beside_a_running_archiver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(f"file://{tmp_path}/objects")
    writer = filled(store)
    command = ["archive", "expire", "--archive", store.url, "--node", "node", "--older-than", "30d", "--json"]
    for mode, left in (("--dry-run", 6), ("--yes", 0)):
        assert main([*command, mode]) == 0
        (row,) = json.loads(capsys.readouterr().out)["streams"]
        assert row["segments"] == 6
        assert len(rows(store)[0]) == left
    # The archiver's next commit finds that the head has moved, and the one after it goes on from there.
    with pytest.raises(ArchiveUnavailable):
        writer.commit({STREAM: Addition([a_segment(6)], [], 6)})
    writer.commit({STREAM: Addition([a_segment(6)], [], 6)})
    assert rows(store)[0] == [6]
    assert main([*command, "--yes", "--topic", "no"]) == 2
    store.close()
