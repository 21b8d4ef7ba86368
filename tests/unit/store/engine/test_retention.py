"""What one engine keeps and lets go: spool, age, claims for want of space, and the account of its directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, MIB, SECOND_NS
from quiver_actors.errors import ProtocolError, Throttled
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.jobs.records import ProgressJob
from quiver_actors.store.retention.choice import IN_LOGS, choose
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from quiver_actors.supervisor.measure import measure
from tests.support.engine_driver import EngineDriver, drop_segment, numbered_batch, topic_settings
from tests.support.stage_driver import StageDriver

HOUR_NS = 3600 * SECOND_NS


def engine_with(disk: Disk, **retention: Any) -> EngineDriver:
    return EngineDriver(disk, topic_settings(segment_compaction="off", retention=RetentionSettings(**retention)))


def fill(driver: EngineDriver, segments: int, bundles: int = 4) -> None:
    """Seal so many segments, a second apart."""
    for _ in range(segments):
        driver.push_numbered(0, bundles)
        driver.settle()
        driver.seal()
        driver.clock.advance(SECOND_NS)


def acknowledge_all(driver: EngineDriver, subscriber: str) -> None:
    while grants := driver.claim(subscriber, "owner", 1000):
        for grant in grants:
            driver.resolve(subscriber, "owner", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()


def stored(driver: EngineDriver) -> list[int]:
    return [info.segment_seq for info in driver.engine.segments()]


def carry_out(driver: EngineDriver, last_class: int, size_bytes: int = 1, through_unix_ns: int = NO_LIMIT) -> None:
    """Evict segments, like a worker does to fulfil a claim of the coordinator."""
    retention = driver.engine.retention
    retention.let_go(choose(retention.candidates(), last_class, through_unix_ns, size_bytes))
    driver.flush_progress()


def losses(driver: EngineDriver, reason: str) -> tuple[int, int]:
    loss = driver.engine.storage.losses.by_reason[reason]
    return loss.segments, loss.bundles


def announced(driver: EngineDriver, subscriber: str, reason: str) -> list[tuple[int, int]]:
    """(segment, bundles) of the notices that it was sent."""
    found = [event for event in driver.events if isinstance(event, GapFound)]
    return [(e.segment_seq, e.bundle_count) for e in found if (e.subscriber, e.reason) == (subscriber, reason)]


# --- processed segments --------------------------------------------------------------------------------------------------


def test_processed_segments_go_at_once(disk: Disk) -> None:
    driver = engine_with(disk)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    acknowledge_all(driver, "s")
    assert stored(driver) == []
    assert driver.engine.storage.losses.evictions["processed"] == 3


def test_the_spool_keeps_the_newest_processed_segments_until_a_claim_wants_the_oldest_of_them(disk: Disk) -> None:
    size = 8192
    driver = engine_with(disk, steady_state_headroom_bytes=3 * size)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 5)
    assert {info.size_bytes // size for info in driver.engine.segments()} == {0}, "each takes two blocks at most"
    acknowledge_all(driver, "s")
    kept = stored(driver)
    assert kept == list(range(5 - len(kept), 5))
    assert 3 <= len(kept) <= 4 or len(kept) == 5
    carry_out(driver, EvictionClass.PROCESSED)
    assert stored(driver) == kept[1:]
    assert driver.engine.storage.losses.evictions["size"] == 1
    assert losses(driver, "evicted") == (0, 0)
    assert announced(driver, "s", "evicted") == []


@pytest.mark.parametrize("comes_by", ["register", "seek"])
def test_what_was_to_go_and_is_owed_again_is_no_longer_on_its_way_out(disk: Disk, comes_by: str) -> None:
    """While a segment is being deleted nothing else is evicted, so one that is owed again must not count as deleted for too long."""
    driver = engine_with(disk, steady_state_headroom_bytes=MIB, size_cap_policy="drop_oldest")
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    acknowledge_all(driver, "s")
    retention = driver.engine.retention
    retention.let_go(choose(retention.candidates(), EvictionClass.PROCESSED, NO_LIMIT, 1))
    assert retention.doomed_bytes > 0
    if comes_by == "register":
        driver.engine.registrations.register("late", "earliest")
    else:
        driver.engine.registrations.seek("s", "earliest")
    driver.settle()
    assert stored(driver) == [0, 1]
    assert retention.doomed_bytes == 0
    carry_out(driver, EvictionClass.UNPROCESSED)
    assert stored(driver) == [1]
    assert announced(driver, "late" if comes_by == "register" else "s", "evicted") == [(0, 4)]


def test_a_claim_reaches_no_further_than_it_says(disk: Disk) -> None:
    driver = engine_with(disk, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 4)
    acknowledge_all(driver, "s")
    second = driver.engine.segments()[1].first_ingestion_ts_nanos
    carry_out(driver, EvictionClass.PROCESSED, size_bytes=MIB, through_unix_ns=second)
    assert stored(driver) == [2, 3]


def test_a_smaller_spool_lets_segments_go_at_once(disk: Disk) -> None:
    driver = engine_with(disk, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    acknowledge_all(driver, "s")
    assert stored(driver) == [0, 1, 2]
    driver.run_for(10 * SECOND_NS)
    driver.engine.change_settings(topic_settings(segment_compaction="off"))
    driver.run_for(SECOND_NS)
    assert stored(driver) == []


def test_a_claim_on_the_spool_is_carried_out_when_nothing_else_happens(disk: Disk) -> None:
    driver = engine_with(disk, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    acknowledge_all(driver, "s")
    driver.run_for(10 * SECOND_NS)
    carry_out(driver, EvictionClass.PROCESSED)
    assert stored(driver) == [1, 2]


# --- age -----------------------------------------------------------------------------------------------------------------


def test_over_age_segments_go_needed_or_not_and_who_needed_them_is_told(disk: Disk) -> None:
    driver = engine_with(disk, max_age_ns=HOUR_NS, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("slow", "earliest")
    fill(driver, 2)
    driver.run_for(HOUR_NS - 10 * SECOND_NS)
    assert stored(driver) == [0, 1]
    driver.run_for(20 * SECOND_NS)
    assert stored(driver) == []
    assert announced(driver, "slow", "expired") == [(0, 4), (1, 4)]
    assert losses(driver, "expired") == (2, 8)
    assert [notice.segment_seq for notice in driver.take_gaps("slow")] == [0, 1]


def test_age_wins_over_the_spool_without_a_loss(disk: Disk) -> None:
    driver = engine_with(disk, max_age_ns=HOUR_NS, steady_state_headroom_bytes=MIB)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    acknowledge_all(driver, "s")
    assert stored(driver) == [0, 1]
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == []
    assert losses(driver, "expired") == (0, 0)
    assert driver.engine.storage.losses.evictions["expired"] == 2


def test_what_a_consumer_holds_is_not_expired_before_it_is_given_back(disk: Disk) -> None:
    driver = engine_with(disk, max_age_ns=HOUR_NS)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    driver.claim("s", "owner", 1)
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == [0]
    driver.engine.claims.release("owner")
    driver.run_for(10 * SECOND_NS)
    assert stored(driver) == []


def test_a_clock_that_is_set_back_or_ahead_expires_nothing_early_and_keeps_nothing_for_ever(disk: Disk) -> None:
    driver = engine_with(disk, max_age_ns=HOUR_NS)
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 1)
    real = driver.clock.unix_ns
    driver.clock.unix_ns = lambda: real() + 1000 * HOUR_NS  # type: ignore[method-assign]
    driver.run_for(SECOND_NS)
    assert stored(driver) == [0]
    driver.clock.unix_ns = lambda: real() - 1000 * HOUR_NS  # type: ignore[method-assign]
    fill(driver, 1)
    candidates = driver.engine.retention.candidates()
    assert candidates == []
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == []


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_clock_that_is_set_ahead_while_bundles_wait_for_their_seal_expires_nothing(
    disk: Disk, is_staged: bool
) -> None:
    """A machine may take its first bundles before it has learned the time."""
    driver = StageDriver(disk, topic_settings(retention=RetentionSettings(max_age_ns=HOUR_NS)))
    driver.engine.registrations.register("s", "earliest")
    number = driver.prepared(0, 1) if is_staged else 0
    if not is_staged:
        driver.push_numbered(0, 2)
    driver.settle()
    real = driver.clock.unix_ns
    driver.clock.unix_ns = lambda: real() + 1000 * HOUR_NS  # type: ignore[method-assign]
    if is_staged:
        driver.publish(number)
    else:
        driver.seal()
    driver.run_for(SECOND_NS)
    (segment_seq,) = stored(driver)
    driver.run_for(2 * HOUR_NS)
    assert stored(driver) == []
    assert announced(driver, "s", "expired") == [(segment_seq, 2)]


# --- for want of space ---------------------------------------------------------------------------------------------------


def test_backpressure_offers_nothing_that_somebody_needs(disk: Disk) -> None:
    for policy in ("backpressure", "reject"):
        driver = engine_with(disk, size_cap_policy=policy)
        driver.engine.registrations.register("s", "earliest")
        fill(driver, 2)
        assert driver.engine.retention.candidates() == []
        carry_out(driver, EvictionClass.CLAIMED)
        assert len(stored(driver)) >= 2
        driver.drain_and_close()


def test_drop_oldest_lets_the_oldest_go_and_tells_each_who_needed_it_exactly_what(disk: Disk) -> None:
    driver = engine_with(disk, size_cap_policy="drop_oldest")
    for subscriber in ("fast", "slow"):
        driver.engine.registrations.register(subscriber, "earliest")
    fill(driver, 3)
    (grant,) = driver.claim("fast", "owner", 2)
    driver.resolve("fast", "owner", 0, "ack", grant.indexes)
    carry_out(driver, EvictionClass.UNPROCESSED)
    assert stored(driver) == [1, 2]
    assert announced(driver, "slow", "evicted") == [(0, 4)]
    assert announced(driver, "fast", "evicted") == [(0, 2)]
    assert losses(driver, "evicted") == (1, 4), "a bundle that two lose is one bundle"
    assert driver.engine.storage.losses.evictions["evicted"] == 1
    figures = driver.engine.owed.subscriber_figures()
    assert (figures["slow"].dropped, figures["fast"].dropped) == (4, 2)


def test_what_a_consumer_holds_goes_last(disk: Disk) -> None:
    driver = engine_with(disk, size_cap_policy="drop_oldest")
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 3)
    driver.claim("s", "owner", 1)
    driver.push_numbered(0)
    driver.settle()
    kinds = [each.eviction_class for each in sorted(driver.engine.retention.candidates())]
    assert kinds == [EvictionClass.UNPROCESSED] * 2 + [EvictionClass.OPEN, EvictionClass.CLAIMED]
    carry_out(driver, EvictionClass.CLAIMED)
    assert stored(driver) == [0, 2]
    carry_out(driver, EvictionClass.CLAIMED)
    assert stored(driver) == [0]
    carry_out(driver, EvictionClass.CLAIMED)
    assert stored(driver) == [0, 3], "what was in the log is sealed first, so that it can be counted"
    carry_out(driver, EvictionClass.CLAIMED)
    carry_out(driver, EvictionClass.CLAIMED)
    assert stored(driver) == []


def test_a_topic_without_a_subscriber_loses_its_oldest_too_and_it_is_counted(disk: Disk) -> None:
    driver = engine_with(disk, size_cap_policy="drop_oldest")
    fill(driver, 3)
    carry_out(driver, EvictionClass.UNPROCESSED)
    assert stored(driver) == [1, 2]
    assert losses(driver, "evicted") == (1, 4)
    driver.engine.registrations.register("late", "earliest")
    driver.settle()
    assert len(driver.claim_numbers("late")) == 8
    driver.engine.close()
    driver.reopen()
    driver.settle()
    assert stored(driver) == [1, 2]


def test_who_comes_between_a_loss_and_its_unlink_is_owed_nothing_of_it(disk: Disk) -> None:
    driver = engine_with(disk, size_cap_policy="drop_oldest")
    fill(driver, 2)
    retention = driver.engine.retention
    retention.let_go(choose(retention.candidates(), EvictionClass.UNPROCESSED, NO_LIMIT, 1))
    driver.engine.registrations.register("between", "earliest")
    driver.settle()
    assert stored(driver) == [1]
    assert len(driver.claim_numbers("between")) == 4


# --- room ----------------------------------------------------------------------------------------------------------------


def test_without_leave_no_log_is_made_and_a_refused_push_uses_no_number(disk: Disk, tmp_path: Path) -> None:
    driver = engine_with(disk)
    allowed = [False]
    driver.engine.storage.share_room(lambda size_bytes: allowed[0])
    memory, push, schemas = driver.layout([{0: numbered_batch(0)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    assert driver.engine.storage.is_throttled
    assert 0 < driver.engine.storage.wanted_bytes <= driver.engine.storage.step_bytes
    assert isinstance(driver.engine.intake.refusal(), Throttled)
    with pytest.raises((Throttled, ProtocolError)):
        driver.engine.intake.stage(memory, push, schemas)
    assert driver.engine.figures().sequence_written == 0
    assert measure([str(tmp_path / "default/core_0/wal")]) <= 4 * 4096
    allowed[0] = True
    driver.settle()
    assert not driver.engine.storage.is_throttled
    assert driver.engine.intake.can_stage(len(memory))
    (run,) = driver.engine.intake.stage(memory, push, schemas)
    assert run.sequence == 0


def test_a_spare_log_is_given_up_while_nothing_is_pushed_and_made_again_when_wanted(disk: Disk) -> None:
    driver = engine_with(disk)
    driver.push_numbered(0)
    driver.settle()
    driver.seal()
    before = driver.engine.storage.disk_bytes
    driver.engine.storage.releases_spare = True
    driver.settle()
    assert before - driver.engine.storage.disk_bytes >= 64 * KIB
    driver.push_numbered(1)
    driver.settle()
    assert driver.engine.figures().bundles_in == 2


def test_a_spare_log_that_nobody_takes_who_asked_for_it_is_given_up_too(disk: Disk) -> None:
    driver = engine_with(disk)
    memory, _, _ = driver.layout([{0: numbered_batch(0)}])
    assert not driver.engine.intake.can_stage(len(memory))
    driver.settle()
    before = driver.engine.storage.disk_bytes
    driver.engine.storage.releases_spare = True
    driver.settle()
    assert driver.engine.storage.disk_bytes == before, "whoever asked for it has a moment to come"
    driver.clock.advance(SECOND_NS)
    driver.settle()
    assert before - driver.engine.storage.disk_bytes >= 64 * KIB
    driver.push_numbered(0)
    driver.settle()
    assert driver.engine.figures().bundles_in == 1


# --- the account ---------------------------------------------------------------------------------------------------------


def test_the_account_is_what_du_says(disk: Disk, tmp_path: Path) -> None:
    driver = engine_with(disk, steady_state_headroom_bytes=MIB)
    for subscriber in ("a", "b", "c"):
        driver.engine.registrations.register(subscriber, "earliest")
    fill(driver, 6, bundles=50)
    acknowledge_all(driver, "a")
    drop_segment(driver.engine, 2, "dropped")
    driver.push_numbered(0, 3)
    driver.run_for(60 * SECOND_NS)
    du_bytes = measure([str(tmp_path / "default" / "core_0")])
    use = driver.engine.disk_account.disk_use()
    assert use.total_bytes == pytest.approx(du_bytes, rel=0.01)
    assert use.small.gaps_bytes > 0
    assert use.small.ballast_bytes == MIB
    assert IN_LOGS not in stored(driver)
    driver.drain_and_close()
    driver.reopen()
    driver.run_for(60 * SECOND_NS)
    assert driver.engine.storage.disk_bytes == pytest.approx(measure([str(tmp_path / "default" / "core_0")]), rel=0.01)


def test_a_subscriber_that_ends_while_its_notices_are_being_written_does_not_come_back(disk: Disk) -> None:
    driver = engine_with(disk, size_cap_policy="drop_oldest")
    driver.engine.registrations.register("s", "earliest")
    fill(driver, 2)
    retention = driver.engine.retention
    retention.let_go(choose(retention.candidates(), EvictionClass.UNPROCESSED, NO_LIMIT, 1))
    job = driver.engine.next_background()
    assert isinstance(job, ProgressJob)
    driver.engine.registrations.unregister("s")
    job.run()
    driver.engine.finish(job)
    driver.settle()
    driver.engine.close()
    assert driver.reopen().registrations.names() == []
