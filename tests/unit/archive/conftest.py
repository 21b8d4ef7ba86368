"""What the tests of archives share: an object store, and an archive of a node that has died, made once for each module."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.disks.simulated import SimDisk
from tests.support.restorable import made_archive, objects_of


@pytest.fixture
def store() -> Iterator[ObjectStore]:
    made = open_store(f"memory://{uuid.uuid4().hex}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture
def objects(archive: Path) -> SimDisk:
    return objects_of(archive)
