"""`quiver doctor` says whose cold disk a topic has, or that it is away, and changes nothing there."""

from __future__ import annotations

import contextlib
from pathlib import Path

from quiver_actors.base.config import NodeSettings
from quiver_actors.cli.host_checks.cold_check import cold_errors
from tests.support.cold_directories import Directories


def test_a_copy_and_a_cold_disk_that_is_away_are_told(tmp_path: Path) -> None:
    with contextlib.ExitStack() as disks:
        directories = Directories(tmp_path, disks)
        directories.filled().drain_and_close()
        directories.copied().drain_and_close()
    before = directories.content()
    assert cold_errors(NodeSettings(data_dir=str(directories.hot))) == []
    (copied,) = cold_errors(NodeSettings(data_dir=str(directories.copy)))
    assert copied.startswith("topic 'default', core 0: ")
    assert "this data directory is a copy" in copied
    assert directories.content() == before
    directories.cold.rename(tmp_path / "away")
    (away,) = cold_errors(NodeSettings(data_dir=str(directories.hot)))
    assert "No such file or directory" in away


def test_without_cold_segments_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert cold_errors(NodeSettings(data_dir=str(tmp_path))) == []
    assert cold_errors(NodeSettings(data_dir=str(tmp_path / "none"))) == []
