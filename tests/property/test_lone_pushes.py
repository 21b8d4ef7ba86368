"""A push that travels alone and the general way: the same bytes in the log, the same numbers, figures and errors."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from quiver_actors.base.protocol.framing import decode_client_message, decode_worker_message
from quiver_actors.base.protocol.lone import (
    KIND_ACK,
    KIND_PUSH,
    LONE_ACK,
    LONE_ACK_LENGTH,
    LONE_MARK,
    LONE_PUSH,
    LONE_PUSH_LENGTH,
    LonePush,
)
from quiver_actors.base.protocol.messages import Acked, AckRun, Push
from quiver_actors.errors import ProtocolError, QuiverError
from quiver_actors.store.encoding.entries import lay_out, plan
from quiver_actors.store.encoding.lone import LoneEntry, lone_entry
from quiver_actors.store.encoding.streams import StreamTable
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.wal.admission import check_push
from quiver_actors.store.wal.lone import LoneStream, is_sound
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

_SEEDS = 12
_PUSHES = 60
_TOPIC = "default"


def random_batch(rng: random.Random) -> pa.RecordBatch:
    """A batch of one of a few schemas, with texts, nulls, no rows at all, or a slice of a larger one."""
    rows = rng.choice([0, 1, 3, 24, 200])
    columns: dict[str, pa.Array] = {"number": pa.array([rng.getrandbits(40) for _ in range(rows)], pa.int64())}
    if rng.random() < 0.6:
        texts = [None if rng.random() < 0.1 else "x" * rng.randrange(40) for _ in range(rows)]
        columns["text"] = pa.array(texts, pa.string())
    if rng.random() < 0.3:
        columns["flag"] = pa.array([rng.random() < 0.5 for _ in range(rows)])
    batch = pa.record_batch(columns)
    return batch.slice(rows // 2) if rng.random() < 0.2 else batch


def general(streams: StreamTable, batch: pa.RecordBatch, items: int | None) -> tuple[memoryview, Push, LoneStream]:
    planned = plan([(0, batch)], streams, items)
    (stream,) = planned.streams
    memory = memoryview(bytearray(planned.entry_bytes))
    rows = lay_out([planned], memory)
    schema = StreamSchema(0, stream.fingerprint, stream.message)
    return memory, rows.push(1, _TOPIC, 0, len(memory), len(memory)), LoneStream(schema)


def packed(lone: LoneEntry, tag: int = 1) -> bytes:
    size = len(lone.entry)
    start = LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH, lone.padding_bytes, lone.crc, tag, 0, size, size
    return LONE_PUSH.pack(*start, lone.stream.handle, lone.row_count, lone.metadata_bytes, 0, lone.item_count)


def as_push(frame: bytes, stream: LoneStream) -> Push:
    message = decode_client_message(frame[4:])
    assert isinstance(message, LonePush)
    return message.push(_TOPIC, 0, len(stream.message))


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_both_ways_leave_the_same_log_numbers_and_figures(seed: int) -> None:
    rng = random.Random(seed)
    drivers = [EngineDriver(SimDisk()) for _ in range(2)]
    streams, taken = StreamTable(_TOPIC), 0
    for driver in drivers:
        driver.push({0: random_batch(random.Random(seed))})
        driver.settle()
    for _ in range(_PUSHES):
        batch, items = random_batch(rng), rng.choice([None, 0, 7, (1 << 63) - 1])
        memory, push, stream = general(streams, batch, items)
        lone = lone_entry(batch, 0, streams, items)
        assert lone is not None
        assert (bytes(lone.entry), as_push(packed(lone), stream)) == (bytes(memory), push)
        runs = [_pushed(drivers[0], memory, push, stream), None]
        commit = drivers[1].engine.intake.take_lone(
            memoryview(lone.entry), stream, *lone[2:6], item_count=lone.item_count
        )
        if commit is None:  # a schema that the segment has not
            runs[1] = _pushed(drivers[1], memoryview(bytearray(lone.entry)), push, stream)
        else:
            taken += 1
            commit.run()
            drivers[1].engine.group_commit.finish_lone()
            drivers[1].events += drivers[1].engine.readable_end.advance()
            pushes = drivers[1].engine.intake
            runs[1] = AckRun(1, pushes.segment_seq, pushes.bundle_index, pushes.sequence, 1)
        assert runs[0] == runs[1]
        for driver in drivers:
            driver.clock.advance(rng.randrange(1_000_000))
        drivers[1].clock.now_ns = drivers[0].clock.now_ns
    assert taken > _PUSHES // 2
    first, second = (driver.engine for driver in drivers)
    assert first.group_commit.acknowledges == second.group_commit.acknowledges
    assert _entries(drivers[0]) == _entries(drivers[1])
    for name in ("bundles_in", "rows_in", "bytes_in", "refused"):
        assert getattr(first.intake, name) == getattr(second.intake, name), name
    for driver in drivers:
        driver.seal()
    assert _sealed(drivers[0]) == _sealed(drivers[1])
    assert [info.size_bytes for info in first.segments()] == [info.size_bytes for info in second.segments()]


def _pushed(driver: EngineDriver, memory: memoryview, push: Push, stream: LoneStream) -> AckRun:
    handle = int.from_bytes(push.slots[:4], "little")
    if not driver.engine.intake.can_stage(len(memory)):
        driver.run_background()  # blocks of the log are reserved in steps
    (run,) = driver.engine.intake.stage(memory, push, {handle: stream.schema})
    driver.events += driver.engine.write()
    driver.commit()
    return run


def _entries(driver: EngineDriver) -> bytes:
    """The log behind its header, which names the directory's incarnation."""
    file = driver.disk.open_read(f"{driver.directory}/wal/quiver.wal")
    try:
        return file.read(file.size(), 0)[121:]
    finally:
        file.close()


def _sealed(driver: EngineDriver) -> list[tuple[int | None, int | None, int | None, list[object]]]:
    (info,) = driver.engine.segments()
    reader = driver.read(info.segment_seq)
    reader.verify_checksum()
    return [
        (
            reader.sequence(index),
            reader.item_count(index),
            reader.ingestion_ts(index),
            reader.bundle(index)[0].to_pylist(),
        )
        for index in range(reader.bundle_count)
    ]


@pytest.mark.parametrize("seed", range(_SEEDS))
def test_what_the_short_way_takes_the_general_way_would_take_too(seed: int) -> None:
    rng, streams = random.Random(seed), StreamTable(_TOPIC)
    refused = 0
    for _ in range(400):
        lone = lone_entry(random_batch(rng), 0, streams, None)
        assert lone is not None
        stream = LoneStream(StreamSchema(0, lone.stream.fingerprint, lone.stream.message))
        frame, entry = bytearray(packed(lone)), bytearray(lone.entry)
        if rng.random() < 0.7:
            at = rng.randrange(8, LONE_PUSH.size)
            frame[at] ^= 1 << rng.randrange(8)
        else:
            entry[rng.randrange(len(entry))] ^= 1 << rng.randrange(8)
        fields = LONE_PUSH.unpack(frame)
        padding, crc, length, handle, rows, metadata_bytes = *fields[3:5], *fields[8:12]
        body_bytes = length - stream.message_end - 4 - metadata_bytes - 8 - padding
        is_here = length == len(entry) and handle == lone.stream.handle and fields[13] >= -1
        is_taken = is_here and is_sound(memoryview(entry), stream, crc, rows, metadata_bytes, body_bytes)
        error: QuiverError | None = None
        try:
            push = as_push(bytes(frame), stream)
            check_push(memoryview(entry), 121, push, {lone.stream.handle: stream.schema})
        except QuiverError as found:
            error = found
        refused += error is not None
        if is_taken:
            assert error is None
        elif is_here and error is None:
            # The length field, the entry header and the CRC field are not covered: they are the worker's to fill.
            pytest.fail("the short way refuses what the general way takes")
    assert refused > 100


def test_a_struct_that_is_none_is_an_error_of_the_protocol() -> None:
    frame = LONE_PUSH.pack(LONE_PUSH_LENGTH, LONE_MARK, KIND_PUSH, *range(11))[4:]
    assert isinstance(decode_client_message(frame), LonePush)
    ack = LONE_ACK.pack(LONE_ACK_LENGTH, LONE_MARK, KIND_ACK, 1, 2, 3, 4, 5)[4:]
    assert decode_worker_message(ack) == Acked(1, [AckRun(3, 4, 2, 5, 1)])
    for wrong in (frame[:-1], frame + b"\0", bytes([LONE_MARK, 7]) + frame[2:], ack, bytes([LONE_MARK])):
        with pytest.raises(ProtocolError, match="not a message"):
            decode_client_message(wrong)
        if wrong != ack:
            with pytest.raises(ProtocolError, match="not a message"):
                decode_worker_message(wrong)


def test_what_is_not_small_and_plain_goes_the_general_way() -> None:
    streams = StreamTable(_TOPIC)
    batch = pa.record_batch({"x": pa.array([1], pa.int64())})
    assert lone_entry(batch, 0, streams, None) is not None
    assert lone_entry(batch, None, streams, None) is None
    assert lone_entry(pa.table(batch.to_pydict()), 0, streams, None) is None
    assert lone_entry({0: batch}, 0, streams, None) is None
    for items in (-1, 1 << 63, 0.5, "1", True):
        assert lone_entry(batch, 0, streams, items) is None  # type: ignore[arg-type]
    assert lone_entry(pa.record_batch({"x": pa.array(["a"]).dictionary_encode()}), 0, streams, None) is None
    assert lone_entry(pa.record_batch({"x": pa.array(["a" * 70_000])}), 0, streams, None) is None
