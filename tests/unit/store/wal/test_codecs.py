"""Headers, cursors and `quiver.core`: what is written is read, and any damage is told."""

from __future__ import annotations

import zlib

import pytest

from quiver_actors.errors import ChecksumMismatch, FormatError, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.store.files.core_file import CoreFile, decode_core, encode_core
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import (
    EntryHeader,
    Identity,
    LogHeader,
    decode_cursor,
    decode_entry_header,
    decode_header,
    decode_slots,
    encode_cursor,
    encode_header,
    plausible_entry_length,
)

IDENTITY = Identity(7, 40, bytes(range(16)))
HEADER = encode_header(b"h" * 16, 1 << 50, IDENTITY)
# --- log header ----------------------------------------------------------------------------------------------------------------


def test_a_header_is_read_back() -> None:
    assert decode_header(HEADER) == LogHeader(121, b"h" * 16, 1 << 50, IDENTITY)
    assert decode_header(HEADER + b"entries") == decode_header(HEADER)


def test_a_header_says_where_the_arrow_stream_starts() -> None:
    assert len(HEADER) == layout.HEADER_BYTES
    assert HEADER[64:72] == b"ARROW1\0\0"
    assert HEADER[:10] == b"QUIVER\0WAL"


def test_a_header_of_another_writer_has_no_identity() -> None:
    rust = layout.HEADER.pack(layout.WAL_MAGIC, 1, 38, b"h" * 16, 9)
    assert decode_header(rust) == LogHeader(38, b"h" * 16, 9)
    wider = layout.HEADER.pack(layout.WAL_MAGIC, 1, 60, b"h" * 16, 9) + bytes(100)
    assert decode_header(wider) == LogHeader(60, b"h" * 16, 9)


def test_an_aligned_header_of_another_writer_has_no_identity() -> None:
    foreign = bytearray(HEADER)
    foreign[72:] = bytes(len(foreign) - 72)
    assert decode_header(bytes(foreign)).identity is None


@pytest.mark.parametrize("at", [*range(12), *range(30, 38), *range(64, 108)])
def test_a_flipped_bit_in_a_header_is_never_believed(at: int) -> None:
    damaged = bytearray(HEADER)
    damaged[at] ^= 0x10
    try:
        found = decode_header(bytes(damaged))
    except FormatError:
        return
    assert found.identity is None, "at best it is a file of another writer, whose entries are adopted"


@pytest.mark.parametrize("bit", range(16))
def test_a_flipped_bit_of_the_version_is_damage(bit: int) -> None:
    damaged = bytearray(HEADER)
    damaged[10 + bit // 8] ^= 1 << bit % 8
    with pytest.raises(ChecksumMismatch, match="damaged"):
        decode_header(bytes(damaged))


def test_a_newer_version_is_refused() -> None:
    newer = bytearray(HEADER)
    newer[10] = 2
    newer[40] = 9
    with pytest.raises(UnsupportedVersion):
        decode_header(bytes(newer))


def test_short_headers_are_truncated() -> None:
    for size in range(38):
        with pytest.raises(Truncated):
            decode_header(HEADER[:size])
    assert decode_header(HEADER[:100]).identity is None


def test_a_header_smaller_than_version_1_is_invalid() -> None:
    with pytest.raises(InvalidFormat, match="37"):
        decode_header(layout.HEADER.pack(layout.WAL_MAGIC, 1, 37, b"h" * 16, 9))


# --- cursor --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", [0, 128, 1 << 40, (1 << 64) - 1])
def test_a_cursor_is_read_back(position: int) -> None:
    assert decode_cursor(encode_cursor(position)) == position


def test_a_cursor_is_the_example_of_the_format() -> None:
    assert encode_cursor(128).hex() == "5155495645520054010018008000000000000000" + "6df90d37"


def test_a_newer_cursor_is_readable_as_long_as_it_keeps_the_first_fields() -> None:
    body = layout.CURSOR_TABLE.pack(version=2, size=32, wal_position=77, crc32=0)[:-4] + b"moretext"
    newer = body + layout.ENTRY_CRC.pack(zlib.crc32(body))
    assert decode_cursor(newer) == 77
    with pytest.raises(Truncated):
        decode_cursor(newer[:-1])
    longer = layout.CURSOR_TABLE.pack(size=32, wal_position=77, crc32=0)[:-4] + bytes(8)
    with pytest.raises(InvalidFormat):
        decode_cursor(longer + layout.ENTRY_CRC.pack(zlib.crc32(longer)))


# --- quiver.core ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
def test_the_core_file_is_read_back(clean: bool) -> None:
    core = CoreFile(b"x" * 16, 0, 0, (1 << 64) - 1, clean)
    assert decode_core(encode_core(core)) == core
    assert len(encode_core(core)) == 53


def test_zeroes_are_no_file_of_ours() -> None:
    for decode in (decode_core, decode_cursor, decode_header):
        with pytest.raises(InvalidFormat):
            decode(bytes(200))


# --- entries -------------------------------------------------------------------------------------------------------------------


def slot(slot_id: int, payload: bytes, size: int | None = None) -> bytes:
    return layout.SLOT_HEAD.pack(slot_id, b"f" * 32, 5, len(payload) if size is None else size) + payload


def body(bitmap: int, *slots: bytes) -> bytes:
    return layout.ENTRY_HEADER.pack(0, 11, 22, bitmap) + b"".join(slots)


def test_an_entry_is_taken_apart_in_the_order_in_which_it_stands() -> None:
    data = body(0b1010, slot(3, b"three"), slot(1, b""))
    assert decode_entry_header(data) == EntryHeader(0, 11, 22, 0b1010)
    blocks = decode_slots(data, 0b1010)
    assert [(block.slot_id, data[block.payload_offset :][: block.payload_bytes]) for block in blocks] == [
        (3, b"three"),
        (1, b""),
    ]


@pytest.mark.parametrize(
    ("bitmap", "data"),
    [
        (0b10, body(0b10, slot(3, b"x"))),
        (0b11, body(0b11, slot(0, b"x"))),
        (0b1, body(0b1, slot(0, b"x"), slot(1, b"y"))),
        (0b1, body(0b1, slot(0, b"x") + b"left over")),
        (0b1, body(0b1, slot(0, b"x", size=100))),
        (0b1, body(0b1, slot(0, b"x", size=(1 << 32) - 1))),
        (0b1, body(0b1, slot(64, b"x"))),
        (0b1, body(0b1)),
        (0b11, body(0b11, slot(0, b"x"), slot(0, b"x"))),
        (0, body(0, b"left over")),
        ((1 << 64) - 1, body((1 << 64) - 1)),
    ],
)
def test_an_entry_whose_slots_do_not_fit_is_invalid(bitmap: int, data: bytes) -> None:
    with pytest.raises(InvalidFormat):
        decode_slots(data, bitmap)


def test_an_entry_without_a_header_is_truncated() -> None:
    with pytest.raises(Truncated):
        decode_entry_header(body(0)[:-1])


@pytest.mark.parametrize(
    ("length", "available", "plausible"),
    [
        (0, 1 << 30, False),
        (24, 1 << 30, False),
        (25, 29, True),
        (25, 28, False),
        (256 << 20, 1 << 30, True),
        ((256 << 20) + 1, 1 << 30, False),
        ((1 << 32) - 1, 1 << 33, False),
    ],
)
def test_which_lengths_can_be_those_of_an_entry(length: int, available: int, plausible: bool) -> None:
    assert plausible_entry_length(length, available) == plausible


def test_a_checksum_is_what_tells() -> None:
    damaged = bytearray(HEADER)
    damaged[80] ^= 1
    with pytest.raises(ChecksumMismatch):
        decode_header(bytes(damaged))
