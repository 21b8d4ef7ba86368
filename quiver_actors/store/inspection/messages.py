"""The Arrow messages of a file whose own directory cannot be read: what a segment still holds when its end is gone.

Streams of a contiguous segment start on 64 bytes with `ARROW1`; each is followed from there, message by message, as far as it goes.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from quiver_actors.store.inspection.decoding import one_line
from quiver_actors.store.inspection.findings import Finding, damage
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.inspection.views import MessageView
from quiver_actors.store.segment.arrow_file import FILE_START
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.segment.layout import STREAM_ALIGNMENT

_READ_BYTES_MAX = 1 << 30


def walk_messages(source: Source) -> tuple[list[MessageView], list[Finding]]:
    """Every message of every stream that can be found, and where each stream breaks."""
    data = source.read(_READ_BYTES_MAX, 0)
    buffer = pa.py_buffer(data)
    found: list[MessageView] = []
    breaks: list[Finding] = []
    for start in _stream_starts(data):
        offset = _behind_padding(data, start + len(FILE_START))
        try:
            for message in _messages(buffer, offset):
                found.append(message)
                offset = message.offset + message.metadata_bytes + message.body_bytes
        except (pa.ArrowException, OSError, EOFError) as error:
            breaks.append(_break(source, start, offset, error))
    return found, breaks


def _stream_starts(data: bytes) -> Iterator[int]:
    at = data.find(FILE_START)
    while at >= 0:
        if at % STREAM_ALIGNMENT == 0:
            yield at
        at = data.find(FILE_START, at + 1)


def _behind_padding(data: bytes, offset: int) -> int:
    """The offset behind the magic's padding: some writers pad it with more zeroes than Arrow asks for."""
    padding = data[offset : offset + STREAM_ALIGNMENT]
    return offset + len(padding) - len(padding.lstrip(b"\0"))


def _messages(buffer: pa.Buffer, offset: int) -> Iterator[MessageView]:
    """The messages from `offset` to the end-of-stream mark. Raises what pyarrow raises where one is broken."""
    view = memoryview(buffer)
    while view[offset : offset + len(END_OF_STREAM)] != END_OF_STREAM:
        reader = pa.BufferReader(buffer.slice(offset))
        message = pa.ipc.read_message(reader)
        size = reader.tell()
        body_bytes = message.body.size if message.body is not None else 0
        yield MessageView(offset=offset, kind=message.type, metadata_bytes=size - body_bytes, body_bytes=body_bytes)
        offset += size


def _break(source: Source, start: int, offset: int, error: Exception) -> Finding:
    return damage(
        "arrow.message",
        source.path,
        offset,
        f"the Arrow stream at {start} breaks",
        expected="a message or the end of the stream",
        found=one_line(error),
    )
