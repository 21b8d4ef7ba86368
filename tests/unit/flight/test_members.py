"""The directory of nodes: who is listed while others come and go, and what leaving a wrong one says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from quiver_actors.errors import DiskError
from quiver_actors.flight.members import Member, MemberDirectory


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


def test_a_node_that_leaves_while_the_directory_is_read_is_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = MemberDirectory(str(tmp_path))
    for name in ("node-a", "node-b"):
        directory.announce(Member(name, "grpc://127.0.0.1:1"))
    monkeypatch.setattr(directory, "_files", LeavingMeanwhile(fs.LocalFileSystem(), "node-a.json"))
    assert list(directory.members()) == ["node-b"]


def test_leaving_twice_is_fine_and_leaving_what_is_no_directory_is_not(tmp_path: Path) -> None:
    """`quiver drain --leave --nodes /misspelt` ended the node, said that all was well, and left it listed where it was."""
    directory = MemberDirectory(str(tmp_path))
    directory.announce(Member("node-a", "grpc://127.0.0.1:1"))
    directory.leave("node-a")
    directory.leave("node-a")
    assert directory.members() == {}
    with pytest.raises(DiskError, match="there is no such directory of nodes"):
        MemberDirectory(str(tmp_path / "misspelt")).leave("node-a")
