"""A damaged version field is damage, a newer version is refused: both say so."""

from __future__ import annotations

import pytest

from quiver_actors.errors import ChecksumMismatch, UnsupportedVersion
from quiver_actors.store.files.core_file import CoreFile, decode_core, encode_core
from quiver_actors.store.wal.codec import Identity, decode_header, encode_header

CORE = encode_core(CoreFile(b"i" * 16, 3, 10, 20, clean_shutdown=True))
HEADER = encode_header(b"h" * 16, 77, Identity(5, 6, b"i" * 16))


@pytest.mark.parametrize("bit", range(16))
def test_a_flipped_bit_of_the_version_is_damage(bit: int) -> None:
    for data, offset, decode in ((CORE, 8, decode_core), (HEADER, 10, decode_header)):
        damaged = bytearray(data)
        damaged[offset + bit // 8] ^= 1 << bit % 8
        with pytest.raises(ChecksumMismatch, match="damaged"):
            decode(bytes(damaged))


def test_a_newer_version_is_refused() -> None:
    newer_core = bytearray(CORE)
    newer_core[8] = 2
    newer_core[20] ^= 0xFF
    with pytest.raises(UnsupportedVersion):
        decode_core(bytes(newer_core))
    newer_header = bytearray(HEADER)
    newer_header[10] = 2
    newer_header[40] = 9
    with pytest.raises(UnsupportedVersion):
        decode_header(bytes(newer_header))
