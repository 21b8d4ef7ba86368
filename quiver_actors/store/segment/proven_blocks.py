"""The blocks of a file that are here and proven against their checksums, and the source of the others. Used under its owner's lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32
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
        for block in missing:
            self._prove(block)
        self._is_proven[missing] = True

    def have(self, ranges: Sequence[Range]) -> bool:
        """Whether all of these bytes are proven."""
        return bool(self._is_proven[self._blocks(ranges)].all())

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

    def _prove(self, block: int) -> None:
        start = block * self.block_bytes
        if crc32(self.view[start : start + self.block_bytes]) != self._source.checksums[block]:
            raise ChecksumMismatch(
                f"{self._where} is damaged: the {self.block_bytes} bytes from byte {start} on do not have the checksum that was stored "
                "with them"
            )
