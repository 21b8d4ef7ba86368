"""The engines of a worker by name, those of adopted cores too: one that is retired is not there, and nothing else."""

from __future__ import annotations

import pytest

from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.node.worker.adoption import Adoption
from quiver_actors.node.worker.journal import Journal
from tests.disks.simulated import SimDisk


def test_a_core_that_is_not_adopted_any_more_is_not_there() -> None:
    adoption = Adoption({}, SimDisk(), Journal(0), OpenedDirectories("nowhere"))  # type: ignore[arg-type]
    assert "default@2" not in adoption
    assert adoption.get("default@2") is None
    with pytest.raises(KeyError, match="default@2"):
        adoption["default@2"]
