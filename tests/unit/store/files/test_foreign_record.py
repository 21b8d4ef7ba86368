"""`quiver.foreign`: what is written is read, also what a program wrote that did not list the entries of an adoption."""

from __future__ import annotations

import pytest

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import InvalidFormat
from quiver_actors.store.files.foreign_record import (
    AdoptedEntry,
    AdoptedSource,
    ForeignRecord,
    ForeignSegment,
    decode_foreign,
    encode_foreign,
)

ENTRIES = (AdoptedEntry(121, 7, 1024), AdoptedEntry(185, 8, None), AdoptedEntry(249, 2**32 - 1, 1025))
SOURCES = (
    AdoptedSource("quiver.wal", 1 << 40, 313, ENTRIES),
    AdoptedSource("quiver.wal.3", 0, 121, ()),
    AdoptedSource("quiver.wal.4", 5, 185, (AdoptedEntry(121, 0, 1025),)),
)
RECORD = ForeignRecord(17, {3: ForeignSegment(100, 5)}, (1024, 1025), SOURCES, is_first=True)


def sealed(body: bytes) -> bytes:
    return body + crc32(body).to_bytes(4, "little")


def test_what_is_written_is_read() -> None:
    for record in (RECORD, ForeignRecord()):
        assert decode_foreign(encode_foreign(record)) == record


def test_a_record_without_entries_is_read() -> None:
    """Its header is four bytes shorter."""
    body = encode_foreign(RECORD)[:-4]
    former = body[:10] + (36).to_bytes(2, "little") + body[12:36] + body[40:]
    found = decode_foreign(sealed(former))
    assert found.sources == tuple(source._replace(entries=()) for source in SOURCES)
    assert (found.targets, found.segments) == (RECORD.targets, RECORD.segments)
    empty = encode_foreign(ForeignRecord())[:-4]
    assert decode_foreign(sealed(empty[:10] + (36).to_bytes(2, "little") + empty[12:36])) == ForeignRecord()


def test_a_record_that_names_what_it_has_not_is_refused() -> None:
    data = encode_foreign(RECORD)
    no_such_source = data[:-12] + (9).to_bytes(4, "little") + data[-8:-4]
    with pytest.raises(InvalidFormat):
        decode_foreign(sealed(no_such_source))
