"""Quarantine: which damaged data is kept, and how much of it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import copy_span, keep_in_quarantine, move_to_quarantine, trim_quarantine
from tests.disks.crashes import CrashMode
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.disks.simulated_files import BLOCK_BYTES
from tests.sim.damages import put_file
from tests.support.engine_driver import EngineDriver, topic_settings

PATHS = EnginePaths("default/core_0")


def kept(disk: SimDisk) -> dict[str, bytes]:
    return {
        name: read_whole(disk, f"{PATHS.quarantine}/{name}", 1 << 20) for name in disk.list_directory(PATHS.quarantine)
    }


def reader_of(content: bytes) -> Callable[[int, int], bytes]:
    return lambda length, offset: content[offset : offset + length]


def nobody_has(held: HeldFile | None) -> None:
    assert held is None


def test_numbers_rise_with_every_file_that_comes() -> None:
    disk = SimDisk()
    for content in (b"one", b"two"):
        put_file(disk, PATHS.cursor, content)
        move_to_quarantine(disk, PATHS, PATHS.cursor)
    put_file(disk, PATHS.core, b"three")
    keep_in_quarantine(disk, PATHS, PATHS.core)
    assert kept(disk) == {"quiver.wal.cursor.0": b"one", "quiver.wal.cursor.1": b"two", "quiver.core.2": b"three"}
    assert disk.exists(PATHS.core)
    assert disk.crash(CrashMode.DROP).contents() == disk.contents()


def test_where_files_have_one_name_only_a_copy_is_kept() -> None:
    inner = SimDisk()
    put_file(inner, PATHS.core, b"three")
    disk = FaultyDisk(inner)
    disk.fail("link", 1, errno.EPERM)
    keep_in_quarantine(disk, PATHS, PATHS.core)
    put_file(inner, PATHS.core, b"another one")
    assert kept(inner) == {"quiver.core.0": b"three"}
    disk.fail("link", 1, errno.EIO)
    with pytest.raises(DiskError):
        keep_in_quarantine(disk, PATHS, PATHS.core)


def test_a_span_is_kept_once_and_another_one_of_the_same_place_beside_it() -> None:
    disk = SimDisk()
    disk.make_directory(PATHS.root)
    assert copy_span(disk, PATHS, reader_of(b"0123456789"), "quiver.wal", 2, 5) is not None
    assert copy_span(disk, PATHS, reader_of(b"0123456789"), "quiver.wal", 2, 5) is None
    assert copy_span(disk, PATHS, reader_of(b"abcdefghij"), "quiver.wal", 2, 5) is not None
    assert sorted(kept(disk).values()) == [b"234", b"cde"]
    assert disk.crash(CrashMode.DROP).contents() == disk.contents()


def test_a_span_whose_copy_failed_leaves_nothing_and_can_be_kept_by_another_try() -> None:
    inner = SimDisk()
    inner.make_directory(PATHS.root)
    disk = FaultyDisk(inner)
    disk.fail("fsync", 1, errno.ENOSPC)
    with pytest.raises(DiskError):
        copy_span(disk, PATHS, reader_of(b"0123456789"), "quiver.wal", 2, 5)
    assert not kept(inner)
    assert copy_span(disk, PATHS, reader_of(b"0123456789"), "quiver.wal", 2, 5) is not None
    assert list(kept(inner).values()) == [b"234"]


def test_over_the_cap_the_oldest_go_and_never_the_newest() -> None:
    disk = SimDisk()
    for number in range(12):
        put_file(disk, PATHS.cursor, b"%d" % number)
        move_to_quarantine(disk, PATHS, PATHS.cursor)
    assert trim_quarantine(disk, PATHS, 12 * BLOCK_BYTES, nobody_has) == 12 * BLOCK_BYTES
    assert trim_quarantine(disk, PATHS, 3 * BLOCK_BYTES, nobody_has) == 3 * BLOCK_BYTES
    assert set(kept(disk)) == {"quiver.wal.cursor.9", "quiver.wal.cursor.10", "quiver.wal.cursor.11"}
    assert trim_quarantine(disk, PATHS, 0, nobody_has) == BLOCK_BYTES
    assert set(kept(disk)) == {"quiver.wal.cursor.11"}
    assert disk.crash(CrashMode.DROP).contents() == disk.contents()


def test_what_cannot_be_deleted_stays_and_a_directory_stops_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(tmp_path)))
    disk.make_directory(PATHS.quarantine)
    (tmp_path / PATHS.quarantine / "of an operator").mkdir()
    for name in ("a.0", "a.1", "a.2"):
        (tmp_path / PATHS.quarantine / name).write_bytes(bytes(4096))
    disk.fail("unlink", 2, errno.EIO)
    with pytest.raises(DiskError):
        trim_quarantine(disk, PATHS, 0, nobody_has)
    assert len(list((tmp_path / PATHS.quarantine).iterdir())) == 4
    trim_quarantine(disk, PATHS, 0, nobody_has)
    assert sorted(path.name for path in (tmp_path / PATHS.quarantine).iterdir()) == ["a.2", "of an operator"]


def test_an_engine_holds_to_its_cap() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(retention=RetentionSettings(quarantine_cap_bytes=2 * BLOCK_BYTES)))
    for number in range(4):
        driver.engine.close()
        put_file(disk, PATHS.cursor, b"damaged %d" % number)
        driver.reopen()
        driver.run_background()
    assert sorted(kept(disk).values()) == [b"damaged 2", b"damaged 3"]
    driver.engine.change_settings(topic_settings(retention=RetentionSettings(quarantine_cap_bytes=0)))
    driver.run_background()
    assert list(kept(disk).values()) == [b"damaged 3"]
