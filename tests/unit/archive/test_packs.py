"""The layout of packs: one copy of the segments in memory, sent in pieces of one size."""

from __future__ import annotations

import tracemalloc
from random import Random

import msgspec
import pytest

from quiver_actors.archive import packs
from quiver_actors.archive.blocks import decode_sums, sums_of
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Segment
from quiver_actors.archive.packs import pack
from quiver_actors.base.checksum import crc32
from quiver_actors.base.units import MIB
from quiver_actors.store.objects.object_store import PART_BYTES

STREAM = StreamKey("t", "0" * 16, 0)
ROW = Segment(
    segment_seq=0,
    generation=0,
    bundle_count=1,
    row_count=1,
    size_bytes=1,
    crc32=0,
    etag="",
    created_unix_ns=1,
    first_ingestion_unix_ns=1,
    last_ingestion_unix_ns=1,
)


def rows(*contents: bytes) -> list[tuple[Segment, bytes]]:
    return [(msgspec.structs.replace(ROW, segment_seq=seq), content) for seq, content in enumerate(contents)]


@pytest.mark.parametrize("part_bytes", [1, 7, 64, 1000, 1 << 20])
def test_pieces_have_one_size_and_are_the_segments_with_their_checksums(
    part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "PART_BYTES", part_bytes)
    contents = [Random(seq).randbytes(size) for seq, size in enumerate((300, 1, 64, 128))]
    made = pack("n", STREAM, rows(*contents))
    pieces = list(made.pieces())
    assert {len(piece) for piece in pieces[:-1]} <= {part_bytes}
    assert 0 < len(pieces[-1]) <= part_bytes
    whole = b"".join(pieces)
    assert len(whole) == made.size_bytes
    assert f".{crc32(whole):08x}.qpack" in made.key
    for segment, content in zip(made.segments, contents, strict=True):
        place = segment.pack
        assert place is not None
        assert decode_sums(whole[place.sums_offset : place.offset]) == sums_of(content)
        assert whole[place.offset : place.offset + len(content)] == content


def test_a_pack_takes_no_more_memory_than_its_segments_and_one_piece() -> None:
    found = rows(*(bytes(MIB) for _ in range(20)))
    tracemalloc.start()
    try:
        made = pack("n", STREAM, found)
        for piece in made.pieces():
            assert piece
            del piece
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < PART_BYTES + MIB
    assert (made.without_content().parts, made.without_content().size_bytes) == ((), made.size_bytes)
