"""Which schemas one segment has, and how many rows of each, from the ends of its streams alone: no bundle is read."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from quiver_actors.errors import ArrowError, InvalidFormat
from quiver_actors.store.files.summaries import StoredSchema, StoredSchemas
from quiver_actors.store.segment.arrow_file import read_file_footer
from quiver_actors.store.segment.builder import Stream
from quiver_actors.store.segment.codec import decode_directory
from quiver_actors.store.segment.reader import read_footer


def schemas_of(streams: list[Stream]) -> StoredSchemas:
    """The schemas of a segment that was just built, with their rows."""
    rows: dict[StoredSchema, int] = {}
    for stream in streams:
        schema = StoredSchema(stream.schema.slot_id, stream.schema.message)
        rows[schema] = rows.get(schema, 0) + stream.row_count
    return tuple(rows.items())


def read_schemas(read: Callable[[int, int], bytes], size_bytes: int) -> StoredSchemas:
    """The schemas of a stored segment, with their rows.

    Args:
        read: `read(length, offset)`, like `DiskFile.read`.

    Raises:
        FormatError: by its subclasses: it is damaged, or another implementation wrote it.
    """
    footer = read_footer(read, size_bytes)
    directory = decode_directory(read(footer.directory_length, footer.directory_offset))
    rows: dict[StoredSchema, int] = {}
    for stream in directory.values():
        message = read_file_footer(read, stream.byte_offset, stream.byte_offset + stream.byte_length).schema_message
        if message is None:
            raise InvalidFormat(f"stream {stream.stream_id} has an Arrow footer that another implementation wrote")
        _check(message)
        schema = StoredSchema(stream.slot_id, message)
        rows[schema] = rows.get(schema, 0) + stream.row_count
    return tuple(rows.items())


def _check(message: bytes) -> None:
    try:
        pa.ipc.read_schema(pa.py_buffer(message))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ArrowError(f"a stream's schema cannot be decoded: {error}") from error
