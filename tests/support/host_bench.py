"""One host of a worker in a test, on a simulated disk and a clock that only the test moves: a real engine, session and arena."""

from __future__ import annotations

import array
import os
import socket
from collections import deque

import msgspec
import pyarrow as pa
import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.protocol.framing import FrameReader, decode_worker_message
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.targets import Key
from quiver_actors.node.worker import easing as easing_module
from quiver_actors.node.worker import ingest as ingest_module
from quiver_actors.node.worker import lone_lane as lone_lane_module
from quiver_actors.node.worker.budgets import Budget
from quiver_actors.node.worker.connection import Connection
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.journal import Journal
from quiver_actors.node.worker.load import Load
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.session import Session
from quiver_actors.node.worker.threads import Finished, Job
from quiver_actors.shm.arena import ArenaOwner, ArenaProducer
from quiver_actors.store.jobs.commits import CommitJob
from quiver_actors.store.retention.pressure import Pressure, Signals
from quiver_actors.store.staged.keys import with_key
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, ManualClock, numbered_batch, topic_settings

ARENA_BYTES = 1 << 20


def clocks_of(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hosts read that clock from now on."""
    for module in (easing_module, ingest_module, lone_lane_module):
        monkeypatch.setattr(module, "monotonic_ns", clock.monotonic_ns)


class HostBench:
    """One host, as the worker's loop drives it; jobs take no time."""

    def __init__(self, clock: ManualClock, settings: TopicSettings, disk: SimDisk | None = None) -> None:
        """
        Args:
            clock: which `clocks_of` has given to the host's modules, too.
            disk: to go on with; else an empty one.
        """
        self.driver = EngineDriver(disk or SimDisk(shows_descriptors=True), settings, clock=clock)
        self.clock = clock
        self.pressure = Pressure()
        self.load = Load(self.pressure)
        self.run_queue: RunQueue[EngineHost] = RunQueue()
        self.jobs: deque[tuple[Job, Finished]] = deque()
        self.commits: list[int] = []
        """Start of each group commit."""
        self.host = EngineHost(
            self.driver.engine,
            commit=self._submit,
            commit_lone=self._submit,
            background=self._submit,
            ask=self._submit,
            cold=self._submit,
            own_log="decisions",
            journal=Journal(0),
            run_queue=self.run_queue,
            pressure=self.pressure,
        )
        near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._reader = FrameReader()
        budget: Budget[Session] = Budget(is_guest=False, now_ns=0)
        self.session = Session(Connection(near, frame_bytes_max=4096), Peer(1, 2, 3), 0, set(), budget)
        self.session.greet(m.Hello(m.PROTOCOL_VERSION, 1, "test"))
        arena = ArenaOwner.create(ARENA_BYTES)
        self._producer = ArenaProducer.attach(arena.fd, arena.size_bytes)
        self.session.arena.expect(ARENA_BYTES)
        self.session.arena.attach(arena)
        self._declared: set[int] = set()
        self.run_for(SECOND_NS)

    def close(self) -> None:
        self.session.close()
        self._producer.close()
        self._far.close()

    def _submit(self, job: Job, finished: Finished) -> None:
        if isinstance(job, CommitJob):
            self.commits.append(self.clock.now_ns)
        self.jobs.append((job, finished))

    # --- time ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turn and run jobs until there is nothing to do at this moment."""
        while True:
            self.host.turn(self.clock.now_ns)
            while self.jobs:
                job, finished = self.jobs.popleft()
                job.run()
                finished()
                for host in self.run_queue.take_committed():
                    host.jobs.start_commit()
            due_ns = self.host.deadline_ns
            is_due = due_ns is not None and due_ns <= self.clock.now_ns
            if not self.host.is_touched and not self.host.dispatcher.is_due and not is_due:
                return
            if self.host.dispatcher.is_due and not self.host.is_touched and due_ns is not None and not is_due:
                return  # deliveries that wait for company

    def run_for(self, duration_ns: int) -> None:
        """Let time pass, from one deadline of the host to the next."""
        end_ns = self.clock.now_ns + duration_ns
        while True:
            self.settle()
            due_ns = self.host.deadline_ns
            if due_ns is None or due_ns > end_ns:
                break
            self.clock.now_ns = max(due_ns, self.clock.now_ns + 1)
        self.clock.now_ns = end_ns

    def press(self, cap: float) -> None:
        """The figure, and what follows from it."""
        for _ in range(100):
            self.pressure.sample(Signals(cap=cap))

    # --- a client --------------------------------------------------------------------------------------------------------

    def push(self, number: int, rows: int = 5, call: int = 0, patience_ms: int = 0) -> None:
        """One bundle; its tag is the number."""
        push = self._placed([{0: numbered_batch(number, rows)}], number)
        self._push(msgspec.structs.replace(push, call=call, patience_ms=patience_ms))

    def push_staged(self, number: int) -> None:
        """One bundle into a stage of its own; its tag is the number."""
        self.host.staging.begin(self.session, m.BeginStage(number, "default", "txn", 0, 0, 0, "", SECOND_NS))
        stage = max(each.number for each in self.driver.engine.stages)
        push = self._placed([{0: numbered_batch(number)}], number)
        values = {name: getattr(push, name) for name in push.__struct_fields__}
        self.host.staging.push(self.session, m.StagePush(**values, stage=stage), self.clock.now_ns)
        self.host.touch()

    def push_alone(self, number: int, rows: int = 5) -> bool:
        """One bundle, by the lane if that takes it; returns whether it does."""
        push = self._placed([{0: numbered_batch(number, rows)}], number)
        _, crc, _, items, _, _, row_count = m.ENTRY_ROW.unpack(push.entries)
        handle, _, payload, _, schema_bytes, metadata, body, _ = m.SLOT_ROW.unpack(push.slots)
        padding = payload - schema_bytes - metadata - body - 8
        place = push.offset, push.end_position, push.length
        fields = 0, 0, 0, padding, crc, number, *place, handle, row_count, metadata, 0, items
        known = self.session.schemas.lone[handle]
        assert known is not None
        is_taken = self.host.lone.push(self.session, known[1], fields, self.clock.now_ns)
        if not is_taken:
            self._push(push)
        return is_taken

    def commit(self) -> None:
        """Carry out the commit that is out, and take it back, without a turn of the host."""
        job, finished = self.jobs.popleft()
        assert isinstance(job, CommitJob)
        job.run()
        finished()

    def push_keyed(self, first: int, last: int, tag: int) -> None:
        """Bundles of the producer `p`, whose number is their key, in one message."""
        numbers = range(first, last + 1)
        bundles = [{0: numbered_batch(number), ENVELOPE_SLOT: with_key(None, "p", number)} for number in numbers]
        self._push(Key("p", first).of(self._placed(bundles, tag)))

    def _placed(self, bundles: list[dict[int, pa.RecordBatch]], tag: int) -> m.Push:
        memory, push, schemas = self.driver.layout(bundles)
        for handle, schema in schemas.items():
            if handle not in self._declared:
                self._declared.add(handle)
                self.session.schemas.declare("default", handle, schema)
        offset = self._producer.reserve(len(memory))
        assert offset is not None
        self._producer.ring[offset : offset + len(memory)] = memory
        end = self._producer.commit(len(memory))
        return m.Push(tag, push.topic, offset, len(memory), end, push.entries, push.slots, push.dictionaries)

    def _push(self, push: m.Push) -> None:
        self.host.ingest.push(self.session, push, self.clock.now_ns)
        self.host.touch_push()

    def seal(self) -> None:
        self.driver.engine.seal_now()
        self.host.touch()
        self.settle()

    def subscribe(self, credit: int = 1000, terms: m.Terms | None = None) -> None:
        self.host.deliveries.register(self.session, m.Register(1, "default", "s", "earliest", terms or m.Terms()))
        self.host.deliveries.credit(self.session, m.Credit("default", "s", credit))
        self.host.touch()
        self.run_for(SECOND_NS)
        self.received()

    def received(self) -> list[m.Message]:
        """Return the messages sent to the client since the last call."""
        self.session.connection.flush()
        found: list[m.Message] = []
        while True:
            try:
                data, ancillary, _, _ = self._far.recvmsg(1 << 16, socket.CMSG_SPACE(16))
            except BlockingIOError:
                return found
            for _, _, payload in ancillary:
                for descriptor in array.array("i", payload):
                    os.close(descriptor)
            self._reader.feed(data)
            found += map(decode_worker_message, self._reader.frames())

    def acked(self) -> list[int]:
        return [run.tag for message in self.received() if isinstance(message, m.Acked) for run in message.runs]

    def delivered(self) -> int:
        found = [message for message in self.received() if isinstance(message, m.Deliver)]
        return sum(len(message.bundle_indexes) // 4 for message in found)


def bench_with_log(monkeypatch: pytest.MonkeyPatch) -> HostBench:
    """A host that has taken a bundle, number 0, into a log that does not grow old; its clock goes by hand. The caller closes it."""
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    bench = HostBench(clock, topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    bench.push(0)
    bench.settle()
    assert bench.acked() == [0]
    return bench
