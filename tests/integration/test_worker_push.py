"""Pushing to a worker over its socket: acknowledgements, modes, refusals, waiting, failing disks."""

from __future__ import annotations

import errno
import struct
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.engine import EngineState
from quiver_actors.metrics.figures import EngineFigure, RowKind, WorkerFigure, WorkerState
from quiver_actors.model import Durability
from quiver_actors.protocol import messages as m
from quiver_actors.segment.dictionaries import RECENT_STREAMS
from quiver_actors.supervisor.exitcodes import ChildExit
from quiver_actors.worker import ingest, loop, turn_buffer
from quiver_actors.worker import session as session_module
from quiver_actors.worker.requests import ARENA_BYTES_MAX
from tests.sim.bundles import Producer
from tests.unit.worker.faulty_disk import FaultyDisk
from tests.unit.worker.harness import (
    Span,
    WireClient,
    WorkerThread,
    running,
    settings,
    table,
    topic,
    until,
)


def faulty_disk(root: Path) -> FaultyDisk:
    (root / "data").mkdir()
    return FaultyDisk(str(root / "data"))


def engine_figure(worker: WorkerThread, figure: EngineFigure, topic_name: str = "default") -> int:
    rows = worker.region().rows
    return next(row.values[figure] for row in rows if row.kind == RowKind.ENGINE and row.label == topic_name)


def worker_figure(worker: WorkerThread, figure: WorkerFigure) -> int:
    return next(row.values[figure] for row in worker.region().rows if row.kind == RowKind.WORKER)


# --- acknowledgements ----------------------------------------------------------------------------------------------------


def test_push_is_acknowledged_synced_with_rising_ids(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        first, durability = client.acked(client.push(table(1), table(2)))
        second, _ = client.acked(client.push(table(3)))
    assert durability == Durability.SYNCED
    assert (first.segment_seq, first.bundle_index, first.sequence, first.count) == (0, 0, 0, 2)
    assert (second.segment_seq, second.bundle_index, second.sequence, second.count) == (0, 2, 2, 1)


def test_many_pushes_in_flight_are_acknowledged_in_push_order(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        pushes = [client.push(table(number), table(number)) for number in range(300)]
        runs: list[m.AckRun] = []
        while len(runs) < len(pushes):
            runs += client.expect(m.Acked).runs
    assert [run.tag for run in runs] == [push.tag for push in pushes]
    assert [run.sequence for run in runs] == list(range(0, 600, 2))


def test_producers_share_the_log_and_each_gets_its_own_answers(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        clients = [worker.producer() for _ in range(4)]
        pushes = [(client, client.push(table(number))) for number in range(25) for client in clients]
        runs = [client.acked(push)[0] for client, push in pushes]
        clients[0].flush()
        clients[0].register("s", credit=1000)
        stored = clients[0].values(100)
    assert sorted(run.sequence for run in runs) == list(range(100))
    assert sorted(values[0] for _, _, values in stored) == sorted(list(range(25)) * 4)


@pytest.mark.parametrize(
    ("changes", "durability"),
    [
        ({"wal__flush_interval_ns": 25_000_000}, Durability.WRITTEN),
        ({"durability": "segment_only"}, Durability.OPEN_SEGMENT),
    ],
)
def test_receipt_names_what_the_mode_reaches(tmp_path: Path, changes: dict[str, Any], durability: int) -> None:
    with running(tmp_path, settings(topic(**changes))) as worker:
        client = worker.producer()
        for number in range(20):
            assert client.acked(client.push(table(number)))[1] == durability
        client.flush()
        client.register("s", credit=100)
        assert [values for _, _, values in client.values(20)] == [[number] for number in range(20)]


def test_written_mode_is_synced_by_the_timer_without_further_pushes(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(wal__flush_interval_ns=25_000_000))) as worker:
        client = worker.producer()
        client.push_and_wait(table(1))
        until(lambda: engine_figure(worker, EngineFigure.SEQUENCE_DURABLE) == 1, "the timer's sync")


def test_rotation_while_pushing_keeps_order_and_loses_nothing(tmp_path: Path) -> None:
    node = settings(topic(segment__target_size_bytes=64 << 10))
    with running(tmp_path, node) as worker:
        client = worker.producer()
        runs = []
        for first in range(0, 600, 100):
            # A hundred at once, which end a log: more may fill the queue of those to be sealed, and would be refused then.
            pushes = [client.push(table(*range(number, number + 100))) for number in range(first, first + 100)]
            runs += [client.acked(push)[0] for push in pushes]
            client.flush()
        client.register("s", credit=10_000)
        stored = client.values(600)
    assert [run.sequence for run in runs] == list(range(600))
    assert len({run.segment_seq for run in runs}) >= 12, "each hundred ends a log"
    ids = [(deliver.segment_seq, index) for deliver, index, _ in stored]
    assert ids == [(run.segment_seq, run.bundle_index) for run in runs]
    assert [values[0] for _, _, values in stored] == list(range(600))


def test_idle_segment_is_sealed_by_age(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(segment__max_open_duration_ns=30_000_000))) as worker:
        client = worker.producer()
        client.register("s", start="latest", credit=10)
        client.push_and_wait(table(7))
        assert [values for _, _, values in client.values(1)] == [[7]]


# --- bundles ---------------------------------------------------------------------------------------------------------------


def test_several_slots_and_absent_ones_come_back(tmp_path: Path) -> None:
    other = pa.record_batch({"name": ["a", "b", None], "x": pa.array([1.5, None, 2.5])})
    with running(tmp_path) as worker:
        client = worker.producer()
        client.declare(1, other.schema, slot_id=63)
        span = Span()
        span.add([(0, 0, table(1)), (1, 63, other)])
        span.add([(1, 63, other)])
        push = client.place(span)
        client.send(push)
        client.acked(push)
        client.flush()
        client.register("s", credit=10)
        deliver, indexes = client.delivered()
        reader = client.segments["default", deliver.segment_seq]
    assert indexes == [0, 1]
    assert reader.bundle(0) == {0: table(1), 63: other}
    assert reader.bundle(1) == {63: other}


def test_bundle_larger_than_the_turn_buffer_and_the_segment_target(tmp_path: Path) -> None:
    node = settings(topic(segment__target_size_bytes=1 << 20), arena_bytes=1 << 20)
    big = pa.record_batch({"x": pa.array(range(2_000_000), pa.int64())})
    with running(tmp_path, node) as worker:
        client = worker.producer()
        client.push_and_wait(table(1))
        client.attach_arena(20 << 20)
        run = client.push_and_wait(big)
        client.attach_arena(1 << 20)
        client.push_and_wait(table(2))
        client.flush()
        client.register("s", credit=10)
        stored = {(deliver.segment_seq, index): values for deliver, index, values in client.values(3)}
    assert stored[run.segment_seq, run.bundle_index] == list(range(2_000_000))


def test_topics_are_separate_logs(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic("clicks"))) as worker:
        client = worker.producer()
        client.declare(1, table().schema, topic="clicks")
        client.push_and_wait(table(1))
        assert client.push_and_wait(table(2), topic="clicks", handle=1).sequence == 0
        client.flush("clicks")
        client.register("s", topic="clicks", credit=10)
        assert [values for _, _, values in client.values(1)] == [[2]]


# --- refusals --------------------------------------------------------------------------------------------------------------


def refused(client: WireClient, tag: int) -> m.Refused:
    return client.expect(m.Refused, lambda answer: answer.tag == tag)


def test_unknown_topic_names_the_topics_and_returns_the_credit(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        answer = refused(client, client.push(table(1), topic="nowhere").tag)
        assert answer.code == "unknown_topic"
        assert "expected one of default" in answer.message
        assert client.arena is not None
        assert client.arena.in_flight_bytes() == 0
        client.push_and_wait(table(1))


def test_handle_of_another_topic_is_not_known(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic("clicks"))) as worker:
        client = worker.producer()
        answer = refused(client, client.push(table(1), topic="clicks").tag)
        assert answer.code == "protocol"
        assert "schema handle 0 was not declared" in answer.message


def test_damaged_bytes_are_refused_and_the_next_push_is_taken(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        span = Span()
        span.add([(0, 0, table(1))])
        span.data[150] ^= 1
        push = client.place(span)
        client.send(push)
        assert refused(client, push.tag).code == "protocol"
        assert client.push_and_wait(table(2)).sequence == 0
        until(lambda: engine_figure(worker, EngineFigure.REFUSED) == 1, "the count of refused pushes")


@pytest.mark.parametrize("size_bytes", [ARENA_BYTES_MAX + 1, 1 << 62])
def test_arena_over_the_limit_names_the_limit(tmp_path: Path, size_bytes: int) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.send(m.AttachArena(1, size_bytes))
        answer = refused(client, 1)
        assert answer.code == "bundle_too_large"
        assert "one bundle holds at most 256 MiB" in answer.message
        client.attach_arena()


def test_arena_size_may_be_left_to_the_worker(tmp_path: Path) -> None:
    with running(tmp_path, settings(arena_bytes=3 << 20)) as worker:
        client = worker.connect()
        client.attach_arena(0)
        assert client.arena is not None
        assert client.arena.size_bytes == 3 << 20


def ends_with(worker: WorkerThread, client: WireClient, code: str, text: str) -> None:
    answer = client.expect(m.Refused)
    assert (answer.code, text in answer.message) == (code, True), answer
    client.expect_end()
    other = worker.producer()
    other.push_and_wait(table(1))


@pytest.mark.parametrize(
    ("sent", "code", "text"),
    [
        (m.DeclareSchema(1, "nowhere", 0, bytes(32), b""), "unknown_topic", "does not exist"),
        (m.DeclareSchema(1, "default", 64, bytes(32), b""), "unknown_slot", "outside 0..63"),
        (m.DeclareSchema(1, "default", 0, bytes(31), b""), "protocol", "fingerprint"),
        (m.DeclareSchema(1, "default", 0, bytes(32), b"no schema at all"), "protocol", "no Arrow schema"),
        (m.Push(1, "default", 0, 64, 64, b"", b"", b""), "protocol", "before ArenaAttached"),
        (m.Hello(m.PROTOCOL_VERSION, 1, "again"), "protocol", "second Hello"),
        (m.Resolve(1, "default", "s", 0, 1, "burn", b""), "protocol", "make no sense"),
        (m.Resolve(1, "default", "s", 0, 1, "ack", b"abc"), "protocol", "make no sense"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, m.Message) else str(value)[:20],
)
def test_message_out_of_order_ends_its_connection_only(tmp_path: Path, sent: m.Message, code: str, text: str) -> None:
    with running(tmp_path) as worker:
        client = worker.connect()
        client.send(sent)
        ends_with(worker, client, code, text)


def test_declared_slot_table_is_enforced(tmp_path: Path) -> None:
    with running(tmp_path, settings(topic(slots={"flights": 0, "weather": 1}))) as worker:
        client = worker.connect()
        assert client.welcome is not None
        assert client.welcome.topics == [m.TopicInfo("default", {"flights": 0, "weather": 1}, "wal", 0)]
        client.declare(0, table().schema, slot_id=2)
        answer = client.expect(m.Refused)
        assert (answer.code, answer.tag) == ("unknown_slot", 0)
        client.expect_end()


@pytest.mark.parametrize(
    "raw", [struct.pack("<I", m.FRAME_BYTES_MAX + 1), b"\x01\0\0\0\xc1", struct.pack("<I", 4097) + bytes(4097)]
)
def test_rubbish_on_the_socket_ends_the_connection_with_a_reason(tmp_path: Path, raw: bytes) -> None:
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.socket.sendall(raw)
        ends_with(worker, client, "protocol", "frame")


def test_message_before_hello_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.send(m.AttachArena(1, 100))
        ends_with(worker, client, "protocol", "AttachArena before Hello")


def test_span_outside_the_arena_ends_the_connection(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        client = worker.producer()
        client.send(m.Push(1, "default", 0, 1 << 40, 0, b"", b"", b""))
        ends_with(worker, client, "protocol", "not inside the arena")


def test_silent_connection_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = loop.HELLO_PATIENCE_NS
    monkeypatch.setattr(loop, "HELLO_PATIENCE_NS", 0)
    with running(tmp_path) as worker:
        client = worker.connect(greet=False)
        client.received.append(client.expect(m.Refused))
        # The next one is to have the time for its Hello.
        monkeypatch.setattr(loop, "HELLO_PATIENCE_NS", patient)
        ends_with(worker, client, "protocol", "no Hello came in time")


def test_connections_over_the_limit_are_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SESSIONS_MAX", 2)
    with running(tmp_path) as worker:
        first, second = worker.producer(), worker.producer()
        # Figures come a little later: what is waited for below must not be what was there before both were counted.
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 2, "both to be counted")
        third = worker.connect(greet=False)
        assert third.expect(m.Refused).code == "worker_unavailable"
        third.expect_end()
        second.close()
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 1, "the place to be free")
        worker.producer().push_and_wait(table(1))
        first.push_and_wait(table(2))


def test_producer_that_dies_leaves_the_others_and_its_acknowledged_bundles(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        dying, living = worker.producer(), worker.producer()
        dying.push_and_wait(table(1))
        dying.push(table(2))
        dying.close()
        living.push_and_wait(table(3))
        living.flush()
        living.register("s", credit=10)
        stored = [values[0] for _, _, values in living.values(2)]
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 1, "the session to end")
        until(lambda: worker_figure(worker, WorkerFigure.ARENA_BYTES) == 1 << 20, "its arena to go")
    assert set(stored) <= {1, 2, 3}
    assert {1, 3} <= set(stored) or {1, 2} <= set(stored)


# --- waiting and failing -----------------------------------------------------------------------------------------------------


def test_full_disk_makes_pushes_wait_and_resume_by_themselves(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "wal/", errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        client = worker.producer()
        pushes = [client.push(table(number)) for number in range(5)]
        until(lambda: worker_figure(worker, WorkerFigure.PUSHES_WAITING) == 5, "pushes to wait")
        client.register("s")
        client.flush_progress("s")
        disk.faults.clear()
        assert [client.acked(push)[0].sequence for push in pushes] == list(range(5))
    disk.close()


def test_flush_behind_waiting_pushes_covers_them(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "wal/", errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        client = worker.producer()
        push = client.push(table(1))
        client.send(m.Flush(1, "default"))
        until(lambda: worker_figure(worker, WorkerFigure.PUSHES_WAITING) == 2, "both to wait")
        disk.faults.clear()
        client.done(1)
        client.acked(push)
        client.register("s", credit=1)
        assert [values for _, _, values in client.values(1)] == [[1]]
    disk.close()


def test_full_disk_for_too_long_refuses_and_returns_the_credit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "FULL_DISK_PATIENCE_NS", 50_000_000)
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "wal/", errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        client = worker.producer()
        answer = refused(client, client.push(table(1)).tag)
        assert answer.code == "storage_full"
        assert answer.retry_after_ns > 0
        assert client.arena is not None
        assert client.arena.in_flight_bytes() == 0
        until(lambda: engine_figure(worker, EngineFigure.STATE) == EngineState.FULL, "the state to be shown")
        assert worker.region().state == WorkerState.DEGRADED
        disk.faults.clear()
        until(lambda: engine_figure(worker, EngineFigure.STATE) == EngineState.READY, "room again")
        until(lambda: worker.region().state == WorkerState.READY, "the worker to be well again")
        assert client.push_and_wait(table(2)).sequence == 0
    disk.close()


def test_waiting_push_of_a_closed_connection_is_dropped(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "wal/", errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        gone, client = worker.producer(), worker.producer()
        gone.push(table(1))
        until(lambda: worker_figure(worker, WorkerFigure.PUSHES_WAITING) == 1, "the push to wait")
        gone.close()
        until(lambda: worker_figure(worker, WorkerFigure.SESSIONS) == 1, "the session to end")
        push = client.push(table(2))
        disk.faults.clear()
        assert client.acked(push)[0].sequence == 0
    disk.close()


def test_full_topic_does_not_hold_up_another_on_the_same_connection(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "default/", errno.ENOSPC)
    with running(tmp_path, settings(topic("clicks")), disk=disk) as worker:
        client = worker.producer()
        client.declare(1, table().schema, topic="clicks")
        waiting = client.push(table(1))
        for number in range(3):
            client.push_and_wait(table(number), topic="clicks", handle=1)
        assert client.arena is not None
        assert client.arena.in_flight_bytes() > 0
        disk.faults.clear()
        client.acked(waiting)
        until(lambda: client.arena is not None and client.arena.in_flight_bytes() == 0, "all credit to be back")
    disk.close()


def test_connection_with_too_many_waiting_pushes_is_not_read_until_they_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HELD_PUSHES_MAX", 10)
    disk = faulty_disk(tmp_path)
    disk.faults.set("allocate", "wal/", errno.ENOSPC)
    with running(tmp_path, disk=disk) as worker:
        client, other = worker.producer(), worker.producer()
        pushes = [client.push(table(number)) for number in range(50)]
        until(lambda: worker_figure(worker, WorkerFigure.PUSHES_WAITING) == 10, "pushes to wait")
        other.register("s")
        assert worker_figure(worker, WorkerFigure.PUSHES_WAITING) == 10
        disk.faults.clear()
        assert [client.acked(push)[0].sequence for push in pushes] == list(range(50))
    disk.close()


@pytest.mark.parametrize("size", [1, 50])
def test_segments_that_end_by_count_in_the_middle_of_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(turn_buffer.TurnBuffer.__init__, "__defaults__", (8 << 10,))
    with running(tmp_path, settings(topic(segment__max_bundle_count=size))) as worker:
        client = worker.producer()
        for first in range(0, 100, 20):  # not all at once: a slow disk would put the worker under pressure
            pushes = [client.push(table(*range(number, number + 100))) for number in range(first, first + 20)]
            assert [client.acked(push)[0].sequence for push in pushes] == list(range(first, first + 20))
        client.flush()
        client.register("s", credit=1000)
        assert [values[0] for _, _, values in client.values(100)] == list(range(100))


@pytest.mark.parametrize("operation", ["fdatasync", "write"])
def test_failed_engine_refuses_and_ends_the_worker_while_others_commit(tmp_path: Path, operation: str) -> None:
    disk = faulty_disk(tmp_path)
    with running(tmp_path, settings(topic("clicks")), disk=disk) as worker:
        client, other = worker.producer(), worker.producer(topic="clicks")
        client.push_and_wait(table(1))
        other.push_and_wait(table(2), topic="clicks")
        disk.faults.gate.clear()
        lost = client.push(table(3)) if operation == "fdatasync" else None
        kept = other.push(table(4), topic="clicks")
        disk.faults.set(operation, "default/")
        lost = lost or client.push(table(3))
        disk.faults.gate.set()
        answer = refused(client, lost.tag)
        assert answer.code == "durability_unknown"
        assert "push it again" in answer.message
        other.acked(kept)
        assert worker.wait() == ChildExit.ENGINE_FAILED
        assert worker.region().state == WorkerState.FAILED
        client.expect_end()
        errors = [row.label for row in worker.region().rows if row.kind == RowKind.ERROR]
        assert operation in errors[0]
    disk.close()
    with running(tmp_path, settings(topic("clicks"))) as worker:
        client = worker.producer(topic="clicks")
        client.flush("clicks")
        client.register("s", topic="clicks", credit=10)
        assert [values for _, _, values in client.values(2)] == [[2], [4]]
        client.flush()
        client.register("s", credit=10)
        assert client.values(1, "s")[0][2] == [1]


class RecurringDictionaries:
    """Pushes bundles with one of many dictionaries each, no two of which fit together."""

    def __init__(self, client: WireClient) -> None:
        self._client = client
        self._producer = Producer("default")
        self._declared: set[int] = set()

    def push(self, *dictionaries: int) -> list[m.Push]:
        """Send, with one call, a Push for each; values of column x are the dictionary's number."""
        placed = [self._place(which) for which in dictionaries]
        self._client.send(*(message for messages in placed for message in messages))
        return [push for *_, push in placed if isinstance(push, m.Push)]

    def _place(self, which: int) -> list[m.Message]:
        words = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array([f"{which}", "yew"]))
        batch = pa.record_batch({"x": pa.array([which] * 2), "word": words})
        span, push, schemas = self._producer.lay_out([{1: batch}])
        new = schemas.keys() - self._declared
        self._declared |= new
        arena = self._client.arena
        assert arena is not None
        offset = arena.reserve(len(span))
        assert offset is not None
        arena.ring[offset : offset + len(span)] = span
        place = {"offset": offset, "end_position": arena.commit(len(span)), "tag": self._client.next_tag()}
        declared = [m.DeclareSchema(handle, "default", *schemas[handle]) for handle in new]
        return [*declared, msgspec.structs.replace(push, **place)]


def test_dictionary_that_the_disk_does_not_give_back_fails_the_engine_and_every_push_is_answered(
    tmp_path: Path,
) -> None:
    disk, many = faulty_disk(tmp_path), range(2 * RECENT_STREAMS)
    with running(tmp_path, disk=disk) as worker:
        client = worker.producer()
        recurring = RecurringDictionaries(client)
        for push in recurring.push(*many):
            client.acked(push)
        disk.faults.gate.clear()
        disk.faults.set("read", "default/")
        staged, unstaged = recurring.push(many[-1], many[0])
        answer = client.expect(m.Refused)
        assert (answer.tag, answer.code) == (unstaged.tag, "engine_failed")
        assert "nothing of this push was written" in answer.message
        disk.faults.gate.set()
        answer = client.expect(m.Refused)
        assert (answer.tag, answer.code) == (staged.tag, "durability_unknown")
        assert worker.wait() == ChildExit.ENGINE_FAILED
    disk.close()
    with running(tmp_path) as worker:
        client = worker.producer()
        client.register("s", credit=100)
        found = [values[0] for _, _, values in client.values(len(many), slot=1)]
        assert found[: len(many)] == list(many)
        assert found[len(many) :] in ([], [many[-1]])


def test_acknowledgement_waits_for_the_sync(tmp_path: Path) -> None:
    disk = faulty_disk(tmp_path)
    with running(tmp_path, disk=disk) as worker:
        client = worker.producer()
        client.push_and_wait(table(1))
        disk.faults.gate.clear()
        push = client.push(table(2))
        until(lambda: engine_figure(worker, EngineFigure.SEQUENCE_WRITTEN) == 2, "the write")
        assert engine_figure(worker, EngineFigure.SEQUENCE_DURABLE) == 1
        assert client.arena is not None
        assert client.arena.in_flight_bytes() == 0, "credit returns before durability"
        client.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            client.receive()
        client.socket.settimeout(10)
        disk.faults.gate.set()
        client.acked(push)
    disk.close()


def has_written(worker: WorkerThread, bundles: int) -> bool:
    return engine_figure(worker, EngineFigure.SEQUENCE_WRITTEN) == bundles


@pytest.mark.parametrize("count", [2, loop._SENT_BEFORE_COMMIT_MAX + 3], ids=["few", "many"])
def test_what_was_written_during_a_sync_is_covered_by_the_next(tmp_path: Path, count: int) -> None:
    """Whether acknowledgements or the next commit leave first: nothing more has to happen for either."""
    disk = faulty_disk(tmp_path)
    with running(tmp_path, disk=disk) as worker:
        clients = [worker.producer() for _ in range(count)]
        for client in clients:
            client.push_and_wait(table(0))
        written = count
        for _ in range(3):
            # All of one sync are acknowledged together; during it everybody pushes again.
            disk.faults.gate.clear()
            pushes = []
            for value in (1, 2):
                pushes += [(client, client.push(table(value))) for client in clients]
                written += count
                until(partial(has_written, worker, written), "the writes")
            disk.faults.gate.set()
            assert {client.acked(push)[1] for client, push in pushes} == {Durability.SYNCED}
    disk.close()


def send_until_blocked(client: WireClient, request: m.Message, limit: int) -> int:
    """How many requests the worker takes from a client that reads no answers."""
    client.socket.setblocking(False)
    for sent in range(limit):
        try:
            client.send(request)
        except BlockingIOError:
            return sent
    return limit


def test_client_that_does_not_read_is_not_read_from_and_holds_up_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as worker:
        deaf, client = worker.connect(), worker.producer()
        for number in range(20):
            client.push_and_wait(table(number))
        assert send_until_blocked(deaf, m.ListSegments(1, "x" * 2000), limit=100_000) < 100_000
        for number in range(20):
            client.push_and_wait(table(number))
