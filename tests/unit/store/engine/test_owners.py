"""The owner of a subscriber is durable together with its registration, through crashes at every call, seeks and cores that come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from quiver_actors.base.rights import Ownership
from quiver_actors.store.disk.interposed import MUTATING_KINDS, Call, InterposedDisk, Result
from quiver_actors.store.subscriber.progress import decode_progress, progress_file_name
from tests.disks.crashes import CrashMode
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver

ANN, BOB, CAROL = 1001, 1002, 1003
PROGRESS = f"default/core_0/{progress_file_name('s')}"


def core(disk: SimDisk, number: int) -> EngineDriver:
    return EngineDriver(disk, directory=f"default/core_{number}")


class Recorder(InterposedDisk):
    """Keeps the disk as it is before each call that changes it, and how many facts were told by then."""

    def __init__(self, inner: SimDisk) -> None:
        super().__init__(inner)
        self.disk = inner
        self.moments: list[tuple[SimDisk, int]] = []
        self.told = 0

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        if call.kind in MUTATING_KINDS:
            self.moments.append((self.disk.copy(), self.told))
        return proceed()


@dataclass
class Life:
    """A subscriber that is registered, shared, dropped, and registered by another user; what holds after each step."""

    recorder: Recorder = field(default_factory=lambda: Recorder(SimDisk()))
    states: list[Ownership | None] = field(default_factory=lambda: [None])

    def run(self) -> None:
        driver = EngineDriver(self.recorder)
        driver.push_numbered(0, 3)
        driver.seal()
        self.recorder.moments.clear()
        for step, state in self._steps(driver):
            # The step may be on the disk from now on, and is once its ticket is durable.
            self.states.append(state)
            step()
            driver.flush_progress()
            self.recorder.told = len(self.states) - 1
        self.recorder.moments.append((self.recorder.disk.copy(), self.recorder.told))

    def _steps(self, driver: EngineDriver) -> Iterator[tuple[Callable[[], object], Ownership | None]]:
        engine = driver.engine
        yield lambda: engine.registrations.register("s", "earliest", Ownership(ANN)), Ownership(ANN)
        yield lambda: engine.registrations.share("s", [CAROL, BOB, CAROL]), Ownership(ANN, (BOB, CAROL))
        yield lambda: engine.registrations.seek("s", "latest"), Ownership(ANN, (BOB, CAROL))
        yield lambda: engine.registrations.share("s", []), Ownership(ANN)
        yield lambda: engine.registrations.give("s", Ownership()), Ownership()
        yield lambda: engine.registrations.unregister("s"), None
        yield lambda: engine.registrations.register("s", "latest", Ownership(BOB)), Ownership(BOB)


@pytest.mark.parametrize("mode", CrashMode)
def test_no_crash_leaves_a_subscriber_with_another_owner(mode: CrashMode) -> None:
    life = Life()
    life.run()
    assert len(life.recorder.moments) > 20
    for disk, told in life.recorder.moments:
        driver = EngineDriver(disk.crash(mode))
        found = driver.engine.registrations.ownership_of("s")
        assert found in life.states[told : told + 2], f"after {told} steps"
        driver.engine.close()


def test_the_owner_stays_where_everything_is_flushed_again() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "earliest", Ownership(ANN, (BOB,)))
    driver.push_numbered(0, 3)
    driver.seal()
    (grant,) = driver.claim("s", "consumer", 2)
    driver.resolve("s", "consumer", grant.segment_seq, "ack", grant.indexes)
    driver.flush_progress()
    assert decode_progress(disk.contents()[PROGRESS]).ownership == Ownership(ANN, (BOB,))
    driver.engine.close()
    assert EngineDriver(disk).engine.registrations.ownership_of("s") == Ownership(ANN, (BOB,))


def test_who_registers_again_owns_nothing() -> None:
    driver = EngineDriver(SimDisk())
    driver.engine.registrations.register("s", "earliest", Ownership(ANN))
    driver.engine.registrations.register("s", "earliest", Ownership(BOB))
    assert driver.engine.registrations.ownership_of("s") == Ownership(ANN)
    assert driver.engine.registrations.ownership_of("nobody") is None


def replaced(disk: SimDisk, path: str, content: bytes) -> None:
    disk.unlink(path)
    file = disk.create(path)
    file.write([content], 0)
    file.fsync()
    file.close()


def test_a_new_core_takes_owners_from_the_other_ones() -> None:
    disk = SimDisk()
    first = EngineDriver(disk)
    first.engine.registrations.register("s", "earliest", Ownership(ANN, (BOB,)))
    first.drain_and_close()
    second = core(disk, 1)
    assert second.engine.registrations.ownership_of("s") == Ownership(ANN, (BOB,))


@pytest.mark.parametrize("taken", [0, 1])
def test_a_new_core_takes_no_owner_whose_subscriber_was_taken_over_on_another_core(taken: int) -> None:
    """A power loss came when the new owner was durable on one of two cores."""
    disk = SimDisk()
    for number in (0, 1):
        driver = core(disk, number)
        driver.engine.registrations.register("s", "earliest", Ownership(ANN))
        driver.engine.registrations.give("s", Ownership() if number == taken else Ownership(ANN))
        driver.drain_and_close()
    assert core(disk, 2).engine.registrations.ownership_of("s") == Ownership()


def test_a_subscriber_whose_progress_is_damaged_keeps_its_owner_if_another_core_knows_it() -> None:
    disk = SimDisk()
    for number in (0, 1):
        driver = core(disk, number)
        driver.engine.registrations.register("s", "earliest", Ownership(ANN))
        driver.push_numbered(0, 2)
        driver.drain_and_close()
    replaced(disk, PROGRESS, b"damaged")
    assert EngineDriver(disk).engine.registrations.ownership_of("s") == Ownership(ANN)


def test_a_subscriber_whose_owner_no_file_tells_is_the_topics_owners() -> None:
    disk = SimDisk()
    driver = core(disk, 0)
    driver.engine.registrations.register("s", "earliest", Ownership(ANN, (BOB,)))
    driver.drain_and_close()
    replaced(disk, PROGRESS, b"damaged")
    assert core(disk, 0).engine.registrations.ownership_of("s") == Ownership()


def test_an_owner_is_taken_from_the_cores_whose_files_can_be_read() -> None:
    disk = SimDisk()
    for number in (0, 1):
        driver = core(disk, number)
        driver.engine.registrations.register("s", "earliest", Ownership(ANN))
        driver.drain_and_close()
    replaced(disk, PROGRESS, b"damaged")
    assert core(disk, 2).engine.registrations.ownership_of("s") == Ownership(ANN)
    assert disk.contents()[PROGRESS] == b"damaged", "another core's damage is that core's business"
