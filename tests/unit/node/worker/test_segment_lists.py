"""Readers that ask with patience get everything that was acknowledged before: one host, as the worker's loop drives it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quiver_actors.base.protocol import messages as m
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import TopicDeleted
from quiver_actors.store.jobs.commits import SealJob
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of

PATIENCE_MS = 1000
LONG_NS = 3600 * SECOND_NS
INTERVAL = {"wal_flush_interval_ns": 60 * SECOND_NS}


@contextmanager
def bench_of(monkeypatch: pytest.MonkeyPatch, **settings: object) -> Iterator[HostBench]:
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    usual = {"segment_max_open_duration_ns": LONG_NS, "segment_max_unsynced_duration_ns": LONG_NS}
    bench = HostBench(clock, topic_settings(**{**usual, **settings}), SimDisk(shows_descriptors=True))
    try:
        yield bench
    finally:
        bench.close()


def ask(bench: HostBench, tag: int = 1, patience_ms: int = PATIENCE_MS) -> None:
    bench.host.touch()
    bench.host.readers.lists.answer(bench.session, m.ListSegments(tag, "default", patience_ms), bench.clock.now_ns)


def lists(bench: HostBench) -> list[m.SegmentList]:
    return [message for message in bench.received() if isinstance(message, m.SegmentList)]


def bundle_count(found: m.SegmentList) -> int:
    return sum(info.bundle_count for info in (*found.segments, *found.open_segments))


def push_acknowledged(bench: HostBench, *numbers: int) -> None:
    for number in numbers:
        bench.push(number)
        bench.settle()
        assert bench.acked() == [number]


def test_what_the_topic_syncs_later_is_synced_for_a_reader_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(monkeypatch, **INTERVAL) as bench:
        push_acknowledged(bench, 0, 1)
        ask(bench, patience_ms=0)
        (found,) = lists(bench)
        assert (bundle_count(found), found.is_complete, found.obstacle) == (1, False, "")
        ask(bench)
        assert not lists(bench)
        bench.settle()
        (found,) = lists(bench)
        assert (bundle_count(found), found.is_complete, found.obstacle) == (2, True, "")
        assert not found.segments, "nothing is sealed for it"
        assert bench.session.owed == 0
        commits = len(bench.commits)
        push_acknowledged(bench, 2)
        assert len(bench.commits) == commits, "the next pushes wait for their interval again"


def test_a_topic_that_syncs_at_the_seal_says_at_once_that_its_open_log_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with bench_of(monkeypatch, durability="segment_only") as bench:
        push_acknowledged(bench, 0, 1)
        ask(bench)
        (found,) = lists(bench)
        assert (bundle_count(found), found.is_complete, found.obstacle) == (1, False, "")
        bench.driver.engine.seal_now()
        ask(bench)
        assert not lists(bench), "what is being sealed is waited for"
        bench.settle()
        (found,) = lists(bench)
        assert (bundle_count(found), found.is_complete, found.obstacle) == (2, True, "")


def test_a_log_that_ends_is_read_before_its_seal_though_nobody_subscribes(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(monkeypatch) as bench:
        push_acknowledged(bench, 0)
        bench.driver.engine.seal_now()
        bench.host.touch()
        for _ in ("the end of the log", "the empty log behind it"):
            bench.host.turn(bench.clock.now_ns)
            commit, finished = bench.jobs.popleft()
            commit.run()
            finished()
        bench.host.turn(bench.clock.now_ns)
        assert any(isinstance(job, SealJob) for job, _ in bench.jobs), "it is under way, and not done"
        ask(bench)
        (found,) = lists(bench)
        assert (len(found.segments), bundle_count(found), found.is_complete) == (0, 1, True)


def test_at_the_end_of_the_patience_the_answer_says_what_is_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(monkeypatch, **INTERVAL) as bench:
        push_acknowledged(bench, 0, 1)
        ask(bench)
        bench.host.turn(bench.clock.now_ns)
        assert len(bench.jobs) == 1, "the sync is under way, and does not end"
        assert bench.host.deadline_ns is not None
        assert bench.host.deadline_ns <= bench.clock.now_ns + PATIENCE_MS * 1_000_000
        bench.clock.now_ns += PATIENCE_MS * 1_000_000
        bench.host.turn(bench.clock.now_ns)
        (found,) = lists(bench)
        assert (bundle_count(found), found.is_complete) == (1, False)
        assert found.obstacle == "segment 0 is not synced yet"
        assert bench.session.owed == 0


def test_a_reader_of_a_failed_engine_hears_of_the_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(monkeypatch, **INTERVAL) as bench:
        push_acknowledged(bench, 0, 1)
        bench.driver.disk.unlink("default/core_0/wal/quiver.wal")
        ask(bench)
        bench.settle()
        ask(bench, tag=2)
        found = lists(bench)
        assert [each.tag for each in found] == [1, 2]
        assert all("somebody removed the log" in each.obstacle for each in found)
        assert [bundle_count(each) for each in found] == [1, 1]


def test_a_reader_of_a_deleted_topic_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with bench_of(monkeypatch, **INTERVAL) as bench:
        push_acknowledged(bench, 0, 1)
        ask(bench)
        bench.host.give_up(TopicDeleted("it is gone"), lambda: None)
        (refused,) = [message for message in bench.received() if isinstance(message, m.Refused)]
        assert (refused.tag, refused.code) == (1, TopicDeleted.code)
        assert bench.session.owed == 0


@pytest.mark.parametrize("settings", [{}, INTERVAL, {"durability": "segment_only"}], ids=["synced", "interval", "seal"])
def test_whatever_is_under_way_an_answer_has_all_that_was_acknowledged(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, object]
) -> None:
    """Turns and single jobs, pushes, seals and questions in any order."""
    for seed in range(4):
        choose = random.Random(seed)
        with bench_of(monkeypatch, **settings) as bench:
            acknowledged: set[int] = set()
            asked: dict[int, int] = {}
            answered = 0
            for step in range(120):
                match choose.randrange(8):
                    case 0 | 1:
                        bench.push(step)
                    case 2 | 3 if bench.jobs:
                        job, finished = bench.jobs.popleft()
                        job.run()
                        finished()
                    case 4 if step % 3 == 0:
                        bench.driver.engine.seal_now()
                        bench.host.touch()
                    case 5:
                        asked[step] = len(acknowledged)
                        ask(bench, step)
                    case _:
                        bench.host.turn(bench.clock.now_ns)
                for message in bench.received():
                    if isinstance(message, m.Acked):
                        acknowledged |= {run.tag for run in message.runs}
                    elif isinstance(message, m.SegmentList):
                        answered += 1
                        assert message.obstacle == ""
                        owed = asked.pop(message.tag)
                        if settings.get("durability") != "segment_only" or message.is_complete:
                            assert bundle_count(message) >= owed, (seed, step)
                            assert message.is_complete
            bench.settle()
            assert asked.keys() == {found.tag for found in lists(bench)}, "nobody waits for ever"
            assert answered
