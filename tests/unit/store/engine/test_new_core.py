"""A core that the node did not have before: what is pushed to it is owed to everybody who is known on the topic's other cores."""

from __future__ import annotations

from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings

SETTINGS = topic_settings(segment_compaction="off")


def core(disk: SimDisk, number: int, topic: str = "default") -> EngineDriver:
    return EngineDriver(disk, SETTINGS, f"{topic}/core_{number}")


def with_subscribers(*subscribers: str) -> SimDisk:
    """A node of one core."""
    disk = SimDisk()
    driver = core(disk, 0)
    for subscriber in subscribers:
        driver.engine.registrations.register(subscriber, "latest")
    driver.settle()
    driver.drain_and_close()
    return disk


def test_bundles_of_a_new_core_wait_for_whoever_is_known_on_the_others() -> None:
    """Regression: the bundles were deleted once everybody who had connected to that core was done with them."""
    disk = with_subscribers("ann", "ben")
    driver = core(disk, 1)
    assert driver.engine.registrations.names() == ["ann", "ben"]
    driver.push_numbered(0)
    driver.seal()
    driver.claim("ann", "owner", 1)
    driver.resolve("ann", "owner", 0, "ack", [0])
    driver.flush_progress()
    driver.settle()
    assert driver.claim_numbers("ben") == [0]


def test_that_is_durable_before_the_first_bundle() -> None:
    disk = with_subscribers("ann")
    driver = core(disk, 1)
    left = disk.crash(CrashMode.DROP)
    assert core(left, 1).engine.registrations.names() == driver.engine.registrations.names() == ["ann"]


def test_a_core_that_stores_something_follows_nobody() -> None:
    """A subscriber unknown when the core was first opened has to register on it itself, and begins where it says."""
    disk = SimDisk()
    for number in (0, 1):
        driver = core(disk, number)
        driver.push_numbered(0)
        driver.drain_and_close()
    driver = core(disk, 0)
    driver.engine.registrations.register("ann", "earliest")
    driver.settle()
    driver.drain_and_close()
    assert core(disk, 1).engine.registrations.names() == []


def test_subscribers_of_other_topics_and_what_is_no_core_do_not_count() -> None:
    disk = with_subscribers("ann")
    disk.make_directory("side/retired/core_3")
    disk.create("side/retired/core_3/quiver.sub.gone").close()
    disk.make_directory("side/core_x")
    disk.create("side/core_x/quiver.sub.nobody").close()
    assert core(disk, 0, "side").engine.registrations.names() == []
