"""What the contract of disks asks of each of them again and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk, read_whole


def put(disk: Disk, path: str, content: bytes) -> None:
    file = disk.create(path)
    file.write([content], 0)
    file.close()


def content(disk: Disk, path: str) -> bytes:
    return read_whole(disk, path, 1 << 20)


def failing(disk: Disk, call: Callable[[], object], code: int) -> DiskError:
    with pytest.raises(DiskError) as caught:
        call()
    assert caught.value.errno == code
    return caught.value
