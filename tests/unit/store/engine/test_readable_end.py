"""Bundles are shown to subscribers once they are durable, in the order of their ids, before their segment is sealed."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.errors import NotStored
from quiver_actors.store.engine.events import GapFound, Shown
from quiver_actors.store.retention.choice import IN_LOGS, choose
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings

OPEN_LONG = {"segment_max_open_duration_ns": 3600 * SECOND_NS}


def driver_on(disk: SimDisk | None = None, **settings: object) -> EngineDriver:
    return EngineDriver(disk or SimDisk(), topic_settings(**{**OPEN_LONG, **settings}))


def shown(driver: EngineDriver) -> list[tuple[int, int]]:
    return [(event.segment_seq, event.bundle_count) for event in driver.events if isinstance(event, Shown)]


def acknowledge(driver: EngineDriver, *indexes: int, segment_seq: int = 0) -> None:
    assert driver.resolve("s", "owner", segment_seq, "ack", indexes) == []


def test_a_bundle_is_shown_with_its_sync_and_not_before() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 3)
    assert driver.claim_numbers("s") == []
    driver.commit()
    assert shown(driver) == [(0, 3)]
    assert driver.claim_numbers("s") == [0, 1, 2]
    driver.push_numbered(3)
    assert driver.claim_numbers("s") == []
    driver.commit()
    assert driver.claim_numbers("s") == [3]
    assert driver.engine.segments() == [], "nothing is sealed"


def test_a_log_that_one_commit_publishes_and_retires_is_shown_before_its_seal() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 3)
    driver.engine.seal_now()
    driver.push_numbered(3)
    driver.commit()
    assert shown(driver) == [(0, 3), (1, 1)]
    assert driver.engine.readable_end.covers(driver.engine.group_commit.acknowledges[0])
    assert [info.bundle_count for info in driver.engine.readable_end.infos()] == [3, 1]
    assert driver.engine.segments() == [], "nothing is sealed"
    assert driver.claim_numbers("s") == [0, 1, 2, 3]
    assert [info.bundle_count for info in driver.engine.segments()] == [3]


def test_a_retired_log_can_be_read_before_its_seal_where_nobody_subscribes() -> None:
    driver = driver_on()
    driver.push_numbered(0, 3)
    driver.commit()
    driver.engine.seal_now()
    driver.commit()
    assert [info.bundle_count for info in driver.engine.readable_end.infos()] == [3]
    assert driver.engine.readable_end.covers(driver.engine.group_commit.acknowledges[0])
    driver.settle()
    assert driver.engine.readable_end.infos() == []
    assert [info.bundle_count for info in driver.engine.segments()] == [3]


def test_with_a_flush_interval_a_bundle_is_shown_at_its_sync() -> None:
    driver = driver_on(wal_flush_interval_ns=25 * MILLISECOND_NS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.settle()
    first = driver.claim_numbers("s")  # the first commit of a log syncs, because it gives the log its name
    driver.push_numbered(1)
    driver.settle()
    assert first + driver.claim_numbers("s") == [0]
    driver.run_for(30 * MILLISECOND_NS)
    assert driver.claim_numbers("s") == [1]


def test_a_topic_without_a_log_to_recover_shows_at_the_seal() -> None:
    driver = driver_on(durability="segment_only")
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.settle()
    driver.push_numbered(1)
    driver.settle()
    before = driver.claim_numbers("s")
    assert 1 not in before
    driver.seal()
    assert before + driver.claim_numbers("s") == [0, 1]


def test_who_comes_later_gets_what_is_shown() -> None:
    driver = driver_on()
    driver.push_numbered(0, 2)
    driver.commit()
    driver.engine.registrations.register("early", "earliest")
    driver.engine.registrations.register("late", "latest")
    assert driver.claim_numbers("early") == [0, 1]
    driver.push_numbered(2)
    driver.commit()
    assert driver.claim_numbers("late") == [2]


def test_latest_begins_behind_what_is_not_durable_yet() -> None:
    disk = SimDisk()
    driver = driver_on(disk)
    driver.push_numbered(0)
    driver.commit()
    driver.push_numbered(1)
    driver.engine.registrations.register("s", "latest")
    driver.commit()
    driver.push_numbered(2)
    driver.commit()
    assert driver.claim_numbers("s") == [2]
    driver.flush_progress()
    driver = driver_on(disk.crash(CrashMode.DROP))
    driver.settle()
    assert driver.claim_numbers("s") == [2]


def test_an_open_segment_is_never_complete() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 2)
    driver.commit()
    driver.claim_numbers("s")
    acknowledge(driver, 0, 1)
    driver.flush_progress()
    driver.push_numbered(2)
    driver.commit()
    assert driver.claim_numbers("s") == [2]
    acknowledge(driver, 2)
    driver.flush_progress()
    driver.seal()
    driver.run_for(SECOND_NS)
    assert driver.engine.segments() == [], "everybody is done with it: its file goes"
    assert driver.engine.owed.pending("s").drained


def test_progress_names_open_bundles_and_survives_a_power_loss() -> None:
    disk = SimDisk()
    driver = driver_on(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 4)
    driver.commit()
    driver.claim_numbers("s")
    acknowledge(driver, 0, 2)
    driver.flush_progress()
    driver = driver_on(disk.crash(CrashMode.DROP))
    driver.settle()
    assert driver.claim_numbers("s") == [1, 3]


def test_claims_and_delivery_counts_outlive_the_seal() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 2)
    driver.commit()
    (grant,) = driver.claim("s", "owner", 10)
    driver.seal()
    assert driver.engine.claims.claimable_count("s") == 0
    assert driver.engine.claims.resolve("s", "owner", 0, grant.token, "ack", [0], 0) == []
    driver.engine.claims.release("owner")
    (again,) = driver.claim("s", "other", 10)
    assert (list(again.indexes), again.counts) == ([1], b"\x02\x00")


def test_an_owed_bundle_is_counted_once_while_it_is_shown() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 2)
    driver.commit()
    driver.push_numbered(2)
    counts = driver.engine.owed.pending("s")
    assert (counts.pending, counts.unsealed) == (2, 1)
    assert driver.engine.owed.figures_of("s").lag_bundles == 3
    driver.commit()
    counts = driver.engine.owed.pending("s")
    assert (counts.pending, counts.unsealed) == (3, 0)
    driver.seal()
    assert driver.engine.owed.pending("s").pending == 3


def test_windows_in_bytes_know_the_sizes_of_open_bundles() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    for rows in (10, 1000, 10):
        driver.push({0: numbered_batch(rows, rows)})
    driver.commit()
    (grant,) = driver.claim("s", "owner", 10, size_limit_bytes=4096)
    assert list(grant.indexes) == [0], "the second one is larger than what is left"
    held_bytes = driver.engine.claims.held("s", "owner")[1]
    driver.seal()
    assert driver.engine.claims.held("s", "owner")[1] == held_bytes
    assert driver.resolve("s", "owner", 0, "ack", [0]) == []
    assert driver.engine.claims.held("s", "owner") == (0, 0)


def test_only_logs_have_places() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.commit()
    assert len(driver.engine.readable_end.places(0, [0])) == 20
    driver.seal()
    assert driver.engine.readable_end.places(0, [0]) == b""
    with pytest.raises(NotStored, match="is not open"):
        driver.engine.readable_end.open(0)


def flip(disk: SimDisk, path: str, offset: int) -> None:
    disk.flip_bit(path, offset, 3)


def test_a_bundle_that_rots_in_the_open_log_is_announced_and_stays_so() -> None:
    disk = SimDisk()
    driver = driver_on(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 3)
    driver.commit()
    reader = driver.read_claimed(0)
    (grant,) = driver.claim("s", "owner", 10)
    place = driver.engine.readable_end.places(0, [1])
    flip(disk, "default/core_0/wal/quiver.wal", int.from_bytes(place[:8], "little") + 200)
    driver.engine.cannot_read("s", "owner", 0, grant.token, [1], SECOND_NS)
    driver.settle()
    assert [
        (event.segment_seq, event.bundle_index, event.bundle_count)
        for event in driver.events
        if isinstance(event, GapFound)
    ] == [(0, 1, 1)]
    driver.flush_progress()
    (notice,) = driver.take_gaps("s")
    assert (notice.segment_seq, notice.bundle_index_first, notice.bundle_count, notice.reason) == (0, 1, 1, "damaged")
    driver.engine.registrations.register("later", "earliest")
    assert reader.bundle(0)[0].equals(pa.record_batch(numbered_batch(0)))
    driver.seal()
    driver.run_for(2 * SECOND_NS)
    driver.told.clear()
    assert driver.claim_numbers("later") == [0, 2]
    assert [notice.bundle_index_first for notice in driver.told] == [1]


def test_a_whole_bundle_that_somebody_reports_is_condemned_for_nobody() -> None:
    driver = driver_on()
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.commit()
    (grant,) = driver.claim("s", "owner", 10)
    driver.engine.cannot_read("s", "owner", 0, grant.token, [0], SECOND_NS)
    driver.run_for(2 * SECOND_NS)
    assert not [event for event in driver.events if isinstance(event, GapFound)]
    assert driver.claim_numbers("s") == [0]


def test_bundles_over_age_go_although_their_log_would_stay_open() -> None:
    driver = driver_on(retention=RetentionSettings(max_age_ns=60 * SECOND_NS))
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.run_for(50 * SECOND_NS)
    assert driver.engine.claims.claimable_count("s") == 1
    driver.run_for(75 * SECOND_NS)
    assert driver.engine.claims.claimable_count("s") == 0
    assert driver.claim_numbers("s") == []
    assert [(notice.bundle_count, notice.reason) for notice in driver.told] == [(1, "expired")]


def test_drop_oldest_reaches_bundles_of_a_log_that_would_stay_open() -> None:
    driver = driver_on(retention=RetentionSettings(size_cap_policy="drop_oldest"))
    retention = driver.engine.retention
    for subscriber in ("s", "other"):
        driver.engine.registrations.register(subscriber, "earliest")
    driver.push_numbered(0, 4)
    driver.settle()
    driver.claim("s", "owner", 2)
    acknowledge(driver, 0, 1)

    def make_room(last_class: EvictionClass) -> list[int]:
        chosen = choose(retention.candidates(), last_class, NO_LIMIT, 1)
        retention.let_go(chosen)
        driver.flush_progress()
        return [each.segment_seq for each in chosen]

    assert make_room(EvictionClass.UNPROCESSED) == [], "nothing is sealed"
    assert make_room(EvictionClass.OPEN) == [IN_LOGS]
    assert [info.segment_seq for info in driver.engine.segments()] == [0], (
        "what goes is sealed first, so that it can be counted"
    )
    assert make_room(EvictionClass.UNPROCESSED) == [0]
    assert driver.engine.segments() == []
    for subscriber, lost in (("s", (0, 2, 2)), ("other", (0, 0, 4))):
        driver.told.clear()
        assert driver.claim_numbers(subscriber) == []
        (notice,) = driver.told
        assert (notice.segment_seq, notice.bundle_index_first, notice.bundle_count) == lost
        assert notice.reason == "evicted"
    driver.push_numbered(4)
    driver.settle()
    assert driver.claim_numbers("s") == [4]


def test_bundles_that_were_shown_and_that_the_log_lost_are_told() -> None:
    """The disk loses the end of a log that it had synced: progress proves that there was more."""
    disk = SimDisk()
    driver = driver_on(disk)
    driver.engine.registrations.register("s", "earliest")
    driver.engine.registrations.register("other", "earliest")
    driver.push_numbered(0, 5)
    driver.commit()
    driver.claim_numbers("s")
    acknowledge(driver, 0, 3)
    driver.flush_progress()
    ((offset, _, _),) = PLACE.iter_unpack(driver.engine.readable_end.places(0, [2]))
    left = disk.crash(CrashMode.DROP)
    file = left.open_write("default/core_0/wal/quiver.wal")
    file.write([bytes(file.size() - offset)], offset)
    file.fdatasync()
    file.close()
    driver = driver_on(left)
    driver.run_for(SECOND_NS)
    assert driver.claim_numbers("s") == [1]
    assert [(notice.bundle_index_first, notice.bundle_count) for notice in driver.told] == [(2, 1), (4, 1)]
    driver.told.clear()
    assert driver.claim_numbers("other") == [0, 1]
    assert [(notice.bundle_index_first, notice.bundle_count) for notice in driver.told] == [(2, 3)]
    driver.flush_progress()
    driver = driver_on(left.crash(CrashMode.DROP))
    driver.run_for(SECOND_NS)
    driver.told.clear()
    driver.claim_numbers("s")
    assert [(notice.bundle_index_first, notice.bundle_count) for notice in driver.told] == [(2, 1), (4, 1)], "once each"
