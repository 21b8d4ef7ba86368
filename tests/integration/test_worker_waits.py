"""Pushes that wait for the disk, for room or for each other, over a real socket; and what a failed engine answers."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.metrics.figures import EngineFigure, RowKind, WorkerFigure, WorkerState
from quiver_actors.base.model import Durability
from quiver_actors.base.protocol import messages as m
from quiver_actors.node.worker import ingest, loop, turn_buffer
from quiver_actors.node.worker import session as session_module
from quiver_actors.store.engine import EngineState
from quiver_actors.store.segment.dictionaries import RECENT_STREAMS
from quiver_actors.supervisor.exitcodes import ChildExit
from tests.integration.test_worker_push import engine_figure, faulty_disk, worker_figure
from tests.integration.test_worker_refusals import refused
from tests.sim.bundles import Producer
from tests.unit.node.worker.harness import WireClient, WorkerThread, running, settings, table, topic, until

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
