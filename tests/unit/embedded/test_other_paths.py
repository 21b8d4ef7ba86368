"""One directory under two paths that no link connects: a bind mount."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.errors import AlreadyRunning
from tests.crash import mounts


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_directory_is_open_once_also_under_another_path(tmp_path: Path) -> None:
    """Regression: it was refused after ten seconds, and as if another container had it."""
    pid = os.fork()
    if pid == 0:
        refusal = "none"
        try:
            mounts.isolate()
            with quiver_actors.open(tmp_path / "data"), mounts.mounted(tmp_path / "data", tmp_path / "other", "--bind"):
                try:
                    quiver_actors.open(tmp_path / "other")
                except AlreadyRunning as error:
                    refusal = str(error)
        finally:
            os._exit(0 if f"process {os.getpid()}, which is this one" in refusal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
