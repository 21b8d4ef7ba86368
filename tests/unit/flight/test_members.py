"""The directory of nodes: who is listed while others come and go, and what leaving a wrong one says."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from quiver_actors.errors import DiskError
from quiver_actors.flight.member_entries import FileEntries, StoreEntries
from quiver_actors.flight.members import Member, MemberDirectory
from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import Found, ObjectStore, Version
from quiver_actors.store.objects.opening import open_store
from quiver_actors.store.objects.patience import Patience
from tests.support.faulty_objects import FAULTS, FaultyStore
from tests.support.object_store import object_store


class LeavingMeanwhile:
    """A file system on which an entry goes between its listing and its reading."""

    def __init__(self, files: fs.FileSystem, leaving: str) -> None:
        self._files = files
        self._leaving = leaving

    def get_file_info(self, wanted: Any) -> Any:
        return self._files.get_file_info(wanted)

    def open_input_file(self, path: str) -> Any:
        if Path(path).name == self._leaving:
            self._files.delete_file(path)
        return self._files.open_input_file(path)


class LeavingObjects(FaultyStore):
    """A store in which an entry goes between its listing and its reading."""

    def get(self, key: str) -> Found | None:
        if key == "node-a.json":
            self.inner.delete(key)
        return self.inner.get(key)


def memory() -> ObjectStore:
    return open_store(f"memory://{uuid.uuid4().hex}")


def test_a_node_that_leaves_while_the_directory_is_read_is_out(tmp_path: Path) -> None:
    leaving: Any = LeavingMeanwhile(fs.LocalFileSystem(), "node-a.json")
    store = memory()
    for entries, while_leaving in (
        (FileEntries(fs.LocalFileSystem(), str(tmp_path)), FileEntries(leaving, str(tmp_path))),
        (StoreEntries(store), StoreEntries(LeavingObjects(store))),
    ):
        for name in ("node-a", "node-b"):
            MemberDirectory("nodes", entries=entries).announce(Member(name, "grpc://127.0.0.1:1"))
        assert list(MemberDirectory("nodes", entries=while_leaving).members()) == ["node-b"]


CALLS = 12
"""Fewest calls of announcing a node twice, listing it, and its leaving."""


@pytest.mark.parametrize("fault", FAULTS)
def test_an_entry_is_whole_and_the_newest_whatever_call_fails(fault: str) -> None:
    for number in range(CALLS):
        faulty = FaultyStore(memory(), number, fault)
        directory = MemberDirectory("nodes", entries=StoreEntries(faulty, patience=Patience(60, 0, 0)))
        for location in ("grpc://127.0.0.1:1", "grpc://127.0.0.1:2"):
            directory.announce(Member("node-a", location))
        assert [member.location for member in directory.members().values()] == ["grpc://127.0.0.1:2"]
        directory.leave("node-a")
        assert directory.members() == {}
        assert len(faulty.calls) >= CALLS


def test_of_two_nodes_of_one_name_that_announce_at_once_one_comes_after_the_other() -> None:
    store = memory()
    other = MemberDirectory("nodes", entries=StoreEntries(store))

    class Overtaken(FaultyStore):
        """A store in which the other node comes between the look at the entry and its replacement."""

        def replace(self, key: str, content: bytes, version: Version) -> Version:
            if not self.calls:
                self.calls.append("overtaken")
                other.announce(Member("node-a", "grpc://other:1"))
            return self.inner.replace(key, content, version)

        def create(self, key: str, content: bytes) -> Version:
            return self.inner.create(key, content)

        def get(self, key: str) -> Found | None:
            return self.inner.get(key)

    other.announce(Member("node-a", "grpc://other:0"))
    overtaken = Overtaken(store)
    MemberDirectory("nodes", entries=StoreEntries(overtaken)).announce(Member("node-a", "grpc://last:1"))
    assert overtaken.calls == ["overtaken"]
    assert other.members()["node-a"].location == "grpc://last:1"


def test_a_store_that_does_not_answer_is_told_and_nobody_is_out_of_the_list() -> None:
    store = memory()
    MemberDirectory("nodes", entries=StoreEntries(store)).announce(Member("node-a", "grpc://127.0.0.1:1"))
    for at in (0, 1):
        directory = MemberDirectory("nodes", entries=StoreEntries(FaultyStore(store, at), patience=Patience(0, 0, 0)))
        with pytest.raises(ArchiveUnavailable, match="was not answered"):
            directory.members()
        assert list(directory.members()) == ["node-a"]


def test_nodes_find_each_other_whether_they_name_a_bucket_by_url_or_for_arrow() -> None:
    with object_store() as server:
        by_url, by_arrow = MemberDirectory(server.url("nodes")), MemberDirectory(server.uri("nodes", "s3a"))
        by_arrow.announce(Member("node-a", "grpc://a:1"))
        by_url.announce(Member("node-b", "grpc://b:1"))
        assert list(by_url.members()) == list(by_arrow.members()) == ["node-a", "node-b"]
        by_url.leave("node-a")
        by_arrow.leave("node-b")
        by_url.leave("node-b")
        assert by_url.members() == by_arrow.members() == {}
        with pytest.raises(DiskError, match="there is no such directory of nodes"):
            MemberDirectory(server.url("misspelt")).leave("node-a")


def test_leaving_twice_is_fine_and_leaving_what_is_no_directory_is_not(tmp_path: Path) -> None:
    """`quiver drain --leave --nodes /misspelt` ended the node, said that all was well, and left it listed where it was."""
    directory = MemberDirectory(str(tmp_path))
    directory.announce(Member("node-a", "grpc://127.0.0.1:1"))
    directory.leave("node-a")
    directory.leave("node-a")
    assert directory.members() == {}
    with pytest.raises(DiskError, match="there is no such directory of nodes"):
        MemberDirectory(str(tmp_path / "misspelt")).leave("node-a")
