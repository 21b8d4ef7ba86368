"""Every implementation of the disk, as a fixture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quiver_actors.store.disk.interposed import InterposedDisk
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk

Make = Callable[[Path], Disk]

DISKS: dict[str, Make] = {
    "posix": lambda path: PosixDisk(str(path)),
    "simulated": lambda path: SimDisk(),
    "interposed posix": lambda path: InterposedDisk(PosixDisk(str(path))),
    "faulty simulated": lambda path: FaultyDisk(SimDisk()),
}


@pytest.fixture(params=DISKS, ids=str)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made = DISKS[request.param](tmp_path)
    yield made
    inner = made.inner if isinstance(made, InterposedDisk) else made
    if isinstance(inner, PosixDisk):
        inner.close()
