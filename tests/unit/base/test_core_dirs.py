"""The directories of cores by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.core_dirs import RETIRED_NAME, find_core_dirs, retired_cores
from quiver_actors.errors import DiskError


def test_retired_cores_are_those_of_any_topic_and_no_others(tmp_path: Path) -> None:
    assert retired_cores(str(tmp_path / "nowhere")) == []
    for name in ("a/core_0", "a/core_2", f"a/{RETIRED_NAME}/core_7", f"b/{RETIRED_NAME}/core_3", f"b/{RETIRED_NAME}/x"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / f".deleted/{RETIRED_NAME}/core_9").mkdir(parents=True)
    (tmp_path / RETIRED_NAME).mkdir()
    assert retired_cores(str(tmp_path)) == [3, 7]
    assert find_core_dirs(str(tmp_path)) == {0: ["a"], 2: ["a"]}


def test_a_directory_that_cannot_be_listed_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """Regression: an embedded store, and a node, raised what the system call had said, which nobody expects."""
    with pytest.raises(DiskError, match="list of"):
        find_core_dirs(str(tmp_path), ["x" * 300])
