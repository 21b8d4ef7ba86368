"""A mapped log gives out the bundles whose places came with a delivery, and believes no place that cannot be."""

from __future__ import annotations

import os

import pytest

from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.segments import MappedLog
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import ChecksumMismatch, FormatError, ProtocolError
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.open_logs import log_and_places

SLOTS = TopicSlots(TopicInfo("default", {}, "wal", 0))


def mapped_log(bundles: int) -> tuple[MappedLog, list[bytes], int]:
    """A log of so many numbered bundles, the place of each, and the log's size."""
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS))
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, bundles)
    driver.commit()
    content, places = log_and_places(driver.engine, disk, driver.directory, 0)
    content = content[: places[bundles - 1].offset + places[bundles - 1].size_bytes]
    descriptor = os.memfd_create("log", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    log = MappedLog(descriptor, len(content), 0, SLOTS, 0)
    return log, [PLACE.pack(*places[index]) for index in range(bundles)], len(content)


def test_a_delivery_has_its_own_bundles_of_a_log() -> None:
    log, places, _ = mapped_log(4)
    first, second = log.part([0, 1], places[0] + places[1]), log.part([3], places[3])
    assert second.bundle(3)[0].equals(numbered_batch(3))
    assert first.bundle(1)[0].equals(numbered_batch(1))
    with pytest.raises(IndexError):
        first.bundle(3)


def test_a_place_behind_the_end_of_the_file_is_damage_of_its_bundle_alone() -> None:
    """Regression: a log that somebody had cut off ended the connection of its consumer, at each of its tries."""
    log, places, size_bytes = mapped_log(2)
    offset, entry_bytes, items = PLACE.unpack(places[1])
    log.part([1], places[1])
    for wrong in (
        (offset + 1, entry_bytes),
        (offset, entry_bytes + 1),
        (size_bytes, 64),
        (1 << 62, 64),
        ((1 << 64) - 1, 1),
    ):
        part = log.part([0, 1], places[0] + PLACE.pack(*wrong, items))
        part.check(0)
        assert part.bundle(0)[0].equals(numbered_batch(0))
        with pytest.raises(
            ChecksumMismatch, match=f"bundle 1 of the open log is damaged: its place ends at byte .* of {size_bytes}"
        ):
            part.check(1)
        with pytest.raises(FormatError, match="bundle 1 ends behind its place, or behind its file"):
            part.bundle(1)


def test_nothing_is_left_of_an_empty_log() -> None:
    _, places, _ = mapped_log(1)
    part = MappedLog(os.memfd_create("log", os.MFD_CLOEXEC), 100, 0, SLOTS, 0).part([0], places[0])
    with pytest.raises(ChecksumMismatch, match="bundle 0 of the open log is damaged"):
        part.check(0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_each_bundle_has_one_place(count: int) -> None:
    log, places, _ = mapped_log(3)
    for given in (b"".join(places[:count]), b"".join(places[:2])[:-1]):
        with pytest.raises(ProtocolError, match=r"2 bundles of segment 0 came with \d+ bytes of places"):
            log.part([0, 1], given)
