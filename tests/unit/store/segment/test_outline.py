"""An outline of a file whose end contradicts itself is refused, and the error says what is wrong. No checksum is asked here."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from quiver_actors.errors import FormatError, Truncated
from quiver_actors.store.segment.codec import decode_directory, decode_manifest, encode_directory, encode_manifest
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.outline import manifest_columns, read_messages, read_outline
from quiver_actors.store.segment.reader import SegmentReader
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import LogFile
from tests.unit.store.wal.logs import reader_of


@cache
def sealed() -> bytes:
    """Three bundles, in slots 1 and 2."""
    log = LogFile()
    for n in range(3):
        log.push({1: batches.plain(n), 2: batches.one_column(batches.dictionary(["a"], [0]))})
    return log.seal()


def with_directory(data: bytes, stream: int, **changes: Any) -> bytes:
    """Return the file with other values for one stream in its directory."""
    footer = SegmentReader(data).footer
    at, end = footer.directory_offset, footer.directory_offset + footer.directory_length
    streams = decode_directory(data[at:end])
    streams[stream] = streams[stream]._replace(**changes)
    return data[:at] + encode_directory(streams.values()) + data[end:]


def with_manifest(data: bytes, change: Callable[[ManifestColumns], ManifestColumns]) -> bytes:
    footer = SegmentReader(data).footer
    at, end = footer.manifest_offset, footer.manifest_offset + footer.manifest_length
    columns = change(manifest_columns(decode_manifest(data[at:end])))
    return data[:at] + encode_manifest(columns) + data[end:]


def with_reference(data: bytes, column: int, value: int) -> bytes:
    """The first reference of the manifest names something else."""

    def change(columns: ManifestColumns) -> ManifestColumns:
        columns.refs[0, column] = value
        return columns

    return with_manifest(data, change)


def with_block(data: bytes, offset: int) -> bytes:
    """The first batch of the first stream stands elsewhere."""
    first = read_outline(reader_of(data), len(data)).streams[0]
    info = SegmentReader(data).streams[0]
    block = struct.pack("<q", int(first.batches[0, 0]) - first.byte_offset)
    at = data.rindex(block, 0, info.byte_offset + info.byte_length)
    return data[:at] + struct.pack("<q", offset) + data[at + 8 :]


def with_foreign_footer(data: bytes) -> bytes:
    """The schema in the first stream's footer is none that can be taken out of there."""
    schema = read_outline(reader_of(data), len(data)).streams[0].schema.message
    at = data.rindex(schema[8:])
    return data[:at] + struct.pack("<I", 1 << 30) + data[at + 4 :]


SEALED = sealed()
WRONG = {
    "stream behind the streams": (with_directory(SEALED, 1, byte_length=len(SEALED)), "behind the streams' end"),
    "rows": (with_directory(SEALED, 0, row_count=1 << 49), "claims 562949953421312 rows"),
    "batches": (with_directory(SEALED, 0, chunk_count=4), "3 batches, the directory says 4"),
    "stream id": (with_directory(SEALED, 1, stream_id=7), "2 streams and 3 bundles"),
    "footer of others": (with_foreign_footer(SEALED), "another implementation wrote"),
    "batch before the stream": (with_block(SEALED, 0), "outside its"),
    "batch behind the stream": (with_block(SEALED, 1 << 40), "outside its"),
    "reference to no stream": (with_reference(SEALED, 1, 2), "the directory does not list"),
    "reference to another slot": (with_reference(SEALED, 0, 2), "its stream does not hold"),
    "reference to no batch": (with_reference(SEALED, 2, 3), "its stream does not hold"),
}


def test_what_is_right_is_outlined() -> None:
    outline = read_outline(reader_of(SEALED), len(SEALED))
    assert [len(found.batches) for found in outline.streams] == [3, 3]
    assert with_directory(SEALED, 0) == with_manifest(SEALED, lambda columns: columns) == SEALED


@pytest.mark.parametrize(("data", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_and_named(data: bytes, said: str) -> None:
    assert data != SEALED
    with pytest.raises(FormatError, match=said):
        read_outline(reader_of(data), len(data))


@pytest.mark.parametrize("column", ["byte_count", "sequence", "ingestion_ts_nanos"])
def test_a_manifest_without_what_only_ours_have_is_refused(column: str) -> None:
    footer = SegmentReader(SEALED).footer
    manifest = decode_manifest(SEALED[footer.manifest_offset :][: footer.manifest_length])
    absent: list[dict[str, Any]] = [{column: None}, {column: [1, None, 3]}]
    for change in absent:
        with pytest.raises(FormatError, match="lacks the byte counts, sequences or times"):
            manifest_columns(manifest._replace(**change))


def test_messages_of_a_file_that_ends_inside_one_are_truncated() -> None:
    spans = np.concatenate([found.batches for found in read_outline(reader_of(SEALED), len(SEALED)).streams])
    last = spans[spans[:, 0].argmax()]
    end = int(last.sum())
    assert len(list(read_messages(reader_of(SEALED[:end]), spans))) == len(spans)
    with pytest.raises(Truncated, match=f"the file ends at {end - 1}, inside a message up to {end}"):
        list(read_messages(reader_of(SEALED[: end - 1]), spans))
