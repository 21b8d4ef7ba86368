"""A previewed change looks like the change, and leaves the disk alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.inspection.preview import PreviewDisk
from tests.unit.store.inspection.stores import snapshot

NAMES = [f"{directory}/{name}" for directory in ("a", "b") for name in ("one", "two", "three")]


def change(disk: Disk, rng: random.Random) -> str:
    """One random operation; returns what came of it."""
    path, target = rng.choice(NAMES), rng.choice(NAMES)
    kind = rng.choice(["create", "write", "write", "truncate", "allocate", "rename", "unlink"])
    size, offset = rng.randrange(1, 300), rng.randrange(400)
    data = rng.randbytes(size)
    try:
        if kind == "create":
            apply(disk.create(path), lambda file: file.write([data], offset))
        elif kind == "write":
            apply(disk.open_write(path), lambda file: file.write([data[:9], data[9:]], offset))
        elif kind == "truncate":
            apply(disk.open_write(path), lambda file: file.truncate(offset))
        elif kind == "allocate":
            apply(disk.open_write(path), lambda file: file.allocate(offset + 1))
        elif kind == "rename":
            disk.rename(path, target)
        else:
            disk.unlink(path)
    except DiskError as error:
        return f"{kind} failed: {error.errno}"
    return kind


def apply(file: DiskFile, act: object) -> None:
    try:
        assert callable(act)
        act(file)
        file.fsync()
    finally:
        file.close()


def contents(disk: Disk) -> dict[str, bytes]:
    found = {}
    for directory in ("a", "b"):
        for name in disk.list_directory(directory):
            file = disk.open_read(f"{directory}/{name}")
            assert file.read(10_000, 0) == file.read(file.size(), 0)
            found[f"{directory}/{name}"] = file.read(file.size(), 0)
            assert file.read(50, 30) == found[f"{directory}/{name}"][30:80]
            file.close()
    return found


def filled(root: Path) -> PosixDisk:
    root.mkdir()
    disk = PosixDisk(str(root))
    rng = random.Random(1)
    for directory in ("a", "b"):
        disk.make_directory(directory)
    for path in NAMES[:4]:
        apply(disk.create(path), lambda file: file.write([rng.randbytes(200)], 0))
    return disk


@pytest.mark.parametrize("seed", range(30))
def test_previewed_changes_look_like_changes(tmp_path: Path, seed: int) -> None:
    real, base = filled(tmp_path / "real"), filled(tmp_path / "base")
    before = snapshot(tmp_path / "base")
    preview = PreviewDisk(base)
    steps, same_steps = random.Random(seed), random.Random(seed)
    for _ in range(40):
        assert change(real, steps) == change(preview, same_steps)
        assert contents(preview) == contents(real)
    assert snapshot(tmp_path / "base") == before
    real.close()
    base.close()


def test_previewed_directory_and_lock_leave_nothing(tmp_path: Path) -> None:
    disk = filled(tmp_path / "base")
    before = snapshot(tmp_path)
    preview = PreviewDisk(disk)
    preview.make_directory("a/deep")
    preview.make_directory("c")
    assert preview.exists("a/deep")
    assert "deep" in preview.list_directory("a")
    assert "c" in preview.list_directory(".")
    lock = preview.lock("a/lock")
    lock.release()
    assert preview.free_bytes("a") > 0
    assert snapshot(tmp_path) == before
    assert not (tmp_path / "base" / "c").exists()
    disk.close()
