"""A damaged list of cold segments: made anew from the files on the cold disk if these leave no doubt, else the start is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.base.config import TierSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError
from quiver_actors.store.files.cold_list import ColdEntry, ColdList, decode_cold_list, encode_cold_list
from quiver_actors.store.files.paths import EnginePaths
from tests.disks.below import ColdDisksBelow
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.other_writer import segment_bytes
from tests.unit.store.recovery.test_damaged_files import flipped, kept, replace

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)


def opened(disk: SimDisk, cold_dir: str = "cold") -> EngineDriver:
    tier = TierSettings(cold_dir=cold_dir, keep_hot_segments=1)
    settings = topic_settings(tier=tier, segment_compaction="off")
    return EngineDriver(disk, settings, cold_disks=ColdDisksBelow(disk))


def moved() -> SimDisk:
    """Return the disk of a closed engine with four segments of two bundles each, of which the first three are cold."""
    disk = SimDisk()
    driver = opened(disk)
    driver.engine.registrations.register("s", "earliest")
    for first in range(0, 8, 2):
        driver.push_numbered(first, 2)
        driver.seal()
    driver.run_for(5 * SECOND_NS)
    assert [driver.engine.storage.is_cold(segment_seq) for segment_seq in range(4)] == [True, True, True, False]
    driver.drain_and_close()
    return disk


def listed(disk: SimDisk) -> ColdList:
    return decode_cold_list(disk.contents()[PATHS.cold])


def cold_path(disk: SimDisk, segment_seq: int) -> str:
    (path,) = [path for path in disk.contents() if path.startswith("cold/") and path.endswith(f"{segment_seq}.qseg")]
    return path


def told(driver: EngineDriver) -> str:
    return " ".join(driver.engine.recovery_notes)


def with_entry(disk: SimDisk, entry: ColdEntry) -> bytes:
    """Return a whole list that says this of the first cold segment."""
    found = listed(disk)
    return encode_cold_list(ColdList(found.cold_id, found.root, {**found.segments, 0: entry}, found.unwanted))


def test_beside_directories_that_are_none_of_ours_the_list_is_made_anew() -> None:
    disk = moved()
    before = listed(disk)
    for name in ("lost+found", "F" * 32, "f" * 31):
        disk.make_directory(f"cold/{DIRECTORY}/{name}")
    damaged = replace(disk, PATHS.cold, flipped)
    driver = opened(disk)
    assert kept(disk) == [damaged]
    assert "the 3 cold segments were found again" in told(driver)
    assert listed(disk).segments == before.segments
    assert driver.claim_numbers("s") == list(range(8))


def test_beside_another_node_s_directory_the_list_is_made_anew_from_its_own() -> None:
    disk = moved()
    before = listed(disk)
    disk.make_directory(f"cold/{DIRECTORY}/{'0' * 32}")
    replace(disk, PATHS.cold, flipped)
    driver = opened(disk)
    assert listed(disk).segments == before.segments
    assert driver.claim_numbers("s") == list(range(8))


def test_a_copy_that_was_cut_off_is_no_cold_segment() -> None:
    disk = moved()
    directory = cold_path(disk, 0).rpartition("/")[0]
    replace(disk, f"{directory}/{3:016}.qseg.tmp", lambda _: b"cut off")
    replace(disk, PATHS.cold, flipped)
    driver = opened(disk)
    assert sorted(listed(disk).segments) == [0, 1, 2]
    assert driver.claim_numbers("s") == list(range(8))


def without_a_setting(disk: SimDisk) -> EngineDriver:
    return opened(disk, cold_dir="")


def with_two_directories(disk: SimDisk) -> EngineDriver:
    disk.make_directory(f"cold/{DIRECTORY}/{'0' * 32}")
    disk.unlink(PATHS.cold_owner)  # as a program from before has left it
    return opened(disk)


def with_a_damaged_segment(disk: SimDisk) -> EngineDriver:
    replace(disk, cold_path(disk, 1), lambda content: content[:-20])
    return opened(disk)


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (without_a_setting, "tier.cold_dir is not set"),
        (with_two_directories, "2 directories in cold/default/core_0 may be theirs"),
        (with_a_damaged_segment, "1.qseg is damaged, too"),
    ],
)
def test_in_doubt_the_start_is_refused_and_the_list_stays(start: Callable[[SimDisk], EngineDriver], why: str) -> None:
    """The bundles would seem to be lost if a start went on without the list."""
    disk = moved()
    damaged = replace(disk, PATHS.cold, flipped)
    with pytest.raises(DiskError, match=why):
        start(disk)
    assert disk.contents()[PATHS.cold] == damaged
    assert kept(disk) == []


def of_another_writer(disk: SimDisk) -> ColdEntry:
    """Return an entry with a footer that a segment on the cold disk cannot have."""
    whole = segment_bytes([])
    return ColdEntry(len(whole), whole[-50:])


def of_bundles_that_contradict_the_sequences(disk: SimDisk) -> ColdEntry:
    size_bytes, end, lost = listed(disk).segments[0]
    return ColdEntry(size_bytes, end[:6] + bytes([end[6] ^ 1]) + end[7:], lost)


@pytest.mark.parametrize("entry", [of_another_writer, of_bundles_that_contradict_the_sequences])
def test_a_whole_list_that_contradicts_itself_is_damaged(entry: Callable[[SimDisk], ColdEntry]) -> None:
    disk = moved()
    before = listed(disk)
    wrong = replace(disk, PATHS.cold, lambda _: with_entry(disk, entry(disk)))
    driver = opened(disk)
    assert kept(disk) == [wrong]
    assert "what it says of segment 0 contradicts itself" in told(driver)
    assert listed(disk).segments == before.segments
    assert driver.claim_numbers("s") == list(range(8))
