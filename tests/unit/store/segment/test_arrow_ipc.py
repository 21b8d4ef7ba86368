"""Message walking and footers, against pyarrow's own reader and against damaged bytes."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError, FormatError, Truncated
from quiver_actors.store.segment.arrow_file import (
    BLOCK,
    FILE_START,
    encode_footer,
    read_file_footer,
    read_footer_counts,
)
from quiver_actors.store.segment.arrow_ipc import (
    END_OF_STREAM,
    BatchSpan,
    DictionarySpan,
    batch_layout,
    dictionary_ids,
    walk_messages,
    walk_stream,
)
from quiver_actors.store.segment.bodies import batch_buffers, has_compressed_body
from tests.unit.store.segment import batches
from tests.unit.store.segment.logfile import encode_stream
from tests.unit.store.wal.logs import reader_of


def encode_file(payload: bytes) -> bytes:
    """The stream made into a file by a footer alone."""
    layout = walk_stream(payload, 0, len(payload))
    blocks = b"".join(
        BLOCK.pack(8 + span.offset, span.metadata_bytes, 0, span.body_bytes) for span in layout.dictionaries
    )
    batch = BLOCK.pack(8 + layout.batch.offset, layout.batch.metadata_bytes, 0, layout.batch.body_bytes)
    return b"".join((FILE_START, payload, *encode_footer(payload[: layout.schema_length], blocks, batch)))


@pytest.mark.parametrize("make", batches.EVERY, ids=lambda make: make.__name__)
def test_walk_finds_what_pyarrow_finds(make: Callable[[], pa.RecordBatch]) -> None:
    payload = encode_stream(make())
    layout = walk_stream(b"\1" * 24 + payload + bytes(40), 24, 24 + len(payload) + 40)
    assert layout.end == len(payload)
    assert layout.row_count == make().num_rows
    messages = list(pa.ipc.MessageReader.open_stream(payload))
    assert [message.type for message in messages] == [
        "schema",
        *(["dictionary"] * len(layout.dictionaries)),
        "record batch",
    ]
    at = layout.schema_length
    spans: list[DictionarySpan | BatchSpan] = [*layout.dictionaries, layout.batch]
    for span, message in zip(spans, messages[1:], strict=True):
        assert span.offset == at
        assert span.body_bytes == message.body.size
        assert payload[at + 8 : at + span.metadata_bytes] == message.metadata.to_pybytes()
        at += span.metadata_bytes + span.body_bytes
    assert payload[at:] == END_OF_STREAM


@pytest.mark.parametrize("make", batches.EVERY, ids=lambda make: make.__name__)
def test_schema_names_the_dictionaries_that_the_stream_brings(make: Callable[[], pa.RecordBatch]) -> None:
    payload = encode_stream(make())
    layout = walk_stream(payload, 0, len(payload))
    assert sorted(dictionary_ids(payload[: layout.schema_length])) == sorted(span.id for span in layout.dictionaries)


@pytest.mark.parametrize("make", batches.EVERY, ids=lambda make: make.__name__)
def test_footer_makes_a_file_of_a_stream(make: Callable[[], pa.RecordBatch]) -> None:
    data = encode_file(encode_stream(make()))
    reader = pa.ipc.open_file(pa.py_buffer(data))
    assert reader.schema.equals(make().schema, check_metadata=True)
    assert reader.num_record_batches == 1
    batch = reader.get_batch(0)
    batch.validate(full=True)
    assert batch.equals(make())
    counts = read_footer_counts(data, 0, len(data))
    assert counts.batches == 1
    assert counts.dictionaries == len(walk_stream(data, 8, len(data)).dictionaries)


def test_footer_without_blocks() -> None:
    payload = encode_stream(batches.metadata())
    layout = walk_stream(payload, 0, len(payload))
    data = b"".join((FILE_START, *encode_footer(payload[: layout.schema_length], b"", b"")))
    reader = pa.ipc.open_file(pa.py_buffer(data))
    assert reader.num_record_batches == 0
    assert reader.schema.equals(batches.metadata().schema, check_metadata=True)


def test_footer_of_pyarrow_is_counted() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batches.dictionary_keys().schema) as writer:
        for _ in range(3):
            writer.write_batch(batches.dictionary_keys())
    data = sink.getvalue().to_pybytes()
    assert read_footer_counts(data, 0, len(data)) == (8, 3)


def test_metadata_version_of_the_schema_goes_into_the_footer() -> None:
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    data = encode_file(encode_stream(batches.plain(), old))
    assert pa.ipc.open_file(pa.py_buffer(data)).get_batch(0).equals(batches.plain())


def test_stream_that_ends_early_is_truncated_at_every_length() -> None:
    payload = encode_stream(batches.one_column(batches.dictionary(["a", "b"], [1, 0])))
    for end in range(len(payload)):
        with pytest.raises(Truncated):
            walk_stream(payload, 0, end)
    with pytest.raises(Truncated):
        walk_stream(payload, 0, len(payload) + 1)
    with pytest.raises(Truncated):
        walk_stream(payload, 5, 4)


def test_stream_must_hold_exactly_one_record_batch() -> None:
    payload = encode_stream(batches.plain())
    layout = walk_stream(payload, 0, len(payload))
    schema, batch = payload[: layout.schema_length], payload[layout.schema_length : -8]
    for wrong in (END_OF_STREAM, schema + END_OF_STREAM, schema + batch * 2 + END_OF_STREAM, batch + END_OF_STREAM):
        with pytest.raises(ArrowError):
            walk_stream(wrong, 0, len(wrong))
    with pytest.raises(ArrowError):
        walk_stream(schema * 2 + batch + END_OF_STREAM, 0, 2 * len(schema) + len(batch) + 8)


def test_legacy_framing_without_continuation_mark_is_refused() -> None:
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    payload = encode_stream(batches.plain(), options)
    with pytest.raises(ArrowError, match="0xffffffff"):
        walk_stream(payload, 0, len(payload))


def test_damaged_stream_raises_nothing_but_format_errors() -> None:
    """Every byte of the metadata is set to telling values; whatever is still a stream stays inside its bytes."""
    rng = random.Random(5)
    payload = encode_stream(batches.nested_dictionaries().slice(0, 1))
    layout = walk_stream(payload, 0, len(payload))
    schema = payload[: layout.schema_length]
    refused = 0
    for at in range(len(payload)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)):
            damaged = payload[:at] + bytes([value]) + payload[at + 1 :]
            try:
                found = walk_stream(damaged, 0, len(damaged))
                assert 0 < found.schema_length < found.batch.offset < found.end <= len(damaged)
            except FormatError:
                refused += 1
            if at < len(schema):
                try:
                    dictionary_ids(damaged[: len(schema)])
                except FormatError:
                    refused += 1
    assert refused > len(schema)


def test_damaged_footer_raises_nothing_but_format_errors() -> None:
    data = encode_file(encode_stream(batches.dictionary_keys()))
    for at in range(len(data) - 400, len(data)):
        for value in (0, 0x7F, 0x80, 0xFF):
            damaged = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                counts = read_footer_counts(damaged, 0, len(damaged))
                assert min(counts) >= 0
            except FormatError:
                pass
    for end in (0, 9, 25, len(data) - 1):
        with pytest.raises(FormatError):
            read_footer_counts(data, 0, end)
    with pytest.raises(Truncated):
        read_footer_counts(data, 0, len(data) + 1)


def test_schema_that_nests_without_end_is_refused() -> None:
    kind: pa.DataType = pa.int8()
    for _ in range(70):
        kind = pa.list_(kind)
    with pytest.raises(ArrowError, match="deeper"):
        dictionary_ids(pa.schema([pa.field("deep", kind)]).serialize().to_pybytes())


def test_flatbuffer_that_points_before_itself_is_refused() -> None:
    flatbuffer = struct.pack("<Ii", 4, 2**31 - 1) + bytes(8)
    message = struct.pack("<II", 0xFFFFFFFF, len(flatbuffer)) + flatbuffer
    with pytest.raises(ArrowError, match="before its start"):
        walk_stream(message, 0, len(message))


# --- one message, one footer -------------------------------------------------------------------------------------------------


def pointing_nowhere(message: bytes) -> bytes:
    """Return the message with the root of its flatbuffer behind its end."""
    return message[:8] + struct.pack("<I", 1 << 30) + message[12:]


SCHEMA = batches.plain().schema.serialize().to_pybytes()
BATCH = batches.plain().serialize().to_pybytes()
NO_BATCHES = {
    "schema": (SCHEMA, "expected a record"),
    "end": (END_OF_STREAM, "expected a record"),
    "broken": (pointing_nowhere(BATCH), "broken flatbuffer"),
    "cut off": (BATCH[:40], "32 are left"),
    "nothing": (b"", "expected a message"),
}


@pytest.mark.parametrize(("message", "said"), NO_BATCHES.values(), ids=NO_BATCHES)
@pytest.mark.parametrize("look", [batch_layout, batch_buffers, has_compressed_body])
def test_what_is_no_record_batch_is_named(look: Callable[[bytes], object], message: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        look(message)


@pytest.mark.parametrize("more_bytes", [0, 8])
def test_a_list_of_buffers_that_goes_on_behind_its_message_is_refused(more_bytes: int) -> None:
    message = pa.record_batch({"a": [1, 2]}).serialize().to_pybytes()
    metadata = message[: metadata_bytes_of(message)]
    at = metadata.index(struct.pack("<qqqq", 0, 0, 0, 16))
    longer = metadata[: at - 4] + struct.pack("<I", 1000) + metadata[at:] + bytes(more_bytes)
    prefix = struct.pack("<II", 0xFFFFFFFF, len(longer) - 8)
    with pytest.raises(ArrowError, match="broken flatbuffer"):
        batch_buffers(prefix + longer[8:])


def metadata_bytes_of(message: bytes) -> int:
    """Bytes of a message's metadata, with its prefix."""
    return 8 + int.from_bytes(message[4:8], "little")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (BATCH[:40], "bytes of metadata: its stream ends at 40"),
        (pointing_nowhere(BATCH), "broken flatbuffer"),
        (BATCH, "its stream ends"),
    ],
    ids=["cut off", "broken", "without an end mark"],
)
def test_walking_messages_stops_with_an_error_where_the_next_is_none(data: bytes, said: str) -> None:
    with pytest.raises(FormatError, match=said):
        list(walk_messages(reader_of(data), 0, len(data)))


def test_a_file_footer_says_where_the_batches_are_and_what_their_schema_is() -> None:
    payload = encode_stream(batches.plain())
    data = encode_file(payload)
    found = read_file_footer(reader_of(data), 0, len(data))
    assert found.schema_message == SCHEMA
    assert [block[0] for block in BLOCK.iter_unpack(found.batch_blocks)] == [8 + len(SCHEMA)]
    at = data.rindex(SCHEMA[8:])
    other = data[:at] + struct.pack("<I", 1 << 30) + data[at + 4 :]
    left = read_file_footer(reader_of(other), 0, len(other))
    assert left == found._replace(schema_message=None), "the blocks are as good without it"


def test_what_is_no_file_footer_is_named() -> None:
    data = encode_file(encode_stream(batches.plain()))
    length = int.from_bytes(data[-10:-6], "little")
    start = len(data) - 10 - length
    wrong = {
        "too short": data[:25],
        "has no footer": data[:-1] + b"x",
        "broken footer": data[:start] + struct.pack("<I", 1 << 30) + data[start + 4 :],
    }
    for said, content in wrong.items():
        with pytest.raises(FormatError, match=said):
            read_file_footer(reader_of(content), 0, len(content))
    with pytest.raises(FormatError, match="has no footer"):
        read_file_footer(reader_of(data[:-3]), 0, len(data))
