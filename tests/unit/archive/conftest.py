"""What the tests of restoring share: an archive of a node that has died, made once for each module."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.disks.simulated import SimDisk
from tests.support.restorable import made_archive, objects_of


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def objects(archive: Path) -> SimDisk:
    return objects_of(archive)
