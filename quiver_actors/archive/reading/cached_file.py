"""One archived segment as a file of this host: at its full size, with holes where nothing was fetched yet.

The file has no name: it goes with the last descriptor or mapping of it, whatever becomes of this process. A block is written to it only
after it was found to have its checksum. Any thread may fetch.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from quiver_actors.archive.blocks import BlockSums
from quiver_actors.base.checksum import crc32, crc32_of_pieces
from quiver_actors.base.locks import new_lock
from quiver_actors.errors import ChecksumMismatch, DiskError, Truncated
from quiver_actors.store.segment.mapping import SegmentMapping
from quiver_actors.store.segment.proven_blocks import damaged_blocks, runs_of

RANGE_BYTES = 48 << 20
"""The most that one request fetches: a whole segment of the default size. Smaller requests cost a server a multiple of the CPU for the same
bytes (docs/performance.md)."""
CONCURRENCY = 8
"""Requests that are under way at a time for one file."""
_GAP_BLOCKS = 1
"""The most unwanted blocks in a row that are fetched with the blocks around them: another request costs more."""
_ATTEMPTS = 2
"""A block that comes damaged is fetched once more: the way may have damaged it."""

ReadRange = Callable[[int, int], Iterable[bytes | memoryview]]
"""`read(start, end)` of the object, in pieces as they come."""


class CachedFile:
    """The blocks of one object; a `BlockSource` of `store.segment.proven_blocks`.

    Args:
        directory: where the file is made.
        sums: the checksums of the object's blocks, and its size.
        read: reads a range of the object.
        where: names the object in errors.
        tell_stored: is called with the number of bytes of each block that was written.

    Raises:
        DiskError: the file cannot be made or mapped.
    """

    def __init__(
        self,
        directory: str,
        sums: BlockSums,
        read: ReadRange,
        where: str,
        tell_stored: Callable[[int], None] | None = None,
    ) -> None:
        self._sums = sums
        self._read = read
        self._where = where
        self._tell_stored = tell_stored or _tell_nobody
        self._lock = new_lock()
        self._present: set[int] = set()
        mapped_bytes = max(1, sums.size_bytes)
        try:
            with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
                os.ftruncate(file.fileno(), mapped_bytes)
                self._descriptor = os.dup(file.fileno())
        except OSError as error:
            raise DiskError("open", f"a file for {where} in {directory}", error.errno or 0) from error
        weakref.finalize(self, os.close, self._descriptor)
        mapping = SegmentMapping(self._descriptor, mapped_bytes, 0)
        self._memory = mapping.memory[: sums.size_bytes]

    @property
    def memory(self) -> memoryview:
        """The mapped file; zeros where nothing was fetched."""
        return self._memory

    @property
    def block_bytes(self) -> int:
        """The size of each block but the last one."""
        return self._sums.block_bytes

    @property
    def checksums(self) -> Sequence[int]:
        """CRC-32 of each block."""
        return self._sums.blocks

    def descriptor(self) -> int:
        """A read-only descriptor of the file, for the caller to close."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def fetch(self, blocks: Sequence[int]) -> None:
        """Fetch those of some blocks that are not there, or not any more as they were fetched: disks rot.

        Raises:
            ChecksumMismatch: a block of the object does not have its checksum, however often it is fetched.
            Truncated: the object is shorter than it should be.
            DiskError: the file cannot be written to.
            ArchiveError: the store does not give it.
        """
        with self._lock:
            missing = [block for block in blocks if block not in self._present or not self._is_kept(block)]
            for _ in range(_ATTEMPTS):
                if not missing:
                    return
                missing = self._fetch_once(missing)
            if missing:
                # Damaged where it is stored, not on the way.
                start = missing[0] * self.block_bytes
                raise ChecksumMismatch(
                    f"{self._where} is damaged: block {missing[0]} (from byte {start} on) does not have its checksum"
                )

    def _fetch_once(self, missing: Sequence[int]) -> list[int]:
        """Fetch blocks and keep those that are whole; returns the others."""
        spans = list(runs_of(missing, _GAP_BLOCKS, max(1, RANGE_BYTES // self.block_bytes)))
        if len(spans) == 1:
            damaged = self._take(*spans[0])
        else:
            with ThreadPoolExecutor(min(CONCURRENCY, len(spans))) as threads:
                damaged = list(itertools.chain(*threads.map(lambda span: self._take(*span), spans)))
        return sorted({*damaged}.intersection(missing))

    def _take(self, first: int, stop: int) -> list[int]:
        """Fetch the blocks `[first, stop)` with one request; returns those that are damaged."""
        start, end = first * self.block_bytes, min(self._sums.size_bytes, stop * self.block_bytes)
        damaged: list[int] = []
        for offset, parts in self._whole_blocks(self._read(start, end), start, end):
            # Each piece is proven and written while it is still in the processor's cache.
            damaged += self._keep(offset, parts)
        return damaged

    def _whole_blocks(
        self, pieces: Iterable[bytes | memoryview], start: int, end: int
    ) -> Iterator[tuple[int, list[memoryview]]]:
        """Yield what comes as whole blocks: the offset of the first of them, and their bytes in parts. Raises Truncated."""
        begun = memoryview(b"")
        """The beginning of a block whose end is still to come."""
        for piece in pieces:
            view = memoryview(piece)[: end - start - begun.nbytes]
            arrived = begun.nbytes + view.nbytes
            whole = arrived if start + arrived == end else arrived - arrived % self.block_bytes
            if not whole:
                begun = memoryview(b"".join((begun, view)))
                continue
            cut = whole - begun.nbytes
            yield start, [begun, view[:cut]]
            start, begun = start + whole, memoryview(bytes(view[cut:]))
        if start != end:
            raise Truncated(
                f"{self._where} ends at byte {start + begun.nbytes}: it should have {self._sums.size_bytes}"
            )

    def _keep(self, offset: int, parts: list[memoryview]) -> list[int]:
        """Write those of some blocks that are whole; returns the numbers of the others."""
        size_bytes, crc = sum(part.nbytes for part in parts), 0
        first, stop = offset // self.block_bytes, -(-(offset + size_bytes) // self.block_bytes)
        for part in parts:
            crc = crc32(part, crc)
        if crc == crc32_of_pieces(self.checksums[first:stop], self.block_bytes, size_bytes):
            self._write(parts, offset)
            self._note_kept(range(first, stop))
            return []
        content = memoryview(b"".join(parts))
        damaged = damaged_blocks(content, self.checksums, self.block_bytes, first, stop, offset)
        whole = [block for block in range(first, stop) if block not in set(damaged)]
        for run_first, run_stop in runs_of(whole):
            run_start = run_first * self.block_bytes
            self._write([content[run_start - offset : run_stop * self.block_bytes - offset]], run_start)
        self._note_kept(whole)
        return damaged

    def _note_kept(self, blocks: Iterable[int]) -> None:
        new = [block for block in blocks if block not in self._present]
        self._present.update(new)
        self._tell_stored(sum(self._size_of(block) for block in new))

    def _is_kept(self, block: int) -> bool:
        return not damaged_blocks(self._memory, self.checksums, self.block_bytes, block, block + 1)

    def _size_of(self, block: int) -> int:
        return min(self.block_bytes, self._sums.size_bytes - block * self.block_bytes)

    def _write(self, parts: list[memoryview], offset: int) -> None:
        # As few writes as possible: each of them costs the file system more than its bytes do.
        try:
            while parts:
                written = os.pwritev(self._descriptor, parts, offset)
                offset += written
                while parts and written >= parts[0].nbytes:
                    written -= parts.pop(0).nbytes
                if parts:
                    parts[0] = parts[0][written:]
        except OSError as error:
            raise DiskError("write", f"the cached blocks of {self._where}", error.errno or 0) from error


def _tell_nobody(size_bytes: int) -> None:
    """Do nothing with the number."""
