"""Several workers under one cap, in simulated time: who waits how long, what goes first, and what is sealed early."""

from __future__ import annotations

from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, MIB, MILLISECOND_NS
from quiver_actors.node.worker.storage import CALM_INTERVAL_NS
from quiver_actors.store.retention.limits import Limit
from quiver_actors.supervisor.coordinator import CLAIM_NS, PASSED_OVER_NS
from tests.support.capped_node import CappedNode, capped_node
from tests.support.engine_driver import topic_settings

CORES = 4
HOT = 1
PROMISED_NS = 100 * MILLISECOND_NS
TARGET = 64 * KIB
LOG_SIZED = 1500
"""Rows of a bundle that fills a log."""


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["cap", "share"])
@pytest.mark.parametrize("phase_ms", [0, CALM_INTERVAL_NS // MILLISECOND_NS // 2])
def test_a_hot_core_waits_a_tenth_of_a_second_at_most_while_idle_ones_have_headroom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase_ms: int, share: float
) -> None:
    retention = RetentionSettings(cap_share=share)
    settings = topic_settings(segment_target_size_bytes=TARGET, segment_compaction="off", retention=retention)
    with capped_node(tmp_path, monkeypatch, settings, int(16 * MIB / share), CORES) as node:
        node.pass_time(300 + phase_ms)  # everybody has its part, and looks at different times
        ingest, number = node.benches[HOT].host.ingest, 0
        while sum(node.used(core) for core in range(CORES)) < node.limit_bytes - MIB:
            number += 1
            assert number < 5000
            node.push(HOT, number, LOG_SIZED)
            since_ns = ingest.waiting.oldest_since_ns
            node.pass_time(1)
            waited_ns = node.clock.now_ns - since_ns if since_ns else 0
            assert waited_ns <= PROMISED_NS, f"push {number}, {node.used(HOT)} bytes used"
        assert node.used(HOT) > 0.85 * node.limit_bytes
        assert node.over <= 0


@pytest.mark.parametrize(("share", "limit"), [(1.0, Limit.SIZE_CAP), (0.5, Limit.CAP_SHARE)], ids=["cap", "share"])
def test_what_idle_cores_may_still_use_rejects_no_push(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, limit: Limit
) -> None:
    """A push waits for milliseconds until they have given it back; only a topic or node that has what it may have rejects."""
    retention = RetentionSettings(size_cap_policy="reject", cap_share=share)
    settings = topic_settings(segment_target_size_bytes=TARGET, segment_compaction="off", retention=retention)
    with capped_node(tmp_path, monkeypatch, settings, int(16 * TARGET / share), CORES) as node:
        node.pass_time(300)
        engine, number, met = node.benches[HOT].host.engine, 0, set()
        while not engine.figures().refused:
            number += 1
            assert number < 1000
            node.push(HOT, number, LOG_SIZED)
            for _ in range(5):
                node.pass_time(1)
                met.add(engine.figures().limit)
        # What is left over of its log is given back when it is sealed; the next one would be over the limit.
        assert node.used(HOT) > node.limit_bytes - engine.storage.step_bytes
        assert met == {Limit.NONE, limit}
        assert node.over <= 0


# --- what goes ------------------------------------------------------------------------------------------------------------


def ingested(node: CappedNode, core: int) -> list[int]:
    """Return the ingestion times of what is left in segments."""
    return [info.first_ingestion_ts_nanos for info in node.benches[core].driver.engine.segments()]


def overload(node: CappedNode, cores: list[int], pushes: int) -> None:
    """Push that many times, each as soon as the push before is taken."""
    for number in range(pushes):
        core = cores[number % len(cores)]
        node.push(core, number, LOG_SIZED)
        node.pass_time(2)
        for _ in range(10_000):
            if not node.benches[core].host.ingest.waiting.count:
                break
            node.pass_time(1)
        else:
            raise AssertionError("a push waits for ten seconds")


def dropping(share: float = 1.0) -> RetentionSettings:
    return RetentionSettings(size_cap_policy="drop_oldest", cap_share=share)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["cap", "share"])
def test_the_oldest_goes_first_whichever_core_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """At the node's cap, and at the topic's share of twice as large a cap."""
    settings = topic_settings(segment_target_size_bytes=TARGET, segment_compaction="off", retention=dropping(share))
    limit = 4 * MIB
    with capped_node(tmp_path, monkeypatch, settings, int(limit / share), 2) as node:
        node.pass_time(300)
        overload(node, [0], 20)
        overload(node, [1], 120)
        lost = [bench.driver.engine.storage.losses.by_reason["evicted"].segments for bench in node.benches]
        assert lost[0] > 15, "all of what the idle core had is older than anything of the busy one"
        assert lost[1] > 0
        left = {core: ingested(node, core) for core in range(2)}
        newest_lost = min(left[1])
        assert all(at > newest_lost - 200 * MILLISECOND_NS for at in left[0]), "what is left is younger than what went"
        assert sum(node.used(core) for core in range(2)) <= limit
        assert node.over <= 0


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["cap", "share"])
def test_a_worker_that_does_not_answer_is_passed_over_and_makes_good_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    settings = topic_settings(segment_target_size_bytes=TARGET, segment_compaction="off", retention=dropping(share))
    with capped_node(tmp_path, monkeypatch, settings, int(4 * MIB / share), 2) as node:
        node.pass_time(300)
        overload(node, [0], 20)
        node.stopped.add(0)
        kept = ingested(node, 0)
        before = node.benches[1].driver.engine.figures().bundles_in
        overload(node, [1], 60)
        node.pass_time((CLAIM_NS + PASSED_OVER_NS) // MILLISECOND_NS)
        overload(node, [1], 20)
        engine = node.benches[1].driver.engine
        assert engine.figures().bundles_in > before + 50, "pushes go on"
        assert engine.storage.losses.by_reason["evicted"].segments > 0
        assert ingested(node, 0) == kept
        node.stopped.clear()
        overload(node, [1], 40)
        assert len(ingested(node, 0)) < len(kept), "then the oldest is its again"
        assert node.over <= 0


# --- early seal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("share", [1.0, 0.5], ids=["cap", "share"])
def test_where_a_push_waits_the_open_segment_is_sealed_early_if_the_topic_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, early: bool
) -> None:
    retention = RetentionSettings(early_seal=early, cap_share=share)
    settings = topic_settings(
        segment_target_size_bytes=TARGET,
        segment_max_open_duration_ns=1 << 60,
        segment_compaction="off",
        retention=retention,
    )
    with capped_node(tmp_path, monkeypatch, settings, int(4 * MIB / share), 1) as node:
        node.pass_time(300)
        node.benches[0].host.engine.registrations.register("s", "earliest")
        number = 0
        ingest = node.benches[0].host.ingest
        while not ingest.waiting.count:
            # A small one opens a log; the large one behind it does not fit into it any more.
            node.push(0, 2 * number, 100)
            node.pass_time(3)
            node.push(0, 2 * number + 1, LOG_SIZED)
            node.pass_time(40)
            number += 1
            assert number < 1000
        node.pass_time(200)
        logs = node.benches[0].driver.engine.figures().open_segment_bundles
        assert (logs == 0) == early
