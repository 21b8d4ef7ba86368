"""What a worker does under pressure, step by step of the ladder, in simulated time: one host with its engine on a simulated disk, a real
session, and the worker's own sampling. The clocks that they read are the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import HardPressed
from quiver_actors.node.worker.figures import PUBLISH_INTERVAL_NS
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.storage import StorageShare
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name
from quiver_actors.store.jobs.commits import SealJob
from quiver_actors.store.jobs.upkeep import COMPACTION_AGE_NS
from quiver_actors.store.retention.pressure import COALESCE_NS_MAX, SYNC_NS_LIMIT, WINDOW_NS_MAX, Signals, Step
from quiver_actors.supervisor.figures import STORAGE_ROW, StorageFigure
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import ARENA_BYTES, HostBench, clocks_of


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    yield from benches(monkeypatch, priority=0)


@pytest.fixture
def low_priority(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostBench]:
    yield from benches(monkeypatch, priority=-1)


def benches(monkeypatch: pytest.MonkeyPatch, priority: int) -> Iterator[HostBench]:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    bench = HostBench(clock, topic_settings(priority=priority, segment_max_open_duration_ns=3600 * SECOND_NS))
    yield bench
    bench.close()


# --- widen ---------------------------------------------------------------------------------------------------------------


def test_a_commit_starts_at_once_at_ease_and_waits_for_company_under_pressure(bench: HostBench) -> None:
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


def deliveries_of_two(bench: HostBench, first: int) -> list[int]:
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


def test_deliveries_come_at_once_at_ease_and_together_under_pressure(bench: HostBench) -> None:
    bench.subscribe()
    assert deliveries_of_two(bench, 0) == [0, MILLISECOND_NS]
    bench.press(0.3)
    first, second = deliveries_of_two(bench, 10)
    assert first == second, "one message, one wake-up"
    assert MILLISECOND_NS <= first < COALESCE_NS_MAX
    bench.press(0.0)
    assert deliveries_of_two(bench, 20) == [0, MILLISECOND_NS]


def test_topics_of_low_priority_wait_longer_when_what_can_wait_does(low_priority: HostBench) -> None:
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


def sample(bench: HostBench, cap_fraction: float) -> None:
    """Sample the load, like the worker's loop does when it publishes its figures."""
    bench.load.sample(
        [bench.host], {bench.host}, arena_bytes=ARENA_BYTES, arena_used_bytes=0, cap_fraction=cap_fraction
    )
    bench.run_for(PUBLISH_INTERVAL_NS)


def test_compaction_waits_while_the_cap_is_near_and_is_done_afterwards(bench: HostBench) -> None:
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


def test_at_one_a_push_that_cannot_be_taken_at_once_is_refused_and_others_are_taken(bench: HostBench) -> None:
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


def test_what_was_sent_behind_a_refused_push_of_its_call_is_refused_until_that_comes_again(bench: HostBench) -> None:
    bench.pressure.sample(Signals(sync_ns=SYNC_NS_LIMIT))
    bench.push(7, call=3)
    bench.push(8, call=3)
    bench.settle()
    bench.push(9, call=3)  # There is a log now; but its client had not heard of the refusal.
    bench.push(10, call=4)
    bench.run_for(SECOND_NS)
    received = bench.received()
    refusals = [(message.tag, message.code) for message in received if isinstance(message, m.Refused)]
    assert refusals == [(tag, HardPressed.code) for tag in (7, 8, 9)]
    assert [run.tag for message in received if isinstance(message, m.Acked) for run in message.runs] == [10]
    for tag, call in enumerate((-3, 3, 3), 11):
        bench.push(tag, call=call)
    bench.run_for(SECOND_NS)
    assert bench.acked() == [11, 12, 13]


def test_at_ease_the_same_push_waits_for_its_log(bench: HostBench) -> None:
    bench.push(7)
    bench.settle()
    assert bench.acked() == [7]


# --- the whole ladder ----------------------------------------------------------------------------------------------------


def test_from_zero_to_one_and_back_every_step_is_shown_where_status_looks(bench: HostBench) -> None:
    page = CountersPage.create(new_name(), 2, 8, FIGURES_VERSION)
    try:
        share = StorageShare(None, page.writer(1), "core_0", {"default": bench.host}, RunQueue(), lambda: None)
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


def test_segments_that_wait_for_their_seal_are_backlog(bench: HostBench) -> None:
    for number in range(8):
        bench.push(number)
        bench.host.turn(bench.clock.now_ns)
        bench.driver.engine.seal_now()
        # Commits are done, seals are not.
        while bench.jobs:
            job, finished = bench.jobs.popleft()
            if isinstance(job, SealJob):
                continue
            job.run()
            finished()
    bench.load.sample([bench.host], {bench.host}, arena_bytes=0, arena_used_bytes=0, cap_fraction=0.0)
    assert bench.pressure.value > 0.2
