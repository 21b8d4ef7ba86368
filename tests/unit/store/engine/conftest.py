from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    opened = PosixDisk(str(tmp_path))
    yield opened
    opened.close()
