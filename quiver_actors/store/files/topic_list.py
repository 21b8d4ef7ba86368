"""The list of topics as bytes: the content of `quiver.topics`. Pure codec.

Source: docs/formats.md section 9, "List of topics: `quiver.topics`".

    quiver.topics            line 1: `quiver-topics 1 ` and the CRC-32 of all behind that line, 8 hex digits; then one JSON object
    quiver.topics.previous   the list before that

This module owns the names and the text. `node.topics.catalogue` reads and writes the files.
"""

from __future__ import annotations

import msgspec

from quiver_actors.base.checksum import crc32
from quiver_actors.base.topics import Catalogue
from quiver_actors.base.units import MIB
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, UnsupportedVersion

CATALOGUE_NAME = "quiver.topics"
PREVIOUS_NAME = "quiver.topics.previous"
CATALOGUE_MAGIC = b"quiver-topics"
CATALOGUE_VERSION = 1
CATALOGUE_BYTES_MAX = 64 * MIB


def encode_catalogue(catalogue: Catalogue) -> bytes:
    """Return the content of the file: a line with magic, version and CRC-32, then JSON."""
    body = msgspec.json.format(msgspec.json.encode(catalogue), indent=1)
    return b"%s %d %08x\n" % (CATALOGUE_MAGIC, CATALOGUE_VERSION, crc32(body)) + body


def decode_catalogue(content: bytes) -> Catalogue:
    """Raises InvalidFormat, UnsupportedVersion or ChecksumMismatch."""
    head, _, body = content.partition(b"\n")
    parts = head.split(b" ")
    if len(parts) != 3 or parts[0] != CATALOGUE_MAGIC or not parts[1].isdigit():
        raise InvalidFormat(
            f"{CATALOGUE_NAME} begins with {head[:16]!r}, expected '{CATALOGUE_MAGIC.decode()} {CATALOGUE_VERSION} CRC'"
        )
    if int(parts[1]) != CATALOGUE_VERSION:
        raise UnsupportedVersion(f"{CATALOGUE_NAME}: version {int(parts[1])}, this program reads {CATALOGUE_VERSION}")
    if b"%08x" % crc32(body) != parts[2]:
        raise ChecksumMismatch(f"{CATALOGUE_NAME}: CRC does not match")
    try:
        return msgspec.json.decode(body, type=Catalogue)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(f"{CATALOGUE_NAME}: {error}") from error
