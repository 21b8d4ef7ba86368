"""A push that waited for room and was refused leaves its wish behind: nobody else waits because of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from tests.support.capped_node import capped_node
from tests.support.engine_driver import ManualClock, topic_settings
from tests.support.host_bench import HostBench, clocks_of

TARGET = 64 * KIB
LOG_SIZED = 1500
"""Rows of a bundle that fills a log."""
LARGE = 20_000
"""Rows of a bundle that takes several hundred KiB."""
PATIENCE_MS = 300
ROOM_BYTES = 200 * KIB


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["cap", "share"])
def test_a_stage_that_fits_gets_room_once_the_push_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """The supervisor gives a worker all that its pushes wait for, or nothing: a wish for a log stayed, and a transaction waited with it."""
    settings = topic_settings(
        segment_target_size_bytes=TARGET, segment_compaction="off", retention=RetentionSettings(cap_share=share)
    )
    with capped_node(tmp_path, monkeypatch, settings, int(MIB / share), 1) as node:
        node.pass_time(300)
        bench, number = node.benches[0], 0
        while not bench.host.ingest.waiting.count:
            number += 1
            assert number < 1000
            bench.push(number, LOG_SIZED, patience_ms=PATIENCE_MS)
            node.pass_time(40)
        bench.push_staged(1000)
        node.pass_time(100)
        bench.received()
        assert bench.host.staging.pushes.waiting_stages, "it waits behind the push"
        node.pass_time(PATIENCE_MS)
        assert not bench.host.ingest.waiting.count
        assert node.limit_bytes - node.used(0) < bench.host.engine.storage.step_bytes, "there is no room for a log"
        assert bench.acked() == [1000]
        assert node.over <= 0


def bench_with_little_room(monkeypatch: pytest.MonkeyPatch, policy: str) -> HostBench:
    """A host with room for a small log, which has just got a large push."""
    clock = ManualClock()
    clocks_of(clock, monkeypatch)
    retention = RetentionSettings(size_cap_policy=policy)
    bench = HostBench(clock, topic_settings(segment_target_size_bytes=TARGET, retention=retention))
    bench.driver.engine.storage.share_room(lambda size_bytes: size_bytes <= ROOM_BYTES)
    bench.push(1, LARGE, patience_ms=PATIENCE_MS)
    bench.settle()
    return bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> HostBench:
    """A host with room for a small log, where a large push waits."""
    bench = bench_with_little_room(monkeypatch, "backpressure")
    assert bench.host.ingest.waiting.count == 1
    return bench


def test_a_push_that_fits_is_taken_after_a_larger_one_was_refused(bench: HostBench) -> None:
    bench.run_for(SECOND_NS)
    assert not bench.host.ingest.waiting.count
    bench.push(2)
    bench.settle()
    assert bench.acked() == [2]
    bench.close()


def test_a_push_that_fits_is_taken_when_the_larger_one_before_it_is_refused(bench: HostBench) -> None:
    bench.push(2)
    bench.settle()
    assert bench.host.ingest.waiting.count == 2, "nobody overtakes"
    bench.run_for(SECOND_NS)
    assert bench.acked() == [2]
    bench.close()


def test_a_push_that_fits_is_taken_after_the_connection_of_a_larger_one_has_ended(bench: HostBench) -> None:
    bench.close()
    bench.host.detach(bench.session)
    bench.settle()
    assert not bench.host.ingest.waiting.count
    intake = bench.host.engine.intake
    assert not intake.can_stage(1000), "a log is made for it first"
    bench.host.touch()
    bench.settle()
    assert intake.can_stage(1000)


def test_a_push_that_fits_is_taken_after_a_larger_one_was_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = bench_with_little_room(monkeypatch, "reject")
    assert not bench.host.ingest.waiting.count
    bench.push(2)
    bench.settle()
    assert bench.acked() == [2]
    bench.close()
