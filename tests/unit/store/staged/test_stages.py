"""Staged bundles of one engine: invisible until published, then all at once, once, and in order."""

from __future__ import annotations

import errno

import msgspec
import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.base.units import KIB, SECOND_NS
from quiver_actors.errors import (
    Draining,
    TransactionAborted,
    TransactionLost,
    UnknownTransaction,
    UsageError,
)
from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.events import Resumed, Sealed, StageDropped, StagesPublished
from quiver_actors.store.staged.records import (
    DROPPED_MAX,
    PUBLISHED_MAX,
    DroppedRecord,
    JournalRecord,
    PublishedRecord,
    PublishingRecord,
    decode_journal,
)
from quiver_actors.store.staged.states import STAGE_TRANSITIONS, StageState
from quiver_actors.store.wal.uniform import UNIFORM_ENTRIES_MIN
from tests.disks.faulty import FaultyDisk
from tests.disks.monitor import OrderMonitor
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import topic_settings
from tests.support.stage_driver import HOUR_NS, OWNER, StageDriver, order

STAGED = "default/core_0/staged"
JOURNAL_PATH = "default/core_0/quiver.transactions"
SMALL = topic_settings(segment_target_size_bytes=64 * KIB, retention=RetentionSettings(min_free_bytes=0))


def driver_on(disk: SimDisk) -> StageDriver:
    return StageDriver(OrderMonitor(disk), SMALL)


@pytest.fixture
def driver() -> StageDriver:
    return driver_on(SimDisk())


def test_a_published_stage_comes_behind_what_was_pushed_before(driver: StageDriver) -> None:
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 2)
    number = driver.prepared(10, 11)
    driver.push_numbered(2)
    driver.seal()
    assert driver.stored() == [0, 1, 2], "a prepared stage is invisible"
    driver.push_numbered(3)
    driver.publish(number)
    driver.push_numbered(4)
    driver.seal()
    assert driver.stored() == [0, 1, 2, 3, 10, 11, 4]
    assert driver.claim_numbers("s") == [0, 1, 2, 3, 10, 11, 4]
    info = driver.engine.segments()[2]
    reader = driver.read(info.segment_seq)
    assert [reader.item_count(index) for index in range(2)] == [10, 11]
    assert driver.disk.list_directory(STAGED) == []


def test_sequences_of_published_bundles_follow_each_other(driver: StageDriver) -> None:
    driver.push_numbered(0, 3)
    driver.publish(driver.prepared(10, 11))
    last = driver.push_numbered(3)[0].sequence
    driver.seal()
    sequences = [
        driver.read(info.segment_seq).sequence(index)
        for info in driver.engine.segments()
        for index in range(info.bundle_count)
    ]
    assert sequences == list(range(last - 5, last + 1))


def test_several_stages_become_visible_in_one_step_in_the_order_of_their_partitions(driver: StageDriver) -> None:
    second = driver.prepared(20, 21, wanted=order(partition=2))
    first = driver.prepared(10, wanted=order(partition=1))
    driver.events.clear()
    ticket = driver.engine.stages.publish("t", driver.engine.incarnation, [second, first])
    seen = []
    while (job := driver.engine.next_background()) is not None:
        seen.append(len(driver.engine.segments()))
        job.run()
        driver.events += driver.engine.finish(job)
    assert set(seen) <= {0, 2}, "not even the list of segments shows half of it"
    assert driver.stored() == [10, 20, 21]
    told = [event for event in driver.events if not isinstance(event, Resumed)]
    assert [type(event) for event in told] == [Sealed, Sealed, StagesPublished]
    assert told[-1] == StagesPublished(ticket)


def test_a_large_stage_becomes_several_segments(driver: StageDriver) -> None:
    number = driver.begin()
    driver.push_staged(number, *range(10), rows=1000)
    stage = driver.prepare(number)
    assert len(stage.parts) > 2
    assert stage.disk_bytes == stage.size_bytes, "what was allocated ahead was given back"
    driver.publish(number)
    assert driver.stored() == list(range(10))
    assert all(info.size_bytes < 128 * KIB for info in driver.engine.segments())


def test_a_push_larger_than_a_segment_has_its_own_part(driver: StageDriver) -> None:
    number = driver.begin()
    driver.push_staged(number, 1)
    driver.push_staged(number, 2, rows=100_000)
    driver.push_staged(number, 3)
    driver.prepare(number)
    driver.publish(number)
    assert driver.stored() == [1, 2, 3]


def test_publishing_again_changes_nothing(driver: StageDriver) -> None:
    number = driver.prepared(1)
    driver.publish(number)
    assert driver.publish(number) == 0
    driver.restart()
    assert driver.publish(number) == 0
    assert driver.stored() == [1]


def test_a_publish_under_way_is_joined(driver: StageDriver) -> None:
    number = driver.prepared(1)
    stages, incarnation = driver.engine.stages, driver.engine.incarnation
    assert stages.publish("t", incarnation, [number]) == stages.publish("t", incarnation, [number])
    driver.settle()
    assert driver.stored() == [1]


def test_prepared_stages_survive_a_restart_and_a_clean_shutdown(driver: StageDriver) -> None:
    first = driver.prepared(1, 2)
    driver.restart()
    second = driver.prepared(3)
    assert second > first
    driver.drain_and_close()
    driver.reopen()
    assert [(stage.number, stage.bundle_count, stage.row_count) for stage in driver.engine.stages] == [
        (first, 2, 10),
        (second, 1, 5),
    ]
    driver.publish(first, second)
    assert driver.stored() == [1, 2, 3]
    reader = driver.read(driver.engine.segments()[0].segment_seq)
    assert [reader.item_count(index) for index in range(2)] == [1, 2]


def test_a_push_of_many_equal_bundles_survives_a_restart_like_any_other(driver: StageDriver) -> None:
    """Many bundles of one schema are checked and completed at once: their entries are staged ones too."""
    number = driver.begin()
    driver.push_staged_together(number, *range(2 * UNIFORM_ENTRIES_MIN))
    driver.prepare(number)
    driver.restart()
    assert [stage.number for stage in driver.engine.stages.table.prepared] == [number]
    driver.publish(number)
    assert driver.stored() == list(range(2 * UNIFORM_ENTRIES_MIN))


@pytest.mark.parametrize("restarts", [False, True])
def test_room_for_a_push_that_never_came_is_no_part_of_the_stage(driver: StageDriver, restarts: bool) -> None:
    number = driver.begin()
    driver.push_staged(number, 10, rows=1500)
    stage = driver.engine.stages.get(number, OWNER)
    assert not driver.engine.stages.can_stage(stage, 50 * KIB)
    driver.settle()
    assert [part.is_empty for part in stage.parts] == [False, True]
    driver.prepare(number)
    assert len(driver.disk.list_directory(STAGED)) == 2, "the record and one part"
    if restarts:
        driver.restart()
    driver.publish(number)
    assert driver.stored() == [10]
    for info in driver.engine.segments():
        driver.read(info.segment_seq).verify_checksum()


def test_what_was_not_prepared_is_gone_after_a_restart(driver: StageDriver) -> None:
    number = driver.begin()
    driver.push_staged(number, 1)
    assert driver.disk.list_directory(STAGED) != []
    driver.restart()
    assert driver.disk.list_directory(STAGED) == []
    assert list(driver.engine.stages) == []
    driver.seal()
    assert driver.stored() == []


def test_an_open_stage_ends_with_its_connection(driver: StageDriver) -> None:
    mine, other = driver.begin(), driver.begin(owner="another")
    driver.push_staged(mine, 1)
    with pytest.raises(UnknownTransaction):
        driver.engine.stages.get(mine, "another")
    driver.engine.stages.release(OWNER)
    driver.settle()
    assert StageDropped(mine, "its connection was lost") in driver.events
    assert [stage.number for stage in driver.engine.stages] == [other]
    assert driver.disk.list_directory(STAGED) == []


def test_a_connection_that_is_lost_while_its_stage_is_prepared_leaves_the_token(driver: StageDriver) -> None:
    number = driver.begin()
    driver.push_staged(number, 1)
    driver.engine.stages.prepare(driver.engine.stages.get(number, OWNER))
    driver.engine.stages.release(OWNER)
    driver.settle()
    assert [stage.state for stage in driver.engine.stages] == [StageState.PREPARED]


def test_a_dropped_stage_is_remembered(driver: StageDriver) -> None:
    number = driver.prepared(1)
    driver.drop(number)
    driver.drop()
    for _ in range(2):
        with pytest.raises(TransactionLost, match="was dropped: aborted"):
            driver.publish(number)
        driver.restart()
    assert driver.stored() == []
    assert driver.disk.list_directory(STAGED) == []


def test_only_so_many_drops_are_remembered() -> None:
    records = [DroppedRecord(number, "t", 0, "", 0) for number in range(1, DROPPED_MAX + 3)]
    journal = JournalRecord(next_number=DROPPED_MAX + 10, carried=[2, 3, 4]).with_dropped(records)
    assert (len(journal.dropped), journal.dropped_floor, journal.carried) == (DROPPED_MAX, 3, [3, 4])
    assert [journal.was_published(number) for number in (2, 3, DROPPED_MAX + 5)] == [None, False, True]


def test_stages_that_a_restore_carried_stay_known_below_the_floor() -> None:
    journal = JournalRecord(100, dropped_floor=100, carried=[7])
    assert [journal.was_published(number) for number in (6, 7, 8, 100)] == [None, True, None, None]


def test_where_stages_were_published_is_remembered_over_restarts_and_below_the_floor(driver: StageDriver) -> None:
    first, second = driver.prepared(1), driver.prepared(2)
    driver.publish(first)
    driver.publish(second)
    driver.restart()
    driver.publish(driver.prepared(3))
    journal = decode_journal(read_whole(driver.disk, JOURNAL_PATH, 1 << 20))
    found = {each.number: each for each in journal.published}
    segments = [info.segment_seq for info in driver.engine.segments()]
    assert [found[number].first_segment_seq for number in (first, second)] == segments[:2]
    restored = msgspec.structs.replace(journal, dropped_floor=journal.next_number)
    assert [restored.was_published(number) for number in (first, second, 99)] == [True, True, None]


def test_only_so_many_publishes_are_remembered_and_none_that_was_dropped() -> None:
    places = [PublishingRecord(number, 0, 1000 - number, 0, 0) for number in range(1, PUBLISHED_MAX + 3)]
    journal = JournalRecord(PUBLISHED_MAX + 10).with_published(places)
    assert journal.published[-1] == PublishedRecord(1, 999, 999)
    assert len(journal.published) == PUBLISHED_MAX
    journal = journal.with_dropped([DroppedRecord(1, "t", 0, "damaged", 0)])
    assert journal.was_published(1) is False
    assert journal.published[-1] == PublishedRecord(2, 998, 998)


def test_the_losers_of_a_decided_transaction_go(driver: StageDriver) -> None:
    winner, loser = driver.prepared(1, wanted=order(attempt=1)), driver.prepared(1, wanted=order(attempt=0))
    late = driver.begin(order(attempt=2))
    other = driver.prepared(5, wanted=order(txn_id="u"))
    driver.publish(winner, drop_others=True)
    assert driver.stored() == [1]
    assert [stage.number for stage in driver.engine.stages] == [other]
    with pytest.raises((UnknownTransaction, TransactionAborted)):
        driver.engine.stages.get(late, OWNER)
    with pytest.raises(TransactionLost, match="decided without it"):
        driver.publish(loser)


def test_wrong_publishes_change_nothing(driver: StageDriver) -> None:
    number, unprepared = driver.prepared(1), driver.begin()
    stages = driver.engine.stages
    with pytest.raises(UnknownTransaction, match="never a stage 99"):
        stages.publish("t", driver.engine.incarnation, [number, 99])
    with pytest.raises(UnknownTransaction, match="is not prepared"):
        stages.publish("t", driver.engine.incarnation, [number, unprepared])
    with pytest.raises(UnknownTransaction, match="is of transaction 't', not 'u'"):
        stages.publish("u", driver.engine.incarnation, [number])
    with pytest.raises(TransactionLost, match="the data directory was replaced"):
        stages.publish("t", b"x" * 16, [number])
    driver.settle()
    assert driver.stored() == []
    driver.publish(number)
    assert driver.stored() == [1]


def test_a_draining_engine_keeps_prepared_stages_only(driver: StageDriver) -> None:
    number, unprepared = driver.prepared(1), driver.begin()
    driver.push_staged(unprepared, 2)
    driver.engine.stages.publish("t", driver.engine.incarnation, [number])
    driver.engine.drain()
    with pytest.raises(Draining):
        driver.begin()
    driver.settle()
    assert driver.engine.is_drained
    assert driver.stored() == [1], "a publish that was asked for is finished"
    assert driver.disk.list_directory(STAGED) == []
    with pytest.raises(UnknownTransaction):
        driver.engine.stages.get(unprepared, OWNER)


def test_expired_stages_are_asked_about_once_a_minute(driver: StageDriver) -> None:
    number = driver.prepared(1, wanted=order(ttl_ns=10 * SECOND_NS))
    driver.prepared(2, wanted=order(ttl_ns=HOUR_NS))
    assert driver.engine.stages.take_expired() == []
    driver.clock.advance(11 * SECOND_NS)
    assert [stage.number for stage in driver.engine.stages.take_expired()] == [number]
    assert driver.engine.stages.take_expired() == []
    driver.clock.advance(61 * SECOND_NS)
    assert [stage.number for stage in driver.engine.stages.take_expired()] == [number]


def test_expired_stages_are_asked_about_again_also_when_the_clock_was_set_back(driver: StageDriver) -> None:
    """Nobody asked until the clock had come to where it was before: what was decided stayed unpublished as long."""
    number = driver.prepared(1, wanted=order(ttl_ns=10 * SECOND_NS))
    driver.clock.wrong_by_ns = HOUR_NS
    assert [stage.number for stage in driver.engine.stages.take_expired()] == [number]
    driver.clock.wrong_by_ns = 0
    driver.clock.advance(61 * SECOND_NS)
    assert [stage.number for stage in driver.engine.stages.take_expired()] == [number]


def test_a_failed_publish_is_finished_by_recovery() -> None:
    disk = FaultyDisk(SimDisk())
    driver = StageDriver(disk, SMALL)
    numbers = [driver.prepared(1), driver.prepared(2)]
    disk.fail("fsync", 2, errno.EIO, path_part=".stage")
    driver.engine.stages.publish("t", driver.engine.incarnation, numbers)
    driver.settle()
    assert driver.engine.state is EngineState.FAILED
    assert driver.engine.segments() == [], "half of it is never shown"
    disk.heal()
    driver.restart()
    assert driver.stored() == [1, 2]
    assert driver.publish(*numbers) == 0


def test_more_parts_than_numbers_are_reserved(driver: StageDriver) -> None:
    numbers = [driver.prepared(n, wanted=order(partition=n)) for n in range(3)]
    driver.engine._parts.numbers._reserved = type(driver.engine._parts.numbers._reserved)(
        driver.engine.incarnation, 0, driver.engine._parts.numbers.next_segment_seq + 2, 1 << 40, False
    )
    driver.publish(*numbers)
    assert driver.stored() == [0, 1, 2]


def test_the_engine_takes_one_publish_after_the_other(driver: StageDriver) -> None:
    numbers = [driver.prepared(n, wanted=order(txn_id=f"t{n}")) for n in range(4)]
    for n, number in enumerate(numbers):
        driver.engine.stages.publish(f"t{n}", driver.engine.incarnation, [number])
        driver.push_numbered(100 + n)
    driver.seal()
    assert driver.stored() == [0, 100, 1, 101, 2, 102, 3, 103]


def test_a_stage_takes_no_more_once_it_is_prepared(driver: StageDriver) -> None:
    number = driver.prepared(1)
    with pytest.raises(UsageError, match="takes no more bundles"):
        driver.push_staged(number, 2)


def test_every_state_has_its_row() -> None:
    assert set(STAGE_TRANSITIONS) == set(StageState)
    reachable = {target for targets in STAGE_TRANSITIONS.values() for target in targets}
    assert reachable == set(StageState) - {StageState.OPEN}
