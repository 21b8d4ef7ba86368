"""The newest segment of an engine is missing: what a worker lists says so, before anything is pushed behind it."""

from __future__ import annotations

from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.ranges import first_missing
from quiver_actors.client.segments import ReadableSegments
from quiver_actors.node.worker.segment_answers import segment_list
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.stage_driver import StageDriver

SETTINGS = topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS)
PATHS = EnginePaths("default/core_0")
SEGMENTS = 3


def stored() -> StageDriver:
    driver = StageDriver(SimDisk(shows_descriptors=True), SETTINGS)
    for number in range(SEGMENTS):
        driver.push_numbered(3 * number, 3)
        driver.seal()
    return driver


def listed(driver: EngineDriver) -> ReadableSegments:
    """What a client makes of the worker's list."""
    answer = segment_list(driver.engine, 1, 0)
    return ReadableSegments(
        answer.segments, list(answer.open_segments), answer.is_complete, unsealed_from=answer.unsealed_from
    )


def missing(driver: EngineDriver) -> int | None:
    return first_missing(listed(driver).bounded, None)


def lose(driver: EngineDriver, segment_seq: int) -> None:
    driver.disk.unlink(PATHS.segment(segment_seq))
    driver.engine.check_segment(segment_seq)
    driver.settle()


def test_nothing_is_missing_of_what_is_there_whatever_became_of_the_numbers() -> None:
    driver = stored()
    assert missing(driver) is None
    newest = driver.engine.segments()[-1]
    assert driver.engine.readable_end.unsealed_from() == (SEGMENTS, newest.position_end)
    driver.restart()
    driver.settle()
    segment_seq, position = driver.engine.readable_end.unsealed_from()
    assert segment_seq > SEGMENTS, "a kill makes them jump"
    assert position == newest.position_end
    assert missing(driver) is None
    driver.push_numbered(9)
    assert missing(driver) is None, "not synced, so not shown"
    driver.commit()
    assert [info.bundle_count for info in listed(driver).unsealed] == [1]
    assert missing(driver) is None


def test_a_publish_under_way_is_not_missing() -> None:
    driver = stored()
    number = driver.prepared(10, 11)
    driver.engine.stages.publish("t", driver.engine.incarnation, [number], drop_others=False)
    assert driver.engine.readable_end.unsealed_from()[0] == SEGMENTS
    assert missing(driver) is None
    driver.push_numbered(12)
    driver.settle()
    assert len(driver.engine.segments()) > SEGMENTS
    assert missing(driver) is None


def test_the_newest_segment_is_missed_before_a_push_follows_and_after_it() -> None:
    driver = stored()
    lose(driver, SEGMENTS - 1)
    assert [info.segment_seq for info in driver.engine.segments()] == [0, 1]
    assert missing(driver) == SEGMENTS - 1
    driver.restart()
    driver.settle()
    assert missing(driver) == SEGMENTS - 1, "a start knows it too"
    driver.push_numbered(9)
    driver.commit()
    assert missing(driver) == SEGMENTS - 1


def test_where_all_are_gone_nothing_says_what_a_range_without_a_start_lacks() -> None:
    driver = stored()
    for segment_seq in range(SEGMENTS):
        lose(driver, segment_seq)
    assert driver.engine.segments() == []
    assert missing(driver) is None
