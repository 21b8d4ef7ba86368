"""The checksums of the blocks of an archived segment: what proves a ranged read. Pure.

The object holds a head of 40 bytes, then a u32 for each block of 64 KiB, the CRC-32 of its bytes; the last block may be shorter:

    magic "QAC2" | u32 CRC-32 of all that follows | u64 size of the segment | u32 CRC-32 of the whole segment | u32 block size |
    16 bytes: XXH3-128 of the whole segment

The last field tells segments of one size apart. CRC-32 does not: segments are full of parts that end with their own CRC-32, and
whatever ends so has the same one. Objects of former programs begin with "QAC1", and lack the field.

All numbers are little-endian. The object is written before the segment, under a key that is created only once. So it also says which
content belongs to the segment's key: an upload that finds other checksums there takes the next generation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import xxhash

from quiver_actors.base.checksum import crc32, crc32_combine
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, Truncated

BLOCK_BYTES = 64 << 10
Buffer = bytes | bytearray | memoryview
MAGIC = b"QAC2"
FORMER_MAGIC = b"QAC1"
_DIGEST_BYTES = {MAGIC: 16, FORMER_MAGIC: 0}

_HEAD = struct.Struct("<4sIQII")
_PROVEN_FROM = 8
"""Where the bytes begin that the object's own checksum covers."""


class BlockSums(NamedTuple):
    """The checksums of one segment's object."""

    size_bytes: int
    crc32: int
    """CRC-32 of the whole object."""
    blocks: tuple[int, ...]
    """CRC-32 of each block of `block_bytes`."""
    block_bytes: int = BLOCK_BYTES
    digest: bytes = b""
    """XXH3-128 of the whole object; empty: not recorded."""

    def aligned(self, start: int, end: int) -> tuple[int, int]:
        """The smallest range of whole blocks that holds `[start, end)`."""
        first = start // self.block_bytes * self.block_bytes
        return first, min(self.size_bytes, -(-end // self.block_bytes) * self.block_bytes)

    def check(self, start: int, content: Buffer) -> None:
        """Prove the bytes of whole blocks that begin at `start`.

        Raises:
            ChecksumMismatch: a block does not have its checksum, or the bytes are not whole blocks.
        """
        view = memoryview(content)
        end = start + view.nbytes
        if (start, end) != self.aligned(start, end):
            raise ChecksumMismatch(
                f"bytes {start} to {end} are not whole blocks of an object of {self.size_bytes} bytes"
            )
        for offset in range(0, view.nbytes, self.block_bytes):
            number = (start + offset) // self.block_bytes
            if crc32(view[offset : offset + self.block_bytes]) != self.blocks[number]:
                raise ChecksumMismatch(f"block {number} (from byte {start + offset} on) does not have its checksum")


def sums_of(content: Buffer) -> BlockSums:
    """Compute the checksums of a whole segment."""
    view = memoryview(content)
    blocks: list[int] = []
    whole, digest = 0, xxhash.xxh3_128()
    for piece in _pieces(view):
        block = crc32(piece)
        whole = crc32_combine(whole, block, piece.nbytes) if blocks else block
        blocks.append(block)
        digest.update(piece)
    return BlockSums(view.nbytes, whole, tuple(blocks), digest=digest.digest())


def _pieces(view: memoryview) -> Iterator[memoryview]:
    for offset in range(0, view.nbytes, BLOCK_BYTES):
        yield view[offset : offset + BLOCK_BYTES]


def encode_sums(sums: BlockSums) -> bytes:
    """The content of the object that holds them."""
    proven = struct.pack("<QII", sums.size_bytes, sums.crc32, sums.block_bytes) + sums.digest
    proven += struct.pack(f"<{len(sums.blocks)}I", *sums.blocks)
    return (MAGIC if sums.digest else FORMER_MAGIC) + struct.pack("<I", crc32(proven)) + proven


def sums_bytes(content: Buffer) -> int:
    """The length of the object that begins `content`. Raises Truncated, InvalidFormat: none does."""
    if len(content) < _HEAD.size:
        raise Truncated(f"checksums of an archived segment have {len(content)} bytes: expected at least {_HEAD.size}")
    magic, _, size_bytes, _, block_bytes = _HEAD.unpack_from(content)
    if magic not in _DIGEST_BYTES:
        raise InvalidFormat(f"checksums of an archived segment begin with {magic!r}: expected {MAGIC!r}")
    if not block_bytes:
        raise InvalidFormat("checksums of an archived segment are those of blocks without a byte")
    return int(_HEAD.size + _DIGEST_BYTES[magic] + 4 * -(-size_bytes // block_bytes))


def decode_sums(content: bytes) -> BlockSums:
    """Read what `encode_sums` has written.

    Raises:
        Truncated, InvalidFormat, ChecksumMismatch: it is not such an object, or it is damaged.
    """
    length = sums_bytes(content)
    magic, own, size_bytes, whole, block_bytes = _HEAD.unpack_from(content)
    if own != crc32(content[_PROVEN_FROM:]):
        raise ChecksumMismatch("the checksums of an archived segment do not have their own checksum")
    if len(content) != length:
        raise InvalidFormat(
            f"checksums of an archived segment have {len(content)} bytes: {size_bytes} bytes in blocks of {block_bytes} have {length}"
        )
    begin = _HEAD.size + _DIGEST_BYTES[magic]
    blocks = struct.unpack_from(f"<{(length - begin) // 4}I", content, begin)
    return BlockSums(size_bytes, whole, blocks, block_bytes, content[_HEAD.size : begin])
