"""A worker's view of the list of topics: the newest that could be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.topics import Catalogue, Deletion, Topic
from quiver_actors.errors import InvalidFormat
from quiver_actors.node.topics.catalogue import write_catalogue
from quiver_actors.node.worker.catalogue_watch import CatalogueWatch
from quiver_actors.node.worker.journal import Journal
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.topic_list import CATALOGUE_NAME, PREVIOUS_NAME


def catalogue(version: int) -> Catalogue:
    return Catalogue(version=version, topics={"a": Topic(settings=TopicSettings(name="a"))}, arena_bytes=version << 20)


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(str(tmp_path))


def watch_of(disk: PosixDisk, path: Path) -> CatalogueWatch:
    return CatalogueWatch(disk, str(path), Journal(0))


def test_without_a_catalogue_there_is_version_0(disk: PosixDisk, tmp_path: Path) -> None:
    watch = watch_of(disk, tmp_path)
    watch.read()
    assert (watch.version, watch.arena_bytes, watch.newest) == (0, 0, None)


def test_a_new_catalogue_is_read_and_holds_after_it_is_gone(disk: PosixDisk, tmp_path: Path) -> None:
    watch = watch_of(disk, tmp_path)
    watch.read()
    write_catalogue(disk, catalogue(1))
    watch.look()
    assert (watch.version, watch.arena_bytes) == (1, 1 << 20)
    (tmp_path / CATALOGUE_NAME).unlink()
    watch.look()
    assert watch.version == 1


def test_one_that_cannot_be_read_is_reported_and_the_former_holds(disk: PosixDisk, tmp_path: Path) -> None:
    journal = Journal(0)
    watch = CatalogueWatch(disk, str(tmp_path), journal)
    write_catalogue(disk, catalogue(1))
    watch.look()
    for name in (CATALOGUE_NAME, PREVIOUS_NAME):
        (tmp_path / name).write_bytes(b"damaged")
    watch.look()
    watch.look()
    assert (watch.version, journal.error_count) == (1, 1)
    with pytest.raises(InvalidFormat):
        watch_of(disk, tmp_path).read()


def test_a_topic_is_being_deleted_while_its_deletion_is_listed(disk: PosixDisk, tmp_path: Path) -> None:
    watch = watch_of(disk, tmp_path)
    listed = catalogue(1)
    listed.deletions.append(Deletion(topic="gone", incarnation="x", asked_unix_ns=1))
    write_catalogue(disk, listed)
    watch.look()
    assert watch.is_being_deleted("gone")
    assert not watch.is_being_deleted("a")
