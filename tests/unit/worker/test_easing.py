"""What a worker does under pressure, step by step of the ladder, in simulated time: one host with its engine on a simulated disk, a real
session, and the worker's own sampling. The clocks that they read are the test's."""

from __future__ import annotations

import array
import os
import socket
from collections import deque
from collections.abc import Iterator

import pytest

from quiver_actors.disk.simulated import SimDisk
from quiver_actors.errors import HardPressed
from quiver_actors.jobs import CommitJob, SealJob
from quiver_actors.metrics.figures import FIGURES_VERSION
from quiver_actors.protocol import messages as m
from quiver_actors.protocol.framing import FrameReader, decode_worker_message
from quiver_actors.retention.pressure import (
    COALESCE_NS_MAX,
    SAMPLE_INTERVAL_NS,
    SYNC_NS_LIMIT,
    WINDOW_NS_MAX,
    Pressure,
    Signals,
    Step,
)
from quiver_actors.shm.arena import ArenaOwner, ArenaProducer
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.figures import STORAGE_ROW, StorageFigure
from quiver_actors.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.upkeep import COMPACTION_AGE_NS
from quiver_actors.worker import host as host_module
from quiver_actors.worker import ingest as ingest_module
from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.connection import Connection
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.journal import Journal
from quiver_actors.worker.load import Load
from quiver_actors.worker.peer import Peer
from quiver_actors.worker.session import Session
from quiver_actors.worker.storage import StorageShare
from quiver_actors.worker.threads import Finished, Job
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings

ARENA_BYTES = 1 << 20


class Bench:
    """One host, as the worker's loop drives it; jobs take no time."""

    def __init__(self, priority: int = 0) -> None:
        settings = topic_settings(priority=priority, segment_max_open_duration_ns=3600 * SECOND_NS)
        self.driver = EngineDriver(SimDisk(shows_descriptors=True), settings)
        self.clock = self.driver.clock
        self.pressure = Pressure()
        self.load = Load(self.pressure)
        self._jobs: deque[tuple[Job, Finished]] = deque()
        self.commits: list[int] = []
        """When each group commit began."""
        self.host = EngineHost(
            self.driver.engine,
            commit=self._submit,
            background=self._submit,
            ask=self._submit,
            own_log="decisions",
            journal=Journal(0),
            agenda=Agenda(),
            pressure=self.pressure,
        )
        near, self._far = socket.socketpair()
        self._far.setblocking(False)
        self._reader = FrameReader()
        self.session = Session(Connection(near, frame_bytes_max=4096), Peer(1, 2, 3), 0, set())
        self.session.greet(m.Hello(m.PROTOCOL_VERSION, 1, "test"))
        arena = ArenaOwner.create(ARENA_BYTES)
        self._producer = ArenaProducer.attach(arena.fd, arena.size_bytes)
        self.session.expect_arena(ARENA_BYTES)
        self.session.attach(arena)
        self._declared: set[int] = set()
        self.run_for(SECOND_NS)

    def close(self) -> None:
        self.session.close()
        self._producer.close()
        self._far.close()

    def _submit(self, job: Job, finished: Finished) -> None:
        if isinstance(job, CommitJob):
            self.commits.append(self.clock.now_ns)
        self._jobs.append((job, finished))

    # --- time ------------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Turn and run jobs until there is nothing to do at this moment."""
        while True:
            self.host.turn(self.clock.now_ns)
            while self._jobs:
                job, finished = self._jobs.popleft()
                job.run()
                finished()
            due_ns = self.host.deadline_ns
            is_due = due_ns is not None and due_ns <= self.clock.now_ns
            if not self.host.is_touched and not self.host.deliveries.is_due and not is_due:
                return
            if self.host.deliveries.is_due and not self.host.is_touched and due_ns is not None and not is_due:
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

    def push(self, number: int) -> None:
        memory, push, schemas = self.driver.layout([{0: numbered_batch(number)}])
        for handle, schema in schemas.items():
            if handle not in self._declared:
                self._declared.add(handle)
                self.session.declare("default", handle, schema)
        offset = self._producer.reserve(len(memory))
        assert offset is not None
        self._producer.ring[offset : offset + len(memory)] = memory
        end = self._producer.commit(len(memory))
        placed = m.Push(number, push.topic, offset, len(memory), end, push.entries, push.slots, push.dictionaries)
        self.host.ingest.push(self.session, placed, self.clock.now_ns)
        self.host.touch_push()

    def seal(self) -> None:
        self.driver.engine.seal_now()
        self.host.touch()
        self.settle()

    def subscribe(self, credit: int = 1000) -> None:
        self.host.deliveries.register(self.session, m.Register(1, "default", "s", "earliest"))
        self.host.deliveries.credit(self.session, m.Credit("default", "s", credit))
        self.host.touch()
        self.run_for(SECOND_NS)
        self.received()

    def received(self) -> list[m.Message]:
        """What was sent to the client since the last call."""
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


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from benches(monkeypatch, 0)


@pytest.fixture
def low_priority(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    yield from benches(monkeypatch, -1)


def benches(monkeypatch: pytest.MonkeyPatch, priority: int) -> Iterator[Bench]:
    made: list[Bench] = []

    def monotonic_ns() -> int:
        return made[0].clock.now_ns if made else 0

    monkeypatch.setattr(host_module, "monotonic_ns", monotonic_ns)
    monkeypatch.setattr(ingest_module, "monotonic_ns", monotonic_ns)
    bench = Bench.__new__(Bench)
    made.append(bench)
    bench.clock = EngineDriver(SimDisk()).clock
    bench.__init__(priority)  # type: ignore[misc]
    yield bench
    bench.close()


# --- widen ---------------------------------------------------------------------------------------------------------------


def test_a_commit_starts_at_once_at_ease_and_waits_for_company_under_pressure(bench: Bench) -> None:
    bench.push(1)
    bench.settle()
    assert bench.commits[-1] == bench.clock.now_ns
    assert bench.acked() == [1]

    bench.press(1.0)
    before, began_ns = len(bench.commits), bench.clock.now_ns
    bench.push(2)
    bench.run_for(WINDOW_NS_MAX // 2)
    bench.push(3)
    bench.run_for(WINDOW_NS_MAX // 2 - 1)
    assert (len(bench.commits), bench.acked()) == (before, []), "both wait"
    bench.run_for(1)
    bench.settle()
    assert bench.commits[before:] == [began_ns + WINDOW_NS_MAX], "one sync for both, counted from the first"
    assert bench.acked() == [2, 3]

    bench.press(0.0)
    bench.push(4)
    bench.settle()
    assert bench.commits[-1] == bench.clock.now_ns
    assert bench.acked() == [4]


# --- coalesce ------------------------------------------------------------------------------------------------------------


def deliveries_of_two(bench: Bench, first: int) -> list[int]:
    """Two segments, pushed and sealed a millisecond apart: when each bundle was delivered, in nanoseconds from the first push."""
    bench.run_for(SECOND_NS)
    began_ns, found = bench.clock.now_ns, list[int]()

    def look() -> None:
        bench.settle()
        found.extend([bench.clock.now_ns - began_ns] * bench.delivered())

    for number in (first, first + 1):
        bench.push(number)
        bench.settle()
        bench.seal()
        look()
        bench.run_for(MILLISECOND_NS)
    while len(found) < 2 and bench.clock.now_ns < began_ns + SECOND_NS:
        look()
        bench.run_for(MILLISECOND_NS // 10)
    return found


def test_deliveries_come_at_once_at_ease_and_together_under_pressure(bench: Bench) -> None:
    bench.subscribe()
    assert deliveries_of_two(bench, 0) == [0, MILLISECOND_NS]
    bench.press(0.3)
    first, second = deliveries_of_two(bench, 10)
    assert first == second, "one message, one wake-up"
    assert MILLISECOND_NS <= first < COALESCE_NS_MAX
    bench.press(0.0)
    assert deliveries_of_two(bench, 20) == [0, MILLISECOND_NS]


def test_topics_of_low_priority_wait_longer_when_what_can_wait_does(low_priority: Bench) -> None:
    bench = low_priority
    bench.subscribe()
    assert deliveries_of_two(bench, 0) == [0, MILLISECOND_NS]
    bench.press(0.9)
    first, second = deliveries_of_two(bench, 10)
    assert first == second
    assert COALESCE_NS_MAX < first <= SECOND_NS // 2 + WINDOW_NS_MAX
    bench.press(0.0)
    assert deliveries_of_two(bench, 20) == [0, MILLISECOND_NS]


# --- defer ---------------------------------------------------------------------------------------------------------------


def sample(bench: Bench, cap_fraction: float) -> None:
    """As the worker's loop does every 100 ms."""
    bench.load.sample(
        [bench.host], {bench.host}, arena_bytes=ARENA_BYTES, arena_used_bytes=0, cap_fraction=cap_fraction
    )
    bench.run_for(SAMPLE_INTERVAL_NS)


def test_compaction_waits_while_the_cap_is_near_and_is_done_afterwards(bench: Bench) -> None:
    for number in range(400):
        bench.push(number)
    bench.run_for(SECOND_NS)
    bench.seal()
    sample(bench, 1.0)
    bench.run_for(2 * COMPACTION_AGE_NS)
    assert bench.driver.engine.figures().compactions == 0
    while bench.pressure.defers:
        sample(bench, 0.5)
    bench.run_for(COMPACTION_AGE_NS)
    assert bench.driver.engine.figures().compactions == 1


# --- refuse --------------------------------------------------------------------------------------------------------------


def test_at_one_a_push_that_cannot_be_taken_at_once_is_refused_and_others_are_taken(bench: Bench) -> None:
    bench.pressure.sample(Signals(sync_ns=SYNC_NS_LIMIT))
    bench.push(7)  # no log has been made yet
    bench.settle()
    (refused,) = [message for message in bench.received() if isinstance(message, m.Refused)]
    assert (refused.tag, refused.code) == (7, HardPressed.code)
    assert refused.retry_after_ns > 0
    bench.push(8)
    bench.run_for(SECOND_NS)
    assert bench.acked() == [8], "there is a log now"
    assert bench.driver.engine.figures().bundles_in == 1


def test_at_ease_the_same_push_waits_for_its_log(bench: Bench) -> None:
    bench.push(7)
    bench.settle()
    assert bench.acked() == [7]


# --- the whole ladder ----------------------------------------------------------------------------------------------------


def test_from_zero_to_one_and_back_every_step_is_shown_where_status_looks(bench: Bench) -> None:
    page = CountersPage.create(new_name(), 2, 8, FIGURES_VERSION)
    try:
        share = StorageShare(None, page.writer(1), "core_0", {"default": bench.host}, Agenda(), lambda: None)
        seen: list[int] = []

        def shown() -> tuple[int, int]:
            (row,) = [row for row in page.read_region(1).rows if row.kind == STORAGE_ROW]
            return row.values[StorageFigure.PRESSURE_PERMILLE], row.values[StorageFigure.PRESSURE_STEPS]

        for fraction in [*(0.5 + n / 100 for n in range(51)), *([0.5] * 60)]:
            sample(bench, fraction)
            share.show_pressure(bench.pressure)
            permille, steps = shown()
            assert permille == bench.pressure.permille
            if not seen or seen[-1] != steps:
                seen.append(steps)
        coalesce, widen, defer = Step.COALESCE, Step.WIDEN, Step.DEFER
        up = [0, coalesce, coalesce | widen, coalesce | widen | defer]
        assert seen == [*up, *reversed(up[:-1])], "each step begins once and ends once; a full cap alone refuses nobody"
        assert shown() == (0, 0)
    finally:
        page.unlink()
        page.close()


def test_segments_that_wait_for_their_seal_are_backlog(bench: Bench) -> None:
    for number in range(8):
        bench.push(number)
        bench.host.turn(bench.clock.now_ns)
        bench.driver.engine.seal_now()
        # Commits are done, seals are not.
        while bench._jobs:
            job, finished = bench._jobs.popleft()
            if isinstance(job, SealJob):
                continue
            job.run()
            finished()
    bench.load.sample([bench.host], {bench.host}, arena_bytes=0, arena_used_bytes=0, cap_fraction=0.0)
    assert bench.pressure.value > 0.2
