"""Bundles as they travel: what comes back is what was sent, and nothing that came is decompressed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.errors import InvalidBundle, ProtocolError
from quiver_actors.flight import remote_contract as rc
from quiver_actors.flight.frames import FRAMES, Frame, framed, unframed

FACTS = rc.PushedFacts()


def message_of(streams: Mapping[int, pa.Buffer], facts: bytes = msgspec.msgpack.encode(FACTS)) -> pa.RecordBatch:
    columns = [[facts], [bytes(streams)], [[stream.to_pybytes() for stream in streams.values()]]]
    return pa.RecordBatch.from_arrays(
        [pa.array(each, field.type) for each, field in zip(columns, FRAMES, strict=True)], schema=FRAMES
    )


def stream_of(
    batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions, metadata: Mapping[str, str] | None = None
) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as stream:
        stream.write_batch(batch, custom_metadata=metadata)
    return sink.getvalue()


BATCHES = {
    "plain": pa.record_batch({"n": list(range(1000))}),
    "dictionary": pa.record_batch({"n": pa.array(["a", "b"] * 500).dictionary_encode()}),
}


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_a_bundle_travels(batch: pa.RecordBatch) -> None:
    (found,) = unframed(framed([Frame(FACTS, {0: batch, 3: batch})]), rc.PushedFacts)
    assert found == Frame(FACTS, {0: batch, 3: batch})


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES)
def test_what_came_compressed_is_refused_before_it_is_decoded(batch: pa.RecordBatch, codec: str) -> None:
    before = pa.total_allocated_bytes()
    stream = stream_of(batch, pa.ipc.IpcWriteOptions(compression=codec))
    with pytest.raises(InvalidBundle, match=r"slot 5: its batch came compressed.*send it uncompressed"):
        list(unframed(message_of({5: stream}), rc.PushedFacts))
    del stream
    assert pa.total_allocated_bytes() - before < 64 << 10


def test_the_compression_of_arrow_0_17_is_refused_too() -> None:
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    stream = stream_of(BATCHES["plain"], options, {"ARROW:experimental_compression": "zstd"})
    with pytest.raises(InvalidBundle, match="came compressed"):
        list(unframed(message_of({0: stream}), rc.PushedFacts))
    assert list(unframed(message_of({0: stream_of(BATCHES["plain"], options)}), rc.PushedFacts))


@pytest.mark.parametrize("facts", [b"", b"\x07", b"\x81\xa1\xff\x07"])
def test_facts_that_are_none_are_refused(facts: bytes) -> None:
    with pytest.raises(ProtocolError, match="the facts of a bundle cannot be read"):
        list(unframed(message_of({}, facts), rc.PushedFacts))
