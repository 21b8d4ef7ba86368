"""Lone pushes on the wire of a worker: their structs between messages, what goes wrong with them, and peers of other releases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.calls import node
from quiver_actors.base.model import Durability
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.base import Message
from quiver_actors.base.protocol.framing import encode_frame
from quiver_actors.base.protocol.lone import (
    KIND_ACK,
    LONE_ACK,
    LONE_MARK,
    LONE_PUSH,
    LONE_PUSH_LENGTH,
    LONE_PUSHES,
)
from quiver_actors.errors import DurabilityUnknown, ProtocolError
from tests.unit.node.worker.faulty_disk import FaultyDisk
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, table, until
from tests.unit.node.worker.lone import lone_push
from tests.unit.node.worker.spans import Span


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerThread]:
    (tmp_path / "data").mkdir()
    disk = FaultyDisk(str(tmp_path / "data"))
    try:
        with running(tmp_path, disk=disk) as started:
            started.disk = disk  # type: ignore[attr-defined]
            yield started
    finally:
        disk.close()


def raw_answer(client: WireClient) -> tuple[int, ...]:
    """The struct that comes next, and nothing else with it."""
    data = client.socket.recv(1 << 16)
    assert len(data) == LONE_ACK.size
    return LONE_ACK.unpack(data)


def test_a_struct_is_answered_by_a_struct_and_the_bundle_is_the_next_of_its_log(worker: WorkerThread) -> None:
    client = worker.producer()
    assert client.welcome is not None
    assert client.welcome.features & LONE_PUSHES
    before = client.push_and_wait(table(1))
    for number in (1, 2, 3):
        tag, frame = lone_push(client, number)
        client.socket.sendall(frame)
        _, mark, kind, durability, bundle_index, of_tag, segment_seq, sequence = raw_answer(client)
        assert (mark, kind, durability, of_tag) == (LONE_MARK, KIND_ACK, int(Durability.SYNCED), tag)
        assert (segment_seq, bundle_index) == (before.segment_seq, before.bundle_index + number)
        assert sequence == before.sequence + number
    behind = client.push_and_wait(table(9))
    assert behind.bundle_index == before.bundle_index + 4
    client.flush()
    client.register("s", credit=10)
    assert [values for _, _, values in client.values(5, "s")] == [[1], [1], [2], [3], [9]]


def test_structs_and_messages_may_follow_each_other_in_one_send(worker: WorkerThread) -> None:
    client = worker.producer()
    client.push_and_wait(table(0))
    first, frame_of_first = lone_push(client, 1)
    span = Span()
    span.add([(0, 0, table(2))])
    push = client.place(span)
    last, frame_of_last = lone_push(client, 3)
    client.socket.sendall(frame_of_first + encode_frame(push) + frame_of_last)
    found: dict[int, int] = {}
    while len(found) < 3:
        found |= {run.tag: run.bundle_index for run in client.expect(m.Acked).runs}
    assert found == {first: 1, push.tag: 2, last: 3}


def test_what_comes_during_the_sync_of_a_lone_push_rides_on_the_next_one(worker: WorkerThread) -> None:
    client, other = worker.producer(), worker.producer()
    client.push_and_wait(table(0))
    gate = worker.disk.faults.gate  # type: ignore[attr-defined]
    gate.clear()
    tag, frame = lone_push(client, 1)
    client.socket.sendall(frame)
    pushes = [other.push(table(number)) for number in (2, 3)]
    intake = worker.worker.loop._hosts["default"].engine.intake
    until(lambda: intake.bundles_in == 4, "the other pushes")
    gate.set()
    assert client.expect(m.Acked).runs[0].tag == tag
    assert [other.acked(push)[0].bundle_index for push in pushes] == [2, 3]


@pytest.mark.parametrize("is_lone", [True, False])
def test_a_wrong_checksum_is_refused_alike_on_both_ways(worker: WorkerThread, *, is_lone: bool) -> None:
    client = worker.producer()
    client.push_and_wait(table(0))
    tag, frame = lone_push(client, 1, crc_flip=1)
    if not is_lone:
        fields = LONE_PUSH.unpack(frame)
        entry = m.ENTRY_ROW.pack(fields[8], fields[4], 1, -1, 0, 1, 1)
        schema = table().schema.serialize().size
        body = fields[8] - 75 - schema - fields[11] - 8 - fields[3]
        slot = m.SLOT_ROW.pack(0, 71, fields[8] - 75, 1, schema, fields[11], body, 0)
        frame = encode_frame(m.Push(tag, "default", fields[6], fields[8], fields[7], entry, slot, b""))
    client.socket.sendall(frame)
    refused = client.expect(m.Refused)
    assert (refused.tag, refused.code) == (tag, ProtocolError.code)
    assert refused.message.endswith("byte 0 of the span: the CRC of the slots does not match the bytes in the arena")
    assert client.push_and_wait(table(2)).bundle_index == 1


@pytest.mark.parametrize("operation", ["write", "fdatasync"])
def test_a_disk_that_fails_leaves_it_unknown_whether_the_bundle_is_stored(worker: WorkerThread, operation: str) -> None:
    client = worker.producer()
    client.push_and_wait(table(0))
    worker.disk.faults.set(operation, "wal")  # type: ignore[attr-defined]
    tag, frame = lone_push(client, 1)
    client.socket.sendall(frame)
    refused = client.expect(m.Refused)
    assert (refused.tag, refused.code) == (tag, DurabilityUnknown.code)
    worker.disk.faults.clear()  # type: ignore[attr-defined]


@pytest.mark.parametrize("wrong", ["handle", "kind", "length"])
def test_a_struct_that_means_nothing_ends_its_connection(worker: WorkerThread, wrong: str) -> None:
    client = worker.producer()
    client.push_and_wait(table(0))
    _, frame = lone_push(client, 1, handle=7 if wrong == "handle" else 0)
    if wrong == "kind":
        frame = frame[:5] + b"\x09" + frame[6:]
    elif wrong == "length":
        frame = (LONE_PUSH_LENGTH - 1).to_bytes(4, "little") + frame[4:-1]
    client.socket.sendall(frame)
    assert client.expect(m.Refused).code == ProtocolError.code
    assert client.receive() is None
    assert worker.producer().push_and_wait(table(1)).bundle_index == 1


def test_a_client_of_an_older_release_understands_the_welcome() -> None:
    class Before(Message, tag=64, frozen=True):
        version: int
        core: int
        incarnation: str
        pid: int
        topics: list[m.TopicInfo]

    said = encode_frame(m.Welcome(4, 0, "00", os.getpid(), [], LONE_PUSHES))[4:]
    assert msgspec.msgpack.decode(said, type=Before).pid == os.getpid()
    older = msgspec.msgpack.encode(Before(4, 0, "00", 7, []))
    assert msgspec.msgpack.decode(older, type=m.Welcome).features == 0


def test_the_client_takes_the_lane_and_the_general_way_in_turn(tmp_path: Path) -> None:
    with node(tmp_path) as client:
        receipts = [client.push(table(0)), client.push(table(1))]
        lane = client._producer.lanes["default"]
        assert lane.is_open
        receipts += [client.push({0: table(2)}), client.push(table(3)), client.push(table(4), key="k")]
        receipts.append(client.push(table(5), item_count=3))
        assert [receipt.bundle_id.bundle_index for receipt in receipts] == list(range(6))
        assert [receipt.sequence - receipts[0].sequence for receipt in receipts] == list(range(6))
        assert client._producer.lanes["default"] is lane
        found = [bundle.batch.column(0)[0].as_py() for bundle in client.read("default", 0)]
    assert found == list(range(6))
