"""Durable bundles are shown in the order of their ids, out of a file of its own; one is condemned only when it is damaged for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quiver_actors.base.protocol.places import PLACE
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.interposed import Call, InterposedDisk
from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.jobs.checking import VerifyJob
from quiver_actors.store.jobs.job import Job
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.stage_driver import StageDriver

SETTINGS = topic_settings(segment_max_open_duration_ns=3600 * SECOND_NS)


class MisreadDisk(InterposedDisk):
    """A disk whose next reads of logs give back other bytes than are there."""

    misreads = 0

    def around(self, call: Call, proceed: Callable[[], Any]) -> Any:
        found = proceed()
        if call.kind == "read" and "/wal/" in call.path and self.misreads:
            self.misreads -= 1
            return bytes(len(found))
        return found


def run_until_pushes_fit(driver: EngineDriver) -> list[Job]:
    """Run what a push needs. Returns the checks of segments that have begun meanwhile, and are not run."""
    checks: list[Job] = []
    while not driver.engine.intake.can_stage(4096):
        job = driver.engine.next_background()
        assert job is not None
        if isinstance(job, VerifyJob):
            checks.append(job)
        else:
            job.run()
            driver.events += driver.engine.finish(job)
    return checks


def test_nothing_behind_a_publish_is_shown_before_it() -> None:
    driver = StageDriver(SimDisk(), SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.settle()
    number = driver.prepared(10, 11)
    driver.engine.stages.publish("t", driver.engine.incarnation, [number], drop_others=False)
    driver.push_numbered(1)
    driver.commit()
    driver.commit()
    assert driver.engine.claims.claimable_count("s") == 1, "the bundle behind the publish is durable"
    acknowledged = driver.engine.group_commit.acknowledges[0]
    obstacle = driver.engine.readable_end.obstacle(acknowledged)
    assert obstacle == "segment 1, in front of segment 2, is still being published"
    driver.settle()
    assert driver.claim_numbers("s") == [0, 10, 11, 1]
    assert driver.engine.readable_end.obstacle(acknowledged) == ""


def two_sealed_bundles(disk: SimDisk) -> EngineDriver:
    """An engine with one segment, of which `behind` has resolved nothing and `through` everything."""
    driver = EngineDriver(disk, SETTINGS)
    for subscriber in ("behind", "through"):
        driver.engine.registrations.register(subscriber, "earliest")
    driver.push_numbered(0, 2)
    driver.seal()
    assert driver.claim_numbers("through") == [0, 1]
    driver.engine.claims.ack_through("through", 0, 1)
    driver.flush_progress()
    driver.engine.close()
    return EngineDriver(disk, SETTINGS)


def finish(driver: EngineDriver, jobs: list[Job]) -> None:
    for job in jobs:
        job.run()
        driver.events += driver.engine.finish(job)
    driver.settle()


def claimed(driver: EngineDriver, subscriber: str) -> list[tuple[int, int]]:
    """Claim what there is, without any job being run. Returns segments and indexes."""
    grants = driver.engine.claims.claim(subscriber, f"owner of {subscriber}", 10)
    return [(grant.segment_seq, index) for grant in grants for index in grant.indexes]


def test_who_is_owed_nothing_of_what_is_being_checked_gets_a_push_at_once() -> None:
    driver = two_sealed_bundles(SimDisk())
    checks = run_until_pushes_fit(driver)
    driver.push_numbered(2)
    driver.commit()
    assert claimed(driver, "behind") == [], "segment 0 comes first, and is not checked yet"
    assert claimed(driver, "through") == [(1024, 0)]
    finish(driver, checks)
    assert driver.claim_numbers("behind") == [0, 1, 2]


def test_a_seal_while_an_older_segment_waits_for_its_check_keeps_the_order() -> None:
    driver = two_sealed_bundles(SimDisk())
    checks = run_until_pushes_fit(driver)
    driver.push_numbered(2)
    driver.commit()
    driver.engine.seal_now()
    checks += run_until_pushes_fit(driver)
    assert claimed(driver, "behind") == []
    assert claimed(driver, "through") == [(1024, 0)]
    finish(driver, checks)
    assert driver.claim_numbers("behind") == [0, 1, 2]


def test_whoever_goes_back_waits_for_the_check_of_what_it_wants_again() -> None:
    driver = two_sealed_bundles(SimDisk())
    checks = run_until_pushes_fit(driver)
    driver.push_numbered(2)
    driver.commit()
    driver.engine.registrations.seek("through", "earliest")
    assert claimed(driver, "through") == []
    finish(driver, checks)
    assert driver.claim_numbers("through") == [0, 1, 2]


def test_a_log_can_be_read_while_its_seal_has_closed_it() -> None:
    driver = EngineDriver(SimDisk(), SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.commit()
    readable = driver.engine.readable_end
    ((offset, size_bytes, _),) = PLACE.iter_unpack(readable.places(0, [0]))
    _, file = readable.file_of(0)
    before = file.read(size_bytes, offset)
    driver.engine.seal_now()
    driver.commit()
    job = driver.engine.next_background()
    assert job is not None
    job.run()
    assert file.read(size_bytes, offset) == before
    driver.events += driver.engine.finish(job)
    driver.settle()
    assert driver.claim_numbers("s") == [0]


def test_a_bundle_that_was_misread_once_is_condemned_for_nobody() -> None:
    disk = MisreadDisk(SimDisk())
    driver = EngineDriver(disk, SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0)
    driver.commit()
    (grant,) = driver.claim("s", "owner", 10)
    disk.misreads = 1
    driver.engine.cannot_read("s", "owner", 0, grant.token, [0], SECOND_NS)
    driver.run_for(2 * SECOND_NS)
    assert disk.misreads == 0
    assert not [event for event in driver.events if isinstance(event, GapFound)]
    assert driver.claim_numbers("s") == [0]


def test_what_is_claimed_and_acknowledged_before_a_seal_is_so_behind_it() -> None:
    driver = EngineDriver(SimDisk(), SETTINGS)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 4)
    driver.commit()
    (grant,) = driver.claim("s", "owner", 3)
    driver.engine.claims.resolve("s", "owner", 0, grant.token, "ack", [1], 0)
    driver.seal()
    assert driver.claim_numbers("s", owner="other") == [3]
    assert driver.engine.claims.resolve("s", "owner", 0, grant.token, "ack", [0], 0) == []
    driver.engine.claims.release("owner")
    assert driver.claim_numbers("s", owner="other") == [2]
