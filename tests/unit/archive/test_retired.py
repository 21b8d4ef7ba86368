"""The cores of a topic by their directories: whose they are, and how far their numbers went."""

from __future__ import annotations

import pytest

from quiver_actors.archive.retired import retired_cores
from quiver_actors.base.core_dirs import RETIRED_NAME
from quiver_actors.base.protocol.archive_messages import RetiredCore
from quiver_actors.errors import StorageUnavailable
from quiver_actors.store.files.core_file import CoreFile, encode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.wal.codec import encode_cursor
from tests.disks.simulated import SimDisk


def directory(disk: SimDisk, path: str, core: int, incarnation: int, *, clean: bool = True) -> EnginePaths:
    paths = EnginePaths(path)
    disk.make_directory(paths.wal)
    write(disk, paths.core, encode_core(CoreFile(bytes([incarnation]) * 16, core, 7, 70, clean_shutdown=clean)))
    write(disk, paths.cursor, encode_cursor(900))
    return paths


def write(disk: SimDisk, path: str, content: bytes) -> None:
    file = disk.create(path)
    file.write([content], 0)
    file.close()


def test_each_core_is_told_once_as_it_was_closed() -> None:
    disk = SimDisk()
    assert retired_cores(disk, "t") == []
    directory(disk, "t/core_0", 0, 1, clean=False)
    directory(disk, f"t/{RETIRED_NAME}/core_3", 3, 3)
    directory(disk, f"t/{RETIRED_NAME}/core_1", 1, 2, clean=False)
    directory(disk, f"other/{RETIRED_NAME}/core_5", 5, 9)
    disk.make_directory(f"t/{RETIRED_NAME}/core_6")
    found = [RetiredCore(0, "01" * 16), RetiredCore(1, "02" * 16), RetiredCore(3, "03" * 16, 7, 900)]
    assert retired_cores(disk, "t") == found
    directory(disk, "t/core_3", 3, 4, clean=False)
    assert retired_cores(disk, "t") == [*found[:2], RetiredCore(3, "04" * 16)], "it has come back"


def test_a_directory_whose_name_is_damaged_is_not_passed_over() -> None:
    disk = SimDisk()
    paths = directory(disk, f"t/{RETIRED_NAME}/core_1", 1, 2)
    write(disk, paths.cursor, b"damaged")
    assert retired_cores(disk, "t") == [RetiredCore(1, "02" * 16, 7)]
    write(disk, paths.core, bytes(53))
    with pytest.raises(StorageUnavailable, match=r"retired/core_1/quiver.core is damaged.*move its directory away"):
        retired_cores(disk, "t")
