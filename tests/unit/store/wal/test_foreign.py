"""Payloads of other users: what is let in, and that nothing hurts whoever checks."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.errors import ArrowError, ProtocolError
from quiver_actors.store.wal.foreign import FIELDS_MAX, check_foreign_push, check_payload, check_schema
from tests.unit.store.wal.test_admission import ROWS, Sent, sent


def encode(batch: pa.RecordBatch, metadata: dict[str, str] | None = None, **options: Any) -> tuple[bytearray, bytes]:
    """A payload with its padding, and its schema message."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch, custom_metadata=metadata)
    stream = sink.getvalue().to_pybytes()
    return bytearray(stream + bytes(-len(stream) % 64)), batch.schema.serialize().to_pybytes()


def check(batch: pa.RecordBatch, rows: int | None = None, **options: Any) -> None:
    payload, schema = encode(batch, **options)
    check_payload(memoryview(payload), schema, batch.num_rows if rows is None else rows)


GOOD = pa.record_batch(
    {
        "id": pa.array([1, None, 3]),
        "text": pa.array(["a", "ash", None]),
        "view": pa.array(["a", "a text that is longer than a view holds", None], pa.string_view()),
        "list": pa.array([[1, 2], None, []], pa.list_(pa.int32())),
        "nested": pa.array([{"x": [{"y": "z"}]}, None, {"x": []}]),
        "word": pa.array(["a", "b", "a"]).dictionary_encode(),
    }
)


@pytest.mark.parametrize("batch", [GOOD, GOOD.slice(1, 1), GOOD.slice(0, 0), pa.record_batch({})])
def test_good_batches_are_let_in(batch: pa.RecordBatch) -> None:
    check(batch)


def test_the_row_count_must_be_the_batches_own() -> None:
    with pytest.raises(ArrowError, match="has 3 rows: its row says 4"):
        check(GOOD, rows=4)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("column", [pa.array(["x" * 1000] * 100), pa.array(["x" * 1000] * 100).dictionary_encode()])
def test_compressed_bodies_stay_out(codec: str, column: pa.Array) -> None:
    with pytest.raises(ArrowError, match="compressed"):
        check(pa.record_batch({"x": column}), compression=codec)


def test_bodies_that_say_it_as_arrow_0_17_did_stay_out() -> None:
    version, said = pa.ipc.MetadataVersion.V4, {"ARROW:experimental_compression": "zstd"}
    payload, schema = encode(pa.record_batch({"x": [1]}), said, metadata_version=version)
    with pytest.raises(ArrowError, match="compressed"):
        check_payload(memoryview(payload), schema, 1)
    check(pa.record_batch({"x": [1]}), metadata_version=version)


@pytest.mark.parametrize(
    "field",
    [
        pa.field("x", pa.uuid()),
        pa.field("x", pa.list_(pa.json_(pa.string()))),
        pa.field("x", pa.binary(), metadata={"ARROW:extension:name": "evil.pickle"}),
        pa.field("x", pa.struct([pa.field("y", pa.int8(), metadata={"ARROW:extension:name": "evil"})])),
    ],
)
def test_extension_types_stay_out(field: pa.Field) -> None:
    with pytest.raises(ArrowError, match="extension type"):
        check_schema(pa.schema([field]).serialize().to_pybytes())


def test_schema_floods_stay_out() -> None:
    many = pa.schema([pa.field(f"f{number}", pa.int8()) for number in range(FIELDS_MAX + 1)])
    with pytest.raises(ArrowError, match=f"more than {FIELDS_MAX} fields"):
        check_schema(many.serialize().to_pybytes())
    deep: pa.DataType = pa.int8()
    for _ in range(200):
        deep = pa.list_(deep)
    with pytest.raises(ArrowError, match="deeper"):
        check_schema(pa.schema([pa.field("deep", deep)]).serialize().to_pybytes())


def words(*values: int, width: int = 4) -> bytes:
    return b"".join(value.to_bytes(width, "little") for value in values)


@pytest.mark.parametrize(
    ("values", "old", "new"),
    [
        (pa.array(["abcdefgh", "cdcdcdcd"]), words(0, 8, 16), words(0, 900, 900)),
        (pa.array(["abcdefgh", "cdcdcdcd"]), words(0, 8, 16), words(0, 16, 2)),
        (pa.array(["abcdefgh", "cdcdcdcd"]), b"abcdefgh", b"\xff\xfe\xfd\xfc\xff\xff\xff\xff"),
        (pa.array([b"ab", b"cd"], pa.large_binary()), words(0, 2, 4, width=8), words(0, 1 << 60, 1 << 61, width=8)),
        (pa.array([["a"], ["b", "c"]]), words(0, 1, 3), words(0, 1, 77)),
        (pa.array(["a", "b"]).dictionary_encode(), words(0, 1), words(0, 9)),
    ],
    ids=["outside", "falling", "no UTF-8", "huge", "list outside", "dictionary index outside"],
)
def test_buffers_that_do_not_hold_together_stay_out(values: pa.Array, old: bytes, new: bytes) -> None:
    batch = pa.record_batch({"x": values})
    payload, schema = encode(batch)
    spoilt = payload.replace(old, new)
    assert spoilt != payload
    with pytest.raises(ArrowError, match="not valid Arrow"):
        check_payload(memoryview(spoilt), schema, batch.num_rows)


def test_more_than_one_batch_and_other_bytes_stay_out() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, GOOD.schema) as writer:
        writer.write_batch(GOOD)
        writer.write_batch(GOOD)
    schema = GOOD.schema.serialize().to_pybytes()
    with pytest.raises(ArrowError, match="one record batch"):
        check_payload(memoryview(sink.getvalue().to_pybytes()), schema, 3)
    with pytest.raises(ArrowError, match="one record batch"):
        check_payload(memoryview(bytes(64)), schema, 3)


def let_in(case: Sent) -> None:
    check_foreign_push(memoryview(bytearray(case.span)), case.push, case.schemas)


def test_each_payload_of_a_push_is_looked_at() -> None:
    push = sent(GOOD, pa.record_batch({"x": pa.array(["abcdefgh"])}), count=3)
    let_in(push)
    start, end = push.bounds(1)

    def spoil(span: bytearray) -> None:
        at = span.index(b"abcdefgh", start, end)
        span[at] = 0xFF

    with pytest.raises(ProtocolError, match=f"slot 1 at byte {start} of the span: the payload is not valid Arrow"):
        let_in(push.with_bytes(spoil, entry=1))
    with pytest.raises(ProtocolError, match="slot head and schema message"):
        let_in(push.with_slot(ROWS, 9))


def test_mutated_payloads_are_let_in_or_refused_but_nothing_else() -> None:
    payload, schema = encode(GOOD)
    random = Random(5)
    refused = 0
    for _ in range(3000):
        mutated = bytearray(payload)
        for _ in range(random.randint(1, 4)):
            mutated[random.randrange(len(mutated))] = random.choice([0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)])
        try:
            check_payload(memoryview(mutated), schema, GOOD.num_rows)
        except ArrowError:
            refused += 1
    assert 0 < refused < 3000
