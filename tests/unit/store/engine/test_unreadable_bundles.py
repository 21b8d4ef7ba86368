"""A bundle that a consumer cannot read: damaged for all where the engine cannot read it either, else set aside for that subscriber."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.engine import EngineState
from quiver_actors.store.engine.read_failures import ENTRIES_MAX, TRIES_MAX, ReadFailures
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.segment.layout import CRC, SEGMENT_MAGIC, TRAILER
from quiver_actors.store.wal.layout import WAL_MAGIC
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver
from tests.support.undecodable import with_undecodable_bundle, with_unproven_bundle

PATHS = EnginePaths("default/core_0")
COUNT = 4
DELAY_NS = SECOND_NS


def stored() -> SimDisk:
    """One segment of bundles for ann and ben."""
    disk = SimDisk()
    driver = EngineDriver(disk)
    for subscriber in ("ann", "ben"):
        driver.engine.registrations.register(subscriber, "earliest")
    driver.push_numbered(0, COUNT)
    driver.seal()
    driver.flush_progress()
    return disk.copy()


def spoil(disk: SimDisk, index: int, spoiled: Callable[[bytes, int], bytes] = with_undecodable_bundle) -> None:
    file = disk.open_read(PATHS.segment(0))
    content = spoiled(file.read(file.size(), 0), index)
    disk.unlink(PATHS.segment(0))
    written = disk.create(PATHS.segment(0))
    written.write([content], 0)
    written.fsync()
    written.make_read_only()


def cannot_read(driver: EngineDriver, subscriber: str, index: int) -> list[int]:
    """One delivery that fails. Returns what was set aside by it."""
    owner = object()
    grants = driver.engine.claims.claim(subscriber, owner, COUNT)
    (grant,) = [grant for grant in grants if index in grant.indexes]
    refused, gone = driver.engine.cannot_read(subscriber, owner, 0, grant.token, [index], DELAY_NS)
    assert not refused
    others = [other for other in grant.indexes if other != index]
    driver.engine.claims.resolve(subscriber, owner, 0, grant.token, "return", others, 0)
    driver.run_for(DELAY_NS)
    return gone


def deliveries_until_it_ends(driver: EngineDriver, subscriber: str, index: int) -> int:
    for number in range(1, 50):
        if cannot_read(driver, subscriber, index):
            return number
    pytest.fail("it is delivered without end")


def told(driver: EngineDriver, subscriber: str) -> list[tuple[int, int, int, str]]:
    return [
        (each.segment_seq, each.bundle_index_first, each.bundle_count, each.reason)
        for each in driver.take_gaps(subscriber)
    ]


@pytest.mark.parametrize("spoiled", [with_undecodable_bundle, with_unproven_bundle])
def test_a_bundle_that_the_engine_cannot_read_either_is_damaged_for_all_at_the_first_try(
    spoiled: Callable[[bytes, int], bytes],
) -> None:
    disk = stored()
    spoil(disk, 2, spoiled)
    driver = EngineDriver(disk)
    driver.settle()
    assert cannot_read(driver, "ann", 2) == []
    for subscriber in ("ann", "ben"):
        owner = object()
        granted = [index for grant in driver.engine.claims.claim(subscriber, owner, COUNT) for index in grant.indexes]
        assert granted == [0, 1], "what comes before the notice"
        driver.engine.claims.ack_through(subscriber, 0, 1)
        assert told(driver, subscriber) == [(0, 2, 1, "damaged")]
        assert [index for grant in driver.engine.claims.claim(subscriber, owner, COUNT) for index in grant.indexes] == [
            3
        ]
        driver.engine.claims.ack_through(subscriber, 0, 3)
    driver.flush_progress()
    assert not disk.exists(PATHS.segment(0)), "everybody is done with it"
    assert [name.partition(".qseg")[0] for name in disk.list_directory(PATHS.quarantine)] == ["0" * 16]
    assert driver.engine.figures().quarantined == 1
    assert driver.engine.state is EngineState.READY


def test_a_later_subscriber_and_one_behind_a_restart_are_told_of_it_too() -> None:
    disk = stored()
    spoil(disk, 2)
    driver = EngineDriver(disk)
    driver.settle()
    cannot_read(driver, "ann", 2)
    driver.engine.registrations.register("late", "earliest")
    driver.flush_progress()
    driver.engine.claims.ack_through("late", 0, 1)
    assert told(driver, "late") == [(0, 2, 1, "damaged")]
    driver.engine.close()
    driver.reopen()
    driver.settle()
    driver.engine.registrations.register("later", "earliest")
    assert cannot_read(driver, "later", 2) == []
    driver.engine.claims.ack_through("later", 0, 1)
    assert told(driver, "later") == [(0, 2, 1, "damaged")]
    assert len(disk.list_directory(PATHS.quarantine)) == 1, "the same file is kept once"


@pytest.mark.parametrize(
    ("terms", "is_letter"),
    [
        ((0, "dead_letter"), False),
        ((50, "dead_letter"), True),
        ((50, "block"), False),
        ((50, "drop"), False),
    ],
)
def test_a_bundle_that_the_engine_can_decode_is_set_aside_for_that_subscriber_alone(
    terms: tuple[int, str], is_letter: bool
) -> None:
    driver = EngineDriver(stored())
    driver.settle()
    driver.engine.registrations.set_terms("ann", lease_ns=0, max_deliveries=terms[0], exhausted=terms[1])
    assert deliveries_until_it_ends(driver, "ann", 1) == TRIES_MAX
    counts = driver.engine.owed.pending("ann")
    assert (counts.blocked, counts.pending) == (1, COUNT - 1)
    assert driver.engine.owed.figures_of("ann").blocked == 1, "status shows it"
    assert driver.engine.claims.exhausted("ann") == ((0, 1) if is_letter else None)
    assert told(driver, "ann") == []
    assert driver.claim_numbers("ben") == list(range(COUNT))
    assert told(driver, "ben") == []
    if not is_letter:
        owner = object()
        grant = driver.engine.claims.claim_ref("ann", owner, 0, 1)
        assert driver.engine.cannot_read("ann", owner, 0, grant.token, [1], DELAY_NS) == ([], [1])
    driver.engine.close()
    driver.reopen()
    driver.settle()
    assert deliveries_until_it_ends(driver, "ann", 1) == TRIES_MAX, "tries are memory, and end again"


@pytest.mark.parametrize("exhausted", ["block", "drop", "dead_letter"])
def test_a_delivery_that_could_not_be_read_does_not_count_as_one(exhausted: str) -> None:
    """While a damaged file is rescued none of its bundles can be read: with `max_deliveries`, whole bundles used to be lost that way."""
    driver = EngineDriver(stored())
    driver.settle()
    driver.engine.registrations.set_terms("ann", lease_ns=0, max_deliveries=1, exhausted=exhausted)
    for _ in range(TRIES_MAX - 1):
        assert not cannot_read(driver, "ann", 1)
    pending = driver.engine.owed.pending("ann")
    assert (pending.blocked, pending.pending, pending.gaps) == (0, COUNT, 0)


def test_while_the_disk_does_not_give_the_file_back_nothing_is_set_aside() -> None:
    disk = FaultyDisk(stored())
    driver = EngineDriver(disk)
    driver.settle()
    disk.fail("open_read", 1, errno.EIO, then=["open_read"])
    for _ in range(2 * TRIES_MAX):
        assert not cannot_read(driver, "ann", 1)
    assert driver.engine.figures().state == EngineState.DEGRADED
    disk.heal()
    assert deliveries_until_it_ends(driver, "ann", 1) <= 12, "the file is looked at again within 10 s"
    assert told(driver, "ann") == []


class ErringDisk(InterposedDisk):
    """A disk that gives back a wrong value of bundle 1 where a whole segment is read at once, so many times."""

    errors = 0

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        found = proceed()
        if not (self.errors and isinstance(found, bytes) and found.startswith(WAL_MAGIC)):
            return found
        if found[-TRAILER.size : -CRC.size][-len(SEGMENT_MAGIC) :] != SEGMENT_MAGIC:
            return found
        self.errors -= 1
        return found.replace(b"1-0-text", b"?-0-text")  # type: ignore[return-value]


def test_a_disk_that_errs_while_a_bundle_is_looked_at_costs_no_bundle() -> None:
    """The file was compared with its checksum, and the bundle read after that: what comes then proves nothing of what is stored."""
    disk = ErringDisk(stored())
    driver = EngineDriver(disk)
    driver.settle()
    disk.errors = 3
    assert deliveries_until_it_ends(driver, "ann", 1) == TRIES_MAX
    assert disk.errors == 0
    assert told(driver, "ann") == told(driver, "ben") == []
    assert driver.claim_numbers("ben") == list(range(COUNT))


def test_who_holds_nothing_condemns_nothing() -> None:
    driver = EngineDriver(stored())
    driver.settle()
    for _ in range(2 * TRIES_MAX):
        refused, gone = driver.engine.cannot_read("ann", object(), 0, 7, [1, 1, 99], DELAY_NS)
        assert refused
        assert not gone
        driver.run_for(DELAY_NS)
    assert driver.engine.owed.pending("ann").pending == COUNT
    assert driver.engine.owed.pending("ann").blocked == 0


def test_failures_of_many_bundles_are_remembered_up_to_a_limit() -> None:
    failures = ReadFailures()
    per_segment = ENTRIES_MAX // 4
    for segment_seq in range(6):
        failures.note("ann", segment_seq, range(per_segment))
    assert [failures.tries("ann", segment_seq, 0) for segment_seq in range(6)] == [0, 0, 1, 1, 1, 1]
    failures.forget(5)
    assert failures.tries("ann", 5, 0) == 0
