"""Stored data to look at: a healthy engine's directory with one of everything, copies of it, and ways to damage them."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import pyarrow as pa

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.interposed import InterposedDisk, InterposedFile
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Buffer, Disk, DiskFile
from quiver_actors.store.inspection.findings import Finding, Severity
from quiver_actors.store.inspection.look import look_at
from quiver_actors.store.inspection.source import Source, Tree
from quiver_actors.store.inspection.verification import Totals, verify
from quiver_actors.store.inspection.views import FileView
from tests.support.engine_driver import EngineDriver, topic_settings

GOLDEN = Path(__file__).parents[3] / "golden" / "data"
ENGINE = "default/core_0"
ACTIVE = f"{ENGINE}/wal/quiver.wal"
ROTATED = f"{ENGINE}/wal/quiver.wal.4"
CURSOR = f"{ENGINE}/wal/quiver.wal.cursor"
CORE = f"{ENGINE}/quiver.core"
PROGRESS = f"{ENGINE}/quiver.sub.exporter"
SEGMENT = f"{ENGINE}/segments/0000000000000001.qseg"
ENTRY_BYTES = 640
"""Size of one entry of `push_numbered`."""


def write_store(root: Path) -> None:
    """Segments 1 and 2 (0 was acknowledged and deleted), segment 3 as a retired log, segment 4 as the active log, one subscriber
    with one bundle of segment 1 resolved."""
    root.mkdir(parents=True)
    disk = PosixDisk(str(root))
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    driver.engine.registrations.register("exporter", "earliest")
    for first in (0, 3, 6):
        driver.push_numbered(first, 3)
        driver.settle()
        driver.seal()
    for segment_seq, indexes, *_ in driver.claim("exporter", "owner", 4):
        driver.resolve("exporter", "owner", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    driver.push_numbered(9, 4)
    driver.commit()
    driver.run_background()
    driver.engine.seal_now()
    driver.commit()
    driver.push_numbered(13, 3)
    driver.push({0: pa.record_batch({"kind": pa.array(["a", "b", "a"]).dictionary_encode()})})
    driver.commit()
    driver.engine._lock.release()
    disk.close()


def copy_store(source: Path, target: Path) -> Path:
    shutil.copytree(source, target)
    for path in target.rglob("quiver.wal*"):
        with path.open("rb") as file:
            sync(file)
    return target


def sync(file: IO[bytes]) -> None:
    """Logs that the disk has are sealed where they are, others are copied first: a plan says which, so the tests have one of the two."""
    file.flush()
    os.fsync(file.fileno())


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Invert bits of one byte; negative offsets count from the end."""
    path.chmod(0o640)
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ mask]))
        sync(file)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    path.chmod(0o640)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def verified(root: Path, *, deep: bool = True, path: str = ".", totals: Totals | None = None) -> list[Finding]:
    disk = PosixDisk(str(root))
    try:
        return list(verify(Tree(disk, str(root)), path, deep=deep, totals=totals or Totals()))
    finally:
        disk.close()


def damage_in(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.DAMAGE]


def codes(findings: Sequence[Finding]) -> set[str]:
    return {finding.code for finding in findings}


def snapshot(root: Path) -> dict[str, bytes]:
    """Every file and its content."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


class BadSectors(InterposedDisk):
    """A disk that does not give back some sectors: `bad` maps paths to offsets inside them."""

    def __init__(self, inner: Disk, bad: Mapping[str, int]) -> None:
        super().__init__(inner)
        self._inodes = {inner_inode(inner, path): offset for path, offset in bad.items()}

    def open_read(self, path: str) -> InterposedFile:
        return self._spoilt(super().open_read(path))

    def open_write(self, path: str) -> InterposedFile:
        return self._spoilt(super().open_write(path))

    def _spoilt(self, file: InterposedFile) -> InterposedFile:
        offset = self._inodes.get(os.fstat(file.fileno()).st_ino)
        return file if offset is None else _SpoiltFile(self, file.inner, offset)


class _SpoiltFile(InterposedFile):
    def __init__(self, disk: BadSectors, inner: DiskFile, bad: int) -> None:
        super().__init__(disk, inner)
        self._bad = bad

    def read(self, length: int, offset: int) -> bytes:
        if offset <= self._bad < offset + length:
            raise DiskError("read", self.path, errno.EIO)
        return super().read(length, offset)


def inner_inode(disk: Disk, path: str) -> int:
    file = disk.open_read(path)
    try:
        return os.fstat(file.fileno()).st_ino
    finally:
        file.close()


class MemoryFile:
    """Bytes as an open file, to look at many variants of one quickly."""

    def __init__(self, content: bytes, name: str) -> None:
        self.path = name
        self._content = content

    def read(self, length: int, offset: int) -> bytes:
        return self._content[offset : offset + length]

    def size(self) -> int:
        return len(self._content)

    is_cached: Callable[[], bool]
    reread: Callable[[int, int], bytes | None]

    def write(self, buffers: Sequence[Buffer], offset: int) -> None:
        raise AssertionError("a look never writes")

    allocate: Callable[..., None]
    truncate: Callable[[int], None]
    fdatasync: Callable[[], None]
    fsync: Callable[[], None]
    make_read_only: Callable[[], None]
    has_name: Callable[[], bool]
    fileno: Callable[[], int]

    def reopen(self) -> MemoryFile:
        return self

    def close(self) -> None:
        """Release nothing: nothing is held."""


def looked_at(content: bytes, name: str, *, deep: bool = True, limit: int = 5) -> FileView:
    return look_at(Source(MemoryFile(content, name), name), deep=deep, limit=limit)
