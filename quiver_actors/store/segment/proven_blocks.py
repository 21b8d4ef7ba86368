"""The blocks of a file that are here and proven against their checksums, and the source of the others. Used under its owner's lock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32, crc32_of_pieces
from quiver_actors.errors import ChecksumMismatch
from quiver_actors.store.segment.column_buffers import Range


class BlockSource(Protocol):
    """Blocks of one file that are fetched when they are asked for. Any thread may call `fetch`."""

    @property
    def memory(self) -> memoryview:
        """The file at its full size, read-only; undefined where nothing was fetched."""

    @property
    def block_bytes(self) -> int:
        """The size of each block; the last one may be shorter."""

    @property
    def checksums(self) -> Sequence[int]:
        """CRC-32 of each block."""

    def fetch(self, blocks: Sequence[int]) -> None:
        """Bring blocks, rising numbers, into the memory; those that are there stay.

        Raises:
            ChecksumMismatch: what is stored of a block is damaged.
            QuiverError: it cannot be had.
        """


class ProvenBlocks:
    """The proof of one file.

    Args:
        where: names the file in errors.
    """

    def __init__(self, source: BlockSource, where: str) -> None:
        self.view = source.memory
        """The file at its full size; only what was asked of `need` may be looked at."""
        self.block_bytes = source.block_bytes
        self._source = source
        self._where = where
        self._is_proven: npt.NDArray[np.bool_] = np.zeros(len(source.checksums), np.bool_)

    def need(self, ranges: Sequence[Range]) -> None:
        """Fetch and prove the blocks of these bytes, those that are not proven yet.

        Raises:
            ChecksumMismatch: a block is not what was stored.
            And as `BlockSource.fetch`.
        """
        blocks = self._blocks(ranges)
        missing = blocks[~self._is_proven[blocks]].tolist()
        if not missing:
            return
        self._source.fetch(missing)
        for first, stop in runs_of(missing):
            self._prove(first, stop)
            self._is_proven[first:stop] = True

    def doubt(self, ranges: Sequence[Range]) -> None:
        """Prove these bytes anew when they are needed next."""
        self._is_proven[self._blocks(ranges)] = False

    def read(self, length: int, offset: int) -> bytes:
        """Read as a disk does. Raises as `need`."""
        self.need([(offset, offset + length)])
        return bytes(self.view[offset : offset + length])

    def _blocks(self, ranges: Iterable[Range]) -> npt.NDArray[np.int64]:
        """The blocks that hold some of these bytes, rising."""
        size_bytes, found = self.view.nbytes, set[int]()
        for start, end in ranges:
            found.update(range(max(0, start) // self.block_bytes, -(-min(end, size_bytes) // self.block_bytes)))
        return np.array(sorted(found), np.int64)

    def _prove(self, first: int, stop: int) -> None:
        """Prove the blocks `[first, stop)`."""
        for block in damaged_blocks(self.view, self._source.checksums, self.block_bytes, first, stop):
            start = block * self.block_bytes
            raise ChecksumMismatch(
                f"{self._where} is damaged: the {self.block_bytes} bytes from byte {start} on do not have the checksum that was stored "
                "with them"
            )


def runs_of(numbers: Sequence[int], gap: int = 0, count_max: int = 1 << 62) -> Iterator[tuple[int, int]]:
    """Rising numbers as spans `[first, stop)` of at most `count_max`; those with at most `gap` others between them are in one."""
    first = stop = -1
    for number in numbers:
        if first >= 0 and number - stop <= gap and number + 1 - first <= count_max:
            stop = number + 1
            continue
        if first >= 0:
            yield first, stop
        first, stop = number, number + 1
    if first >= 0:
        yield first, stop


def damaged_blocks(
    content: memoryview, checksums: Sequence[int], block_bytes: int, first: int, stop: int, start: int = 0
) -> list[int]:
    """Return the numbers of the blocks in `[first, stop)` that do not have their checksums.

    Args:
        content: holds the blocks; its first byte is the byte `start` of the file.
        checksums: of all blocks of the file.
    """
    piece = content[first * block_bytes - start : stop * block_bytes - start]
    # One call for all of them: each call gives up the interpreter, and a thread that reads may then wait for it 5 ms. Checksums that
    # are joined find the same damage as each of them by itself: every burst of 32 bits, and of others all but one of 2^32.
    if crc32(piece) == crc32_of_pieces(checksums[first:stop], block_bytes, piece.nbytes):
        return []
    starts = range(0, piece.nbytes, block_bytes)
    return [
        block
        for block, at in zip(range(first, stop), starts, strict=True)
        if crc32(piece[at : at + block_bytes]) != checksums[block]
    ]
