"""Stores in which several subscribers acknowledge so closely together that their progress goes to the journal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.subscriber.progress import progress_file_name
from tests.disks.faulty import FaultyDisk
from tests.disks.simulated import SimDisk
from tests.golden.parser import parse_progress
from tests.support.engine_driver import EngineDriver, topic_settings

PATHS = EnginePaths("default/core_0")
JOURNAL = PATHS.progress_journal
NAMES = ("ann", "ben", "cat")
SETTINGS = topic_settings(segment_compaction="off")
BUNDLES = 12


def driven(disk: SimDisk | FaultyDisk, names: Iterable[str] = NAMES) -> EngineDriver:
    """A store whose subscribers have claimed all bundles of an open log, and whose progress files are known to the engine."""
    driver = EngineDriver(disk, SETTINGS)
    for name in names:
        driver.engine.registrations.register(name, "earliest")
    driver.push_numbered(0, BUNDLES)
    driver.settle()
    driver.flush_progress()
    for name in names:
        driver.claim(name, name, BUNDLES)
    return driver


def acknowledge(driver: EngineDriver, index: int, names: Iterable[str] = NAMES) -> int:
    """Let each subscriber acknowledge one bundle, and flush. Returns the ticket."""
    for name in names:
        driver.resolve(name, name, 0, "ack", [index])
    ticket = driver.engine.progress.ticket
    driver.flush_progress()
    return ticket


def progress_path(name: str) -> str:
    return PATHS.in_root(progress_file_name(name))


def resolved_in_file(disk: SimDisk, name: str) -> list[int]:
    """The bundles of segment 0 that a reader of version 1 takes for resolved, by the independent parser."""
    resolved = parse_progress(disk.contents()[progress_path(name)]).resolved.get(0, [])
    return [index for index, is_resolved in enumerate(resolved) if is_resolved]


def delivered(disk: SimDisk, names: Sequence[str] = NAMES) -> dict[str, list[int]]:
    """What each subscriber gets of a directory that nobody has open. Nobody is told of a loss."""
    driver = EngineDriver(disk, SETTINGS)
    driver.settle()
    found = {name: sorted(driver.claim_numbers(name)) for name in names}
    assert not [event for event in driver.events if isinstance(event, GapFound)]
    assert not driver.told
    return found
