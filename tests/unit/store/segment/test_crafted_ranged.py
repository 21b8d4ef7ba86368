"""Segments that were written wrong, with right checksums of all blocks: a ranged reader names what is wrong, and shows nothing of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from quiver_actors.errors import ArrowError, FormatError, InvalidFormat, StreamNotFound, Truncated
from quiver_actors.store.segment.arrow_file import BLOCK, FILE_START, encode_footer
from quiver_actors.store.segment.ranged import RangedReader
from tests.unit.store.segment import batches
from tests.unit.store.segment.test_ranged import Blocks
from tests.unit.store.segment.test_reader import STREAM, assemble, directory, manifest

SCHEMA = batches.plain(4).schema.serialize().to_pybytes()
MESSAGE = batches.plain(4).serialize().to_pybytes()
METADATA_BYTES = 8 + int.from_bytes(MESSAGE[4:8], "little")
START = len(FILE_START) + len(SCHEMA)
"""Where the batch stands in a stream of `stream_of`."""
BODY_BYTES = len(MESSAGE) - METADATA_BYTES
COLUMNS = [None, {1: [batches.plain(4).schema.names[0]]}]


def stream_of(*blocks: tuple[int, int, int], dictionaries: Sequence[tuple[int, int, int]] = ()) -> bytes:
    """An Arrow file of one batch whose footer lists these messages: offset, metadata bytes and body bytes."""
    packed = [b"".join(BLOCK.pack(at, size, 0, body) for at, size, body in each) for each in (dictionaries, blocks)]
    return b"".join((FILE_START, SCHEMA, MESSAGE, *encode_footer(SCHEMA, *packed)))


def segment_of(stream: bytes, refs: list[dict[str, int]] | None = None, **changes: int) -> bytes:
    return assemble(stream, directory(byte_length=len(stream), **changes), manifest(refs))


def ref(stream_id: int = 0, chunk_index: int = 0) -> list[dict[str, int]]:
    return [{"slot_id": 1, "stream_id": stream_id, "chunk_index": chunk_index}]


@pytest.mark.parametrize("columns", COLUMNS, ids=["whole", "a column"])
def test_a_stream_that_is_right_is_read(columns: Mapping[int, Sequence[str]] | None) -> None:
    content = segment_of(stream_of((START, METADATA_BYTES, BODY_BYTES)))
    found = RangedReader(Blocks(content), columns=columns).bundle(0)
    assert found == {1: batches.plain(4).select(columns[1]) if columns else batches.plain(4)}


WRONG: dict[str, tuple[bytes, type[FormatError]]] = {
    "unknown stream": (segment_of(STREAM, ref(stream_id=5)), StreamNotFound),
    "unknown chunk": (segment_of(STREAM, ref(chunk_index=1)), StreamNotFound),
    "no chunks": (segment_of(stream_of()), StreamNotFound),
    "stream behind the file": (segment_of(STREAM, byte_offset=1 << 40), InvalidFormat),
    "stream cut off": (assemble(STREAM, directory(byte_length=len(STREAM) - 8), manifest()), ArrowError),
    "stream too short": (assemble(STREAM, directory(byte_length=4), manifest()), Truncated),
    "chunk behind the stream": (segment_of(stream_of((1 << 40, METADATA_BYTES, BODY_BYTES))), InvalidFormat),
    "chunk before the stream": (segment_of(stream_of((-8, METADATA_BYTES, BODY_BYTES))), InvalidFormat),
    "chunk that is too long": (segment_of(stream_of((START, METADATA_BYTES, 1 << 20))), InvalidFormat),
    "chunk of negative size": (segment_of(stream_of((START, METADATA_BYTES, -8))), InvalidFormat),
    "chunk that is not aligned": (segment_of(stream_of((START + 1, METADATA_BYTES, BODY_BYTES))), InvalidFormat),
    "chunk that is a schema": (segment_of(stream_of((len(FILE_START), len(SCHEMA), 0))), ArrowError),
    "chunk without its body": (segment_of(stream_of((START, METADATA_BYTES, 0))), ArrowError),
    "dictionary behind the stream": (
        segment_of(stream_of((START, METADATA_BYTES, BODY_BYTES), dictionaries=[(1 << 40, 64, 8)])),
        InvalidFormat,
    ),
}


@pytest.mark.parametrize("columns", COLUMNS, ids=["whole", "a column"])
@pytest.mark.parametrize(("content", "error"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(
    content: bytes, error: type[FormatError], columns: Mapping[int, Sequence[str]] | None
) -> None:
    reader = RangedReader(Blocks(content), columns=columns, segment_seq=7)
    for _ in range(2):
        with pytest.raises(error, match=r"^segment 7|^Arrow|^expected a record-batch"):
            reader.bundle(0)


def test_a_schema_of_a_stream_behind_the_file_is_refused() -> None:
    reader = RangedReader(Blocks(segment_of(STREAM, byte_offset=1 << 40)), segment_seq=7)
    with pytest.raises(InvalidFormat, match="segment 7 has a stream that ends behind"):
        reader.schema(0)
    assert reader.row_count == 4
