"""Log files put together by hand."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

HEADER_BYTES = 121


def reader_of(data: bytes) -> Callable[[int, int], bytes]:
    return lambda length, offset: data[offset : offset + length]


def entry(sequence: int, payload: bytes, *, entry_type: int = 0, aligned: bool = True) -> bytes:
    """One entry whose slot area is just `payload`, padded so that the next one starts 64 bytes on."""
    body = struct.pack("<BqQQ", entry_type, 1_700_000_000_000_000_000 + sequence, sequence, 0) + payload
    if aligned:
        body += bytes(-(len(body) + 8) % 64)
    return struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body))


@dataclass
class Laid:
    """A log and where its entries are."""

    data: bytes
    spans: list[tuple[int, int]]


def lay(entries: Sequence[bytes], *, tail: bytes = b"", start: int = HEADER_BYTES) -> Laid:
    data, spans = bytearray(b"h" * start), []
    for one in entries:
        spans.append((len(data), len(data) + len(one)))
        data += one
    return Laid(bytes(data) + tail, spans)


def flipped(data: bytes, at: int, bits: int = 0x40) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]
