"""Decoding Arrow data only to see whether it can be decoded, and exporting nothing. Imports pyarrow.

`validate(full=True)` looks at every value, offset and index of a batch: what passes can be computed on without reading out of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from quiver_actors.errors import FormatError
from quiver_actors.store.segment.placement import check_dictionaries, place_payload
from quiver_actors.store.segment.reader import SegmentReader
from quiver_actors.store.wal.codec import SlotBlock, decode_slots


def check_payloads(body: bytes, slot_bitmap: int) -> str:
    """Why the payloads of a log entry's body cannot be used; empty if each of them decodes to what its slot head says."""
    try:
        blocks = decode_slots(body, slot_bitmap)
    except FormatError as error:
        return str(error)
    return next((problem for block in blocks if (problem := _check_payload(body, block))), "")


def _check_payload(body: bytes, block: SlotBlock) -> str:
    start, end = block.payload_offset, block.payload_offset + block.payload_bytes
    try:
        placement = place_payload(
            body, start, end, file_offset=start, slot_id=block.slot_id, fingerprint=block.fingerprint
        )
        check_dictionaries(placement[0], placement[5])
        with pa.ipc.open_stream(pa.py_buffer(body[start:end])) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (FormatError, pa.ArrowException, OSError, ValueError, StopIteration) as error:
        return f"slot {block.slot_id} cannot be decoded: {one_line(error)}"
    if batch.num_rows != block.row_count:
        return f"slot {block.slot_id} holds {batch.num_rows} rows: its head says {block.row_count}"
    return ""


class BrokenBatch(Exception):
    """Why one batch of a segment cannot be used."""


def checked_batch(reader: SegmentReader, index: int, slot_id: int) -> pa.RecordBatch:
    """One batch of a segment, every value looked at.

    Raises:
        BrokenBatch: it cannot be decoded, or holds values that Arrow does not allow.
    """
    try:
        batch = reader.batch(index, slot_id)
        batch.validate(full=True)
    except (FormatError, pa.ArrowException, ValueError) as error:
        raise BrokenBatch(one_line(error)) from error
    return batch


def schema_lines(schema: pa.Schema) -> list[str]:
    """One line a field: `name: type`, `not null` where it is."""
    return [f"{field.name}: {field.type}{'' if field.nullable else ' not null'}" for field in schema]


def stream_schemas(reader: SegmentReader) -> Iterator[tuple[int, list[str]]]:
    """The schema of each stream that can be opened, as (stream id, schema lines)."""
    for stream in reader.streams:
        try:
            yield stream.stream_id, schema_lines(reader.schema(stream.stream_id))
        except FormatError:
            continue  # the look itself reports what is wrong with the stream


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    return " ".join(str(error).split())
