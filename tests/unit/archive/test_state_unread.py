"""The state of a node of which a part cannot be read now: what a restore needs of it is what was known last."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Owner
from quiver_actors.archive.manifest_store import ManifestWriter, read_state
from quiver_actors.archive.node_state import EngineState, KnownSegment, decode_state
from quiver_actors.archive.state_keeper import StateKeeper
from quiver_actors.archive.state_reading import engine_directories, take_state
from quiver_actors.archive.topic_archive import Behind, TopicArchive
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.objects.object_store import ObjectStore
from tests.disks.faulty import FaultyDisk
from tests.support.restorable import batch, info
from tests.unit.archive.test_state_keeper import Looked

TOPICS = "sick", "well"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with quiver_actors.open(tmp_path / "data", settings={"topics": {name: {} for name in TOPICS}}) as opened:
        for name in TOPICS:
            opened.subscribe("reader", topic=name, start="earliest").close()
            opened.push(batch(0), topic=name)
            opened.flush(name)
    return tmp_path / "data"


class Node:
    """The keeper of a data directory, and the archive's owner."""

    def __init__(self, disk: Disk, store: ObjectStore) -> None:
        self.disk, self.store = disk, store
        owner = Owner(epoch=1, directory="d", start="s", since_unix_ns=1)
        self.writer = ManifestWriter.own(store, "node", owner, None)
        self._told = {name: self._behind(name) for name in TOPICS}
        self.again()

    def again(self) -> None:
        """Another archiver begins."""
        self.keeper = StateKeeper(self.disk, self.store, 0)
        self.keeper.begin_again(self.writer)

    def keep(self, looked_at: Sequence[str] = TOPICS) -> dict[str, EngineState]:
        """What the archive has of each topic after workers told what they hold of some."""
        behind = {name: self._told[name] if name in looked_at else None for name in TOPICS}
        archives: dict[str, TopicArchive] = {name: Looked(each) for name, each in behind.items()}  # type: ignore[misc]
        self.keeper.keep(self.writer, archives)
        assert self.writer.head.state is not None
        state = decode_state(read_state(self.store, self.writer.head.state))
        assert len({each.directory for each in state.engines}) == len(state.engines)
        return {each.topic: each for each in state.engines}

    def _behind(self, topic: str) -> dict[StreamKey, Behind]:
        engines = take_state(self.disk, "node", engine_directories(self.disk, topic)).engines
        return {StreamKey(topic, each.incarnation, each.core): Behind([], [info(1, 3)], 2) for each in engines}


def test_a_topic_that_no_worker_can_tell_of_keeps_no_other_from_being_uploaded(store: ObjectStore, data: Path) -> None:
    node = Node(PosixDisk(str(data)), store)
    before = node.keep()
    assert before.keys() == {*TOPICS}
    node.again()
    with quiver_actors.open(data) as opened:
        for name in TOPICS:
            opened.subscribe("another", topic=name, start="earliest").close()
    after = node.keep(["well"])
    assert after["sick"] == before["sick"]
    assert after["sick"].unarchived == (KnownSegment(1, 3, False),)
    assert "quiver.sub.another" in after["well"].files
    assert "quiver.sub.another" in node.keep()["sick"].files


def test_a_topic_that_was_never_told_of_is_in_no_state_until_it_is(store: ObjectStore, data: Path) -> None:
    node = Node(PosixDisk(str(data)), store)
    assert node.keep(["well"]).keys() == {"well"}
    assert node.keep().keys() == {*TOPICS}


def test_a_directory_whose_disk_is_not_mounted_stays_in_the_state(store: ObjectStore, data: Path) -> None:
    node = Node(PosixDisk(str(data)), store)
    before = node.keep()
    (data / "sick" / "core_0").rename(data.parent / "unmounted")
    (data / "sick" / "core_0").mkdir()
    assert node.keep()["sick"] == before["sick"]
    (data / "sick" / "core_0").rmdir()
    assert node.keep()["sick"] == before["sick"]
    (data.parent / "unmounted").rename(data / "sick" / "core_0")
    assert node.keep()["sick"].files.keys() == before["sick"].files.keys()


def test_a_topic_that_was_created_anew_gets_nothing_of_the_former_one(store: ObjectStore, data: Path) -> None:
    node = Node(PosixDisk(str(data)), store)
    before = node.keep()
    with quiver_actors.open(data) as opened:
        opened.delete_topic("sick")
        opened.create_topic("sick")
    for path in (data / "sick").glob("core_*"):
        path.rename(data.parent / path.name)
    assert node.keep().keys() == {"well"}
    assert before["sick"].incarnation


def test_what_cannot_be_read_of_one_directory_stops_no_other(store: ObjectStore, data: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(data)))
    node = Node(disk, store)
    before = node.keep()
    with quiver_actors.open(data) as opened:
        opened.subscribe("another", topic="well", start="earliest").close()
    disk.fail("open_read", 1, errno.EIO, then=["open_read"], path_part="sick/core_0/quiver.core")
    after = node.keep()
    assert after["sick"] == before["sick"]
    assert "quiver.sub.another" in after["well"].files
