"""Encode and decode what stands behind the streams of a segment: directory, manifest, footer, trailer. Pure.

Decoding is lenient about what other writers may do (columns by name, unknown ones ignored, optional ones missing or nullable, longer
footers) and strict in everything else: wrong types, nulls and impossible numbers are InvalidFormat, never an exception of numpy
or pyarrow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.base.model import SLOTS_MAX
from quiver_actors.errors import ArrowError, InvalidFormat, Truncated, UnsupportedVersion
from quiver_actors.store.segment.layout import (
    CRC,
    EXTENSION,
    FINGERPRINT_BYTES,
    FOOTER,
    SEGMENT_MAGIC,
    SEGMENT_VERSION,
    STREAMS_MAX,
    TRAILER,
    TRAILER_HEAD,
)
from quiver_actors.store.segment.manifest import Manifest, ManifestColumns

if TYPE_CHECKING:
    from typing_extensions import Buffer


_ARROW_FILE_BYTES = 1 << 10
"""The most that an Arrow file of one batch takes beside the batch and two schemas: magic, lengths, one block, padding."""


class FooterExtension(NamedTuple):
    """Our extension of the footer: the part of the log that a segment covers."""

    wal_position_start: int
    wal_position_end: int
    first_sequence: int
    last_sequence: int
    first_ingestion_ts_nanos: int
    last_ingestion_ts_nanos: int
    row_count: int
    """Rows of all slots of all bundles."""
    incarnation: bytes


class SegmentFooter(NamedTuple):
    """Footer and trailer of one segment."""

    stream_count: int
    bundle_count: int
    directory_offset: int
    directory_length: int
    manifest_offset: int
    manifest_length: int
    extension: FooterExtension | None
    """Our extension of the footer; None in a segment that another implementation wrote."""
    crc32: int
    """CRC-32 of the whole file but its last four bytes, as the trailer says; not checked yet."""


class StreamInfo(NamedTuple):
    """One row of the stream directory."""

    stream_id: int
    slot_id: int
    schema_fingerprint: bytes
    byte_offset: int
    byte_length: int
    row_count: int
    chunk_count: int


# --- footer and trailer ------------------------------------------------------------------------------------------------------


def encode_footer_and_trailer(footer: SegmentFooter) -> bytes:
    """Footer, extension and trailer up to the CRC, which the caller appends once it knows it (`CRC.pack`)."""
    assert footer.extension is not None, "only other implementations write none"
    encoded = FOOTER.pack(SEGMENT_VERSION, *footer[:6]) + EXTENSION.pack(EXTENSION.size, *footer.extension)
    return encoded + TRAILER_HEAD.pack(len(encoded), SEGMENT_MAGIC)


def decode_trailer(tail: bytes, file_size: int) -> int:
    """Size of the footer, from a file's last bytes.

    Raises:
        Truncated: the file is smaller than a trailer.
        InvalidFormat: it does not end as a segment does.
    """
    if file_size < TRAILER.size or len(tail) < TRAILER.size:
        raise Truncated(f"segment has {file_size} bytes: expected at least the {TRAILER.size} of its trailer")
    footer_size, magic, _ = TRAILER.unpack_from(tail, len(tail) - TRAILER.size)
    if magic != SEGMENT_MAGIC:
        raise InvalidFormat(f"segment ends with magic {magic!r}: expected {SEGMENT_MAGIC!r}")
    if not 2 <= footer_size <= file_size - TRAILER.size:
        raise InvalidFormat(f"segment of {file_size} bytes claims a footer of {footer_size} bytes")
    return int(footer_size)


def decode_footer(tail: bytes, file_size: int) -> SegmentFooter:
    """Decode footer, extension and trailer from a file's last bytes, which must hold all three.

    Raises:
        Truncated, InvalidFormat: they are damaged, or the regions they name are outside the file.
        UnsupportedVersion: a newer version of the format.
    """
    footer_size = decode_trailer(tail, file_size)
    start = len(tail) - TRAILER.size - footer_size
    version = int.from_bytes(tail[start : start + 2], "little")
    if version != SEGMENT_VERSION:
        raise UnsupportedVersion(f"segment has version {version}: this release reads version {SEGMENT_VERSION}")
    if footer_size < FOOTER.size:
        raise InvalidFormat(f"segment footer has {footer_size} bytes: expected at least {FOOTER.size}")
    _, *fields = FOOTER.unpack_from(tail, start)
    extension = _decode_extension(tail[start + FOOTER.size : start + footer_size])
    checksum = CRC.unpack_from(tail, len(tail) - CRC.size)[0]
    footer = SegmentFooter._make((*fields, extension, checksum))
    _check_region("stream directory", footer.directory_offset, footer.directory_length, file_size)
    _check_region("batch manifest", footer.manifest_offset, footer.manifest_length, file_size)
    return footer


def _decode_extension(region: bytes) -> FooterExtension | None:
    """Ours is known by its size field, which covers it; anything shorter or inconsistent is somebody else's."""
    if len(region) < EXTENSION.size:
        return None
    size, *fields = EXTENSION.unpack_from(region)
    return FooterExtension(*fields) if EXTENSION.size <= size <= len(region) else None


def _check_region(name: str, offset: int, length: int, file_size: int) -> None:
    if offset + length > file_size - TRAILER.size:
        raise InvalidFormat(f"{name} at [{offset}, {offset + length}) lies outside the segment of {file_size} bytes")


# --- tables as Arrow files -----------------------------------------------------------------------------------------------------


def _non_null(name: str, data_type: pa.DataType) -> pa.Field:
    return pa.field(name, data_type, nullable=False)


DIRECTORY_SCHEMA: pa.Schema = pa.schema(
    [
        _non_null("stream_id", pa.uint32()),
        _non_null("slot_id", pa.uint16()),
        _non_null("schema_fingerprint", pa.binary(FINGERPRINT_BYTES)),
        _non_null("byte_offset", pa.uint64()),
        _non_null("byte_length", pa.uint64()),
        _non_null("row_count", pa.uint64()),
        _non_null("chunk_count", pa.uint32()),
    ]
)

_REF_FIELDS: list[pa.Field] = [
    _non_null("slot_id", pa.uint16()),
    _non_null("stream_id", pa.uint32()),
    _non_null("chunk_index", pa.uint32()),
]
_REFS_TYPE: pa.DataType = pa.list_(pa.field("item", pa.struct(_REF_FIELDS), nullable=True))


@functools.cache
def manifest_schema(*, item_count: str, bundle_crc32: bool = False) -> pa.Schema:
    """The manifest as we write it. `item_count` is `all`, `some` or `none`: how many bundles have a known count."""
    counts = {"all": [_non_null("item_count", pa.uint64())], "some": [pa.field("item_count", pa.uint64())], "none": []}
    return pa.schema(
        [
            _non_null("bundle_index", pa.uint32()),
            *counts[item_count],
            _non_null("slot_refs", _REFS_TYPE),
            pa.field("byte_count", pa.uint64()),
            pa.field("sequence", pa.uint64()),
            pa.field("ingestion_ts_nanos", pa.int64()),
            *([pa.field("bundle_crc32", pa.uint32())] if bundle_crc32 else []),
        ]
    )


def encode_directory(streams: Iterable[StreamInfo]) -> memoryview:
    """The stream directory as an Arrow IPC file."""
    columns: list[Sequence[Any]] = list(zip(*streams, strict=True)) or [()] * len(DIRECTORY_SCHEMA)
    arrays = [_directory_column(column, field.type) for column, field in zip(columns, DIRECTORY_SCHEMA, strict=True)]
    return _encode_table(pa.RecordBatch.from_arrays(arrays, schema=DIRECTORY_SCHEMA))


def _directory_column(values: Sequence[Any], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_fixed_size_binary(data_type):
        return pa.Array.from_buffers(data_type, len(values), [None, pa.py_buffer(b"".join(values))])
    return _array(np.array(values, dtype=f"u{data_type.bit_width // 8}"), data_type)


def _array(values: npt.NDArray[Any], data_type: pa.DataType, known: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Numbers as an Arrow array, without a copy where they stand behind each other; null where not `known`.

    Neither `pa.array` nor `Array.to_numpy`: the first call of either imports pandas, 0.2 s and 40 MB of a process that has no use for it.
    """
    contiguous = np.ascontiguousarray(values)
    assert contiguous.itemsize * 8 == data_type.bit_width, f"{contiguous.dtype} for {data_type}"
    validity, null_count = (None, 0) if known is None else (pa.py_buffer(np.packbits(known, bitorder="little")), -1)
    return pa.Array.from_buffers(data_type, len(contiguous), [validity, pa.py_buffer(contiguous)], null_count)


def encode_manifest(columns: ManifestColumns) -> memoryview:
    """The batch manifest as an Arrow IPC file."""
    known = columns.item_count >= 0
    item_count = "all" if known.all() else "some" if known.any() else "none"
    arrays = [_array(np.arange(len(known), dtype=np.uint32), pa.uint32())]
    if item_count != "none":
        counts = np.where(known, columns.item_count, 0).astype(np.uint64)
        arrays.append(_array(counts, pa.uint64(), None if item_count == "all" else known))
    arrays.append(_encode_refs(columns.slot_counts, columns.refs))
    arrays += [
        _array(columns.byte_count, pa.uint64()),
        _array(columns.sequence, pa.uint64()),
        _array(columns.ingestion_ts_nanos, pa.int64()),
    ]
    if columns.bundle_crc32 is not None:
        arrays.append(_array(columns.bundle_crc32, pa.uint32()))
    schema = manifest_schema(item_count=item_count, bundle_crc32=columns.bundle_crc32 is not None)
    return _encode_table(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _encode_refs(slot_counts: npt.NDArray[np.int32], refs: npt.NDArray[np.uint32]) -> pa.Array:
    ends = np.zeros(len(slot_counts) + 1, dtype=np.int32)
    np.cumsum(slot_counts, out=ends[1:])
    children = [
        _array(refs[:, 0].astype(np.uint16), pa.uint16()),
        _array(refs[:, 1], pa.uint32()),
        _array(refs[:, 2], pa.uint32()),
    ]
    structs = pa.Array.from_buffers(_REFS_TYPE.value_type, len(refs), [None], 0, children=children)
    return pa.Array.from_buffers(_REFS_TYPE, len(slot_counts), [None, pa.py_buffer(ends)], 0, children=[structs])


def _encode_table(batch: pa.RecordBatch) -> memoryview:
    """An Arrow file of one batch, written to memory that is large enough from the start: growing it copies, and takes fresh pages."""
    schema_bytes = 2 * batch.schema.serialize().size  # it stands in the footer once more
    memory = pa.allocate_buffer(schema_bytes + pa.ipc.get_record_batch_size(batch) + _ARROW_FILE_BYTES)
    sink = pa.FixedSizeBufferWriter(memory)
    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return memoryview(memory)[: sink.tell()]


def _decode_table(name: str, region: Buffer) -> pa.RecordBatch:
    """The first batch of an Arrow IPC file; others are not ours to read."""
    try:
        reader = pa.ipc.open_file(pa.py_buffer(region))
        if reader.num_record_batches < 1:
            raise InvalidFormat(f"{name} holds no record batch")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise ArrowError(f"{name} cannot be read as an Arrow file: {error}") from error
    return batch


def _column(table: str, batch: pa.RecordBatch, name: str, data_type: pa.DataType) -> pa.Array:
    """A column by name that must be there once, of that type and without nulls."""
    array = _optional_column(table, batch, name, data_type)
    if array is None:
        raise InvalidFormat(f"{table} lacks its column {name}")
    if array.null_count:
        raise InvalidFormat(f"{table} column {name} holds nulls")
    return array


def _optional_column(table: str, batch: pa.RecordBatch, name: str, data_type: pa.DataType) -> pa.Array | None:
    index = batch.schema.get_field_index(name)
    if index < 0:
        return None
    array = batch.column(index)
    if array.type != data_type:
        raise InvalidFormat(f"{table} column {name} has type {array.type}: expected {data_type}")
    return array


def _integers(array: pa.Array) -> Sequence[int]:
    """A column without nulls as a view that gives Python integers in 35 ns."""
    return np.from_dlpack(array).data


def decode_directory(region: Buffer) -> dict[int, StreamInfo]:
    """Decode the stream directory; streams by their id.

    Raises:
        ArrowError, InvalidFormat: damaged, or over the limit of 100,000 streams.
    """
    batch = _decode_table("stream directory", region)
    if batch.num_rows > STREAMS_MAX:
        raise InvalidFormat(f"stream directory lists {batch.num_rows} streams: the limit is {STREAMS_MAX}")
    columns = [_column("stream directory", batch, field.name, field.type).to_pylist() for field in DIRECTORY_SCHEMA]
    streams = {row[0]: StreamInfo(*row) for row in zip(*columns, strict=True)}
    if len(streams) != batch.num_rows:
        raise InvalidFormat("stream directory lists a stream id twice")
    return streams


def decode_manifest(region: Buffer) -> Manifest:
    """Decode the batch manifest.

    Raises:
        ArrowError, InvalidFormat: damaged, out of order, or a bundle has more than 64 slots.
    """
    batch = _decode_table("batch manifest", region)
    indexes = _column("batch manifest", batch, "bundle_index", pa.uint32())
    if (np.from_dlpack(indexes) != np.arange(len(indexes))).any():
        raise InvalidFormat("batch manifest does not number its bundles 0, 1, 2, ...")
    return Manifest(
        batch.num_rows,
        *_decode_refs(batch),
        _optional_integers(batch, "item_count", pa.uint64()),
        _optional_integers(batch, "byte_count", pa.uint64()),
        _optional_integers(batch, "sequence", pa.uint64()),
        _optional_integers(batch, "ingestion_ts_nanos", pa.int64()),
        _optional_integers(batch, "bundle_crc32", pa.uint32()),
    )


def _decode_refs(batch: pa.RecordBatch) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]:
    index = batch.schema.get_field_index("slot_refs")
    refs = batch.column(index) if index >= 0 else None
    if refs is None or not pa.types.is_list(refs.type) or not pa.types.is_struct(refs.type.value_type):
        raise InvalidFormat("batch manifest lacks its column slot_refs of lists of structs")
    ends, structs = np.from_dlpack(refs.offsets), refs.values
    if refs.null_count or structs.null_count:
        raise InvalidFormat("batch manifest column slot_refs holds nulls")
    if len(refs) and int(np.diff(ends).max()) > SLOTS_MAX:
        raise InvalidFormat(f"batch manifest has a bundle with more than {SLOTS_MAX} slots")
    inner = pa.RecordBatch.from_struct_array(structs)
    slots, streams, chunks = (_integers(_column("slot_refs", inner, field.name, field.type)) for field in _REF_FIELDS)
    return ends.data, slots, streams, chunks


def _optional_integers(batch: pa.RecordBatch, name: str, data_type: pa.DataType) -> Sequence[int | None] | None:
    """A column that may be missing (None) or hold nulls (None in its place)."""
    array = _optional_column("batch manifest", batch, name, data_type)
    if array is None:
        return None
    if array.null_count == 0:
        return _integers(array)
    values: list[int | None] = array.to_pylist()
    return values
