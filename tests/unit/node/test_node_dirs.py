"""Ownership of a node's data directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.errors import AlreadyRunning, DiskError
from quiver_actors.node import node_dirs


def test_a_holder_with_our_own_number_is_of_another_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message named this very process as the one to stop, without waiting for workers of the other one to be gone."""
    monkeypatch.setattr(node_dirs, "_DYING_WORKERS_SECONDS", 0.0)
    with (
        node_dirs.hold_data_dir(str(tmp_path)),
        pytest.raises(AlreadyRunning, match="another container"),
        node_dirs.hold_data_dir(str(tmp_path)),
    ):
        pass


def test_a_data_directory_that_cannot_be_written_to_says_what_reads_it(tmp_path: Path) -> None:
    (tmp_path / node_dirs.NODE_LOCK).mkdir()
    with pytest.raises(DiskError, match="make it writable, or open a copy"), node_dirs.hold_data_dir(str(tmp_path)):
        pass
