"""Blocks are fetched once, with few requests, and kept only when they have their checksum."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from quiver_actors.archive.blocks import BlockSums, sums_of
from quiver_actors.archive.reading import cached_file
from quiver_actors.archive.reading.block_cache import BlockCache
from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.errors import ChecksumMismatch, DiskError, Truncated

BLOCK = 64 << 10
PIECE = 100_000
"""Bytes that come at a time: no whole blocks."""


class Object:
    """An object of a store, and what was asked of it."""

    def __init__(self, size_bytes: int, damage: Callable[[int, int, bytes], bytes] | None = None) -> None:
        self.content = Random(size_bytes).randbytes(size_bytes)
        self.asked: list[tuple[int, int]] = []
        self._damage = damage
        self._lock = threading.Lock()

    def read(self, start: int, end: int) -> Iterator[bytes]:
        with self._lock:
            self.asked.append((start, end))
            attempt = len(self.asked)
        found = self.content[start:end]
        if self._damage is not None:
            found = self._damage(attempt, start, found)
        for offset in range(0, len(found), PIECE):
            yield found[offset : offset + PIECE]

    @property
    def sums(self) -> BlockSums:
        return sums_of(self.content)


def cached(directory: Path, source: Object, tell: Callable[[int], None] | None = None) -> CachedFile:
    return CachedFile(str(directory), source.sums, source.read, "object x", tell)


def test_blocks_that_lie_close_come_with_one_request_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_file, "RANGE_BYTES", 16 << 20)
    source = Object(20 << 20)
    file = cached(tmp_path, source)
    file.fetch(range(300))
    assert sorted(source.asked) == [(0, 256 * BLOCK), (256 * BLOCK, 300 * BLOCK)]
    assert file.memory[: 300 * BLOCK] == source.content[: 300 * BLOCK]
    source.asked.clear()
    file.fetch([5, 301, 310, 312, 319])
    assert sorted(source.asked) == [(n * BLOCK, m * BLOCK) for n, m in ((301, 302), (310, 313), (319, 320))]
    assert file.memory[310 * BLOCK : 313 * BLOCK] == source.content[310 * BLOCK : 313 * BLOCK]
    source.asked.clear()
    file.fetch([5, 301, 311, 319])
    assert source.asked == []


def test_requests_are_under_way_together(tmp_path: Path) -> None:
    source = Object(40 << 20)
    together = threading.Barrier(8, timeout=30)

    def read(start: int, end: int) -> Iterator[bytes]:
        together.wait()
        return source.read(start, end)

    file = CachedFile(str(tmp_path), source.sums, read, "object x")
    file.fetch([block for block in range(640) if block % 64 == 0 and block < 512])
    assert len(source.asked) == 8


def test_the_last_block_may_be_shorter(tmp_path: Path) -> None:
    source = Object(BLOCK + 5)
    stored: list[int] = []
    file = cached(tmp_path, source, stored.append)
    file.fetch([0, 1])
    assert file.memory == source.content
    assert stored == [BLOCK + 5]


def test_a_block_that_the_way_has_damaged_is_fetched_once_more(tmp_path: Path) -> None:
    source = Object(3 * BLOCK, lambda attempt, _, piece: piece if attempt > 1 else b"\0" + piece[1:])
    file = cached(tmp_path, source)
    file.fetch([0, 1, 2])
    assert file.memory == source.content
    assert source.asked == [(0, 3 * BLOCK), (0, BLOCK)]


def test_a_block_that_is_damaged_in_the_store_is_never_kept(tmp_path: Path) -> None:
    def damaged(_: int, start: int, piece: bytes) -> bytes:
        place = BLOCK - start
        return piece[:place] + bytes([piece[place] ^ 1]) + piece[place + 1 :]

    source = Object(3 * BLOCK, damaged)
    file = cached(tmp_path, source)
    with pytest.raises(ChecksumMismatch, match=r"object x is damaged: block 1 \(from byte 65536 on\)"):
        file.fetch([0, 1, 2])
    assert file.memory[BLOCK : 2 * BLOCK] == bytes(BLOCK)
    assert file.memory[2 * BLOCK :] == source.content[2 * BLOCK :]


def test_an_object_that_ends_too_early_is_told(tmp_path: Path) -> None:
    source = Object(3 * BLOCK, lambda _, __, piece: piece[:-1])
    with pytest.raises(Truncated, match="object x ends at byte 196607: it should have 196608"):
        cached(tmp_path, source).fetch([0, 1, 2])


def test_a_file_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(DiskError) as told:
        cached(tmp_path / "missing", Object(BLOCK))
    assert told.value.errno == errno.ENOENT


def test_a_full_disk_is_told_and_nothing_counts_as_there(tmp_path: Path) -> None:
    source = Object(2 * BLOCK)
    file = cached(tmp_path, source)
    limited = os.fork()
    if limited == 0:
        # A file size limit stands for a full disk: the call fails in the same place.
        import resource
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (BLOCK, BLOCK))
        try:
            file.fetch([0, 1])
        except DiskError as error:
            os._exit(0 if error.errno == errno.EFBIG else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(limited, 0)[1]) == 0


def test_files_have_no_name_and_descriptors_cannot_write(tmp_path: Path) -> None:
    source = Object(BLOCK)
    file = cached(tmp_path, source)
    file.fetch([0])
    assert list(tmp_path.iterdir()) == []
    descriptor = file.descriptor()
    assert os.pread(descriptor, BLOCK, 0) == source.content
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(descriptor, b"x", 0)
    os.close(descriptor)


def test_the_cache_keeps_to_its_limit_and_lets_the_oldest_go(tmp_path: Path) -> None:
    cache = BlockCache(4 * BLOCK, 3)
    sources = {name: Object(2 * BLOCK + number) for number, name in enumerate("abc")}

    def fetch(name: str) -> CachedFile:
        file = cache.file(name, lambda tell: cached(tmp_path, sources[name], tell))
        file.fetch([0, 1])
        return file

    first = fetch("a")
    fetch("b")
    assert fetch("a") is first
    fetch("c")
    assert cache.size_bytes == 4 * BLOCK
    assert fetch("a") is first
    asked = len(sources["b"].asked)
    fetch("b")
    assert len(sources["b"].asked) == asked + 1
    # What a reader still has stays readable.
    cache.close()
    assert cache.size_bytes == 0
    assert first.memory[: 2 * BLOCK] == sources["a"].content[: 2 * BLOCK]


def test_the_cache_keeps_no_more_files_than_it_may(tmp_path: Path) -> None:
    cache = BlockCache(100 * BLOCK, 2)
    made: list[str] = []

    def file(name: str) -> CachedFile:
        def make(tell: Callable[[int], None]) -> CachedFile:
            made.append(name)
            return cached(tmp_path, Object(BLOCK), tell)

        return cache.file(name, make)

    def descriptor_count() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptor_count()
    for name in "abacd":
        file(name).fetch([0])
    assert (made, cache.size_bytes) == (["a", "b", "c", "d"], 2 * BLOCK)
    two_files = descriptor_count() - before
    for name in map(str, range(20)):
        file(name)
    assert descriptor_count() - before <= two_files
    assert cache.size_bytes == 0, "nothing was fetched of the last ones"


def test_a_block_that_has_rotted_on_the_disk_is_fetched_again(tmp_path: Path) -> None:
    source = Object(5 * BLOCK)
    file = cached(tmp_path, source)
    file.fetch(range(5))
    descriptor = file.descriptor()
    try:
        writable = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY)
        os.pwrite(writable, b"rot", 3 * BLOCK + 5)
        os.close(writable)
    finally:
        os.close(descriptor)
    source.asked.clear()
    file.fetch(range(5))
    assert source.asked == [(3 * BLOCK, 4 * BLOCK)]
    assert file.memory == source.content
