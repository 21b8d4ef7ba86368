"""A data directory and its archive: starts, kills between the two records, copies, and stores without conditional puts."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from quiver_actors.archive.keys import head_key
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload, read_head
from quiver_actors.archive.ownership import RECORD_FILE, become_owner, read_record, take_over
from quiver_actors.errors import ConfigError, InvalidFormat
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.errors import ArchiveFenced, ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import check_url, open_store
from quiver_actors.store.objects.single_writer import SingleWriterStore
from tests.support.faulty_objects import FAULTS, FaultyStore, UnconditionalStore


def own(place: Path, store: ObjectStore) -> ManifestWriter:
    disk = PosixDisk(str(place))
    try:
        return become_owner(disk, store, "node")
    finally:
        disk.close()


def test_each_start_takes_the_next_epoch_and_fences_the_one_before(store: ObjectStore, tmp_path: Path) -> None:
    first = own(tmp_path, store)
    second = own(tmp_path, store)
    assert (first.head.owner.epoch, second.head.owner.epoch) == (1, 2)
    assert first.head.owner.directory == second.head.owner.directory
    with pytest.raises(ArchiveFenced):
        first.check_owner()
    second.check_owner()


def test_of_a_directory_and_its_copy_the_later_start_is_the_owner(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    own(tmp_path / "a", store)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    copy = own(tmp_path / "b", store)
    for _ in range(2):
        with pytest.raises(ArchiveFenced, match="take-over"):
            own(tmp_path / "a", store)
    copy.check_owner()
    disk = PosixDisk(str(tmp_path / "a"))
    owner = take_over(disk, store, "node")
    disk.close()
    assert owner == copy.head.owner
    assert own(tmp_path / "a", store).head.owner.epoch == 3
    with pytest.raises(ArchiveFenced):
        own(tmp_path / "b", store)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(9))
def test_a_start_that_fails_anywhere_is_made_again(store: ObjectStore, tmp_path: Path, at: int, fault: str) -> None:
    own(tmp_path, store)
    with contextlib.suppress(ArchiveUnavailable):
        own(tmp_path, FaultyStore(store, at, fault))
    own(tmp_path, store).check_owner()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(13))
def test_so_is_the_very_first_one(store: ObjectStore, tmp_path: Path, at: int, fault: str) -> None:
    with contextlib.suppress(ArchiveUnavailable):
        own(tmp_path, FaultyStore(store, at, fault))
    own(tmp_path, store).check_owner()


def test_a_store_that_ignores_conditions_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    with pytest.raises(ArchiveRefused, match=r"If-None-Match.*archive\.single_writer"):
        own(tmp_path, UnconditionalStore(store))
    assert list(store.objects("")) == []


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("at", range(-1, 15))
def test_its_only_writer_may_use_it_and_what_fails_is_made_again(
    store: ObjectStore, tmp_path: Path, at: int, fault: str
) -> None:
    with contextlib.suppress(ArchiveUnavailable):
        own(tmp_path, SingleWriterStore(FaultyStore(UnconditionalStore(store), at, fault)))
    first = own(tmp_path, SingleWriterStore(UnconditionalStore(store)))
    first.check_owner()
    second = own(tmp_path, SingleWriterStore(UnconditionalStore(store)))
    with pytest.raises(ArchiveFenced):
        first.hand_over(first.head.owner)
    second.check_owner()


def test_a_damaged_record_is_told(tmp_path: Path) -> None:
    (tmp_path / RECORD_FILE).write_bytes(b"nonsense")
    disk = PosixDisk(str(tmp_path))
    with pytest.raises(InvalidFormat, match=RECORD_FILE):
        read_record(disk)
    disk.close()


def test_a_slash_at_the_end_of_the_url_names_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for epoch, url in enumerate((f"file://{tmp_path}/objects/", f"file://{tmp_path}/objects"), start=1):
        opened = open_store(url)
        assert own(tmp_path / "data", opened).head.owner.epoch == epoch
        opened.close()
    disk = PosixDisk(str(tmp_path / "data"))
    assert len(read_record(disk).places) == 1
    disk.close()


def test_what_a_file_system_has_in_its_root_is_no_node(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0)
    opened = open_store(f"file://{tmp_path}")
    opened.create("node/a", b"content")
    assert opened.directories("") == ["node"]
    assert [info.key for info in opened.objects("")] == ["node/a"]
    opened.close()


def test_a_head_that_is_gone_is_told_as_such(store: ObjectStore, tmp_path: Path) -> None:
    writer = own(tmp_path, store)
    store.delete("node/manifest.head")
    for call in (writer.check_owner, lambda: own(tmp_path, store)):
        with pytest.raises(ArchiveFenced, match=r"node/manifest\.head, is gone"):
            call()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "bucket/prefix",
        "ftp://host/x",
        "file://relative/path",
        "file:x",
        "s3://key:secret@bucket/prefix",
        "file:///srv/run#1/archive",
        "file:///srv/what?/archive",
        "az://container/prefix?sig=secret",
        "s3://bucket:9000/prefix",
    ],
)
def test_urls_that_name_no_archive_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"archive\.url") as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


def test_a_new_directory_begins_no_archive_where_one_has_lost_its_head(store: ObjectStore, tmp_path: Path) -> None:
    """It would hide what only the former one has."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = own(tmp_path / "a", store)
    for taken_unix_ns in (1, 2):
        first.record_state(StateUpload(b"state", taken_unix_ns))
    store.delete(head_key("node"))
    for place in ("a", "b"):
        with pytest.raises(ArchiveFenced, match="quiver archive repair"):
            own(tmp_path / place, store)
    disk = PosixDisk(str(tmp_path / "b"))
    assert take_over(disk, store, "node") is None
    disk.close()
    head = own(tmp_path / "b", store).head
    assert head.commit > first.head.commit, "what is written now is newer than all that lies there"
    own(tmp_path / "b", store).check_owner()


@pytest.mark.parametrize(
    "url",
    [
        "FILE:///srv/archive",
        "S3://bucket/prefix",
        " file:///srv",
        "file:///srv\n",
        "file:///a%00b",
        "s3://[x/",
        "s3://b/\ud800",
    ],
)
def test_a_url_that_others_would_read_as_another_one_is_refused(url: str) -> None:
    """FILE: was taken by a store of the library below, which does not sync."""
    with pytest.raises(ConfigError, match=r"archive\.url"):
        check_url(url)


def test_another_spelling_of_the_url_names_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number, name in enumerate(("a b", "a%20b", "a%20b/")):
        store = open_store(f"file://{tmp_path}/{name}")
        assert own(tmp_path / "data", store).head.owner.epoch == number + 1
        store.close()


def test_an_earlier_head_that_was_put_back_is_replaced_by_its_writer_and_refused_to_a_later_start(
    store: ObjectStore, tmp_path: Path
) -> None:
    """What later heads have named would be lost, and count as archived."""
    writer = own(tmp_path, store)
    writer.record_state(StateUpload(b"first", 1))
    earlier = store.get(head_key("node"))
    assert earlier is not None
    for taken_unix_ns in (2, 3, 4):
        writer.record_state(StateUpload(b"later", taken_unix_ns))
    known = writer.head
    store.put(head_key("node"), [earlier.content], len(earlier.content))
    with pytest.raises(ArchiveRefused, match="quiver archive repair"):
        own(tmp_path, store)
    with contextlib.suppress(ArchiveUnavailable):
        writer.release("node/x")
    writer.check_owner()
    writer.release("node/y")
    assert (writer.head.commit, writer.head.state) == (known.commit + 1, known.state)
    assert read_head(store, "node") == writer.head
    own(tmp_path, store).check_owner()
