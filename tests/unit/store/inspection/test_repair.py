from __future__ import annotations

import os
from pathlib import Path

import pytest

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import AlreadyRunning
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.inspection.careful import Action
from quiver_actors.store.inspection.repair import EngineRepair, repair_engine
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.wal.codec import decode_cursor
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.unit.store.inspection.stores import (
    ACTIVE,
    CORE,
    CURSOR,
    ENGINE,
    ENTRY_BYTES,
    GOLDEN,
    PROGRESS,
    ROTATED,
    SEGMENT,
    BadSectors,
    copy_store,
    damage_in,
    flip,
    snapshot,
    verified,
)

QUARANTINE = f"{ENGINE}/quarantine"


def repaired(root: Path, *, dry_run: bool = False, settings: TopicSettings | None = None) -> EngineRepair:
    disk = PosixDisk(str(root))
    try:
        return repair_engine(Tree(disk, ""), ENGINE, settings or topic_settings(), dry_run=dry_run)
    finally:
        disk.close()


def delivered(root: Path) -> list[int]:
    """Return the numbers of the bundles that the subscriber gets from the repaired directory."""
    disk = PosixDisk(str(root))
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    numbers = []
    driver.settle()
    # A claim stops in front of each gap notice, which is told first.
    while (grants := driver.claim("exporter", "owner", 1000)) or driver.take_gaps("exporter"):
        for segment_seq, indexes, *_ in grants:
            reader = driver.read(segment_seq)
            batches = [reader.bundle(index)[0] for index in indexes]
            numbers += [batch.column(0)[0].as_py() for batch in batches if batch.schema.names[0] == "number"]
    driver.drain_and_close()
    disk.close()
    return numbers


OWED = [*range(4, 16)]
"""0 to 3 were acknowledged."""

CASES = {
    "cursor": ([(CURSOR, 13)], OWED),
    "core": ([(CORE, 33)], OWED),
    "core version": ([(CORE, 8)], OWED),
    "progress": ([(PROGRESS, 40)], [*range(3, 16)]),
    "log header": ([(ROTATED, 75)], OWED),
    "log version": ([(ACTIVE, 10)], OWED),
    "log magic": ([(ACTIVE, 2)], OWED),
    "log entry": ([(ROTATED, 121 + 300)], [n for n in OWED if n != 9]),
    "segment entry": ([(SEGMENT, 121 + 2 * ENTRY_BYTES + 300)], [n for n in OWED if n != 5]),
    "segment trailer": ([(SEGMENT, -3)], OWED),
    "segment header": ([(SEGMENT, 3)], OWED),
    "segment version": ([(SEGMENT, -124)], OWED),
    "several": ([(CURSOR, 13), (CORE, 33), (ROTATED, 121 + 300), (SEGMENT, -3)], [n for n in OWED if n != 9]),
}


@pytest.mark.parametrize("case", CASES)
def test_repaired_store_is_whole_and_delivers_what_is_left(store: Path, case: str) -> None:
    flips, owed = CASES[case]
    for path, offset in flips:
        flip(store / path, offset)
    assert damage_in(verified(store))
    repair = repaired(store)
    assert repair.is_whole, repair
    assert damage_in(verified(store)) == []
    assert sorted(delivered(store)) == owed


@pytest.mark.parametrize("case", CASES)
def test_dry_run_plans_what_is_done_and_changes_nothing(store: Path, case: str) -> None:
    for path, offset in CASES[case][0]:
        flip(store / path, offset)
    before = snapshot(store)
    planned = repaired(store, dry_run=True)
    assert snapshot(store) == before
    done = repaired(store)
    assert planned.steps == done.steps
    assert planned.steps
    assert (planned.notes, planned.left, planned.refusal) == (done.notes, done.left, done.refusal)


@pytest.mark.parametrize("case", CASES)
def test_second_repair_finds_nothing(store: Path, case: str) -> None:
    for path, offset in CASES[case][0]:
        flip(store / path, offset)
    repaired(store)
    after = snapshot(store)
    again = repaired(store)
    assert (again.damage, again.steps) == ([], [])
    assert snapshot(store) == after


@pytest.mark.parametrize("case", CASES)
def test_nothing_but_temporary_files_is_deleted(store: Path, case: str) -> None:
    """Every damaged file, or its damaged bytes, can still be found."""
    damaged = []
    for path, offset in CASES[case][0]:
        flip(store / path, offset)
        data = (store / path).read_bytes()
        at = offset % len(data)
        damaged.append(data[max(0, at - 8) : at + 8])
    repaired(store)
    kept = b"".join(snapshot(store).values())
    assert all(piece in kept for piece in damaged)


def test_healthy_store_is_left_alone(store: Path) -> None:
    before = snapshot(store)
    repair = repaired(store)
    assert (repair.damage, repair.steps, repair.is_whole) == ([], [], True)
    assert snapshot(store) == before


def test_directory_keeps_its_incarnation_when_the_core_file_is_lost(store: Path) -> None:
    before = decode_core((store / CORE).read_bytes())
    flip(store / CORE, 33)
    assert repaired(store).is_whole
    after = decode_core((store / CORE).read_bytes())
    assert after.incarnation == before.incarnation
    assert after.next_sequence_reserved >= 17
    assert "file.origin" not in {finding.code for finding in verified(store)}


def test_cursor_is_derived_from_the_segments(store: Path) -> None:
    right = decode_cursor((store / CURSOR).read_bytes())
    flip(store / CURSOR, 13)
    repair = repaired(store)
    assert decode_cursor((store / CURSOR).read_bytes()) == right
    assert [step.action for step in repair.steps] == [Action.MOVE_ASIDE, Action.WRITE]
    assert os.listdir(store / QUARANTINE) == ["quiver.wal.cursor.0"]


def test_cursor_of_another_writer_is_not_invented(tmp_path: Path) -> None:
    copy_store(GOLDEN / "quiver-v1", tmp_path / ENGINE)
    flip(tmp_path / CURSOR, 13)
    repair = repaired(tmp_path)
    assert repair.is_whole
    assert not (tmp_path / CURSOR).exists()
    assert any("cursor is not made anew" in note for note in repair.notes)


def test_damaged_log_of_another_writer_is_adopted_and_kept(tmp_path: Path) -> None:
    copy_store(GOLDEN / "quiver-v1", tmp_path / ENGINE)
    damaged = tmp_path / ACTIVE
    flip(damaged, 12_345)
    content = damaged.read_bytes()
    assert repaired(tmp_path).is_whole
    assert content in [path.read_bytes() for path in (tmp_path / QUARANTINE).glob("quiver.wal.*")]
    assert damage_in(verified(tmp_path)) == []


def test_missing_progress_is_not_made_up(store: Path) -> None:
    os.unlink(store / PROGRESS)
    flip(store / CORE, 33)
    assert repaired(store).is_whole
    assert not (store / PROGRESS).exists()


def test_link_and_directory_in_the_way_are_moved_aside(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"untouched")
    (store / ENGINE / "wal" / "quiver.wal.7").symlink_to(tmp_path / "elsewhere")
    os.mkdir(store / ENGINE / "segments" / "0000000000000007.qseg")
    repair = repaired(store)
    assert repair.is_whole, repair
    assert (tmp_path / "elsewhere").read_bytes() == b"untouched"
    assert {"0000000000000007.qseg", "quiver.wal.7"} <= {
        name.rpartition(".")[0] for name in os.listdir(store / QUARANTINE)
    }
    assert delivered(store) == OWED


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("path", "offset", "owed"),
    [
        (ROTATED, 121 + 300, [13, 14, 15]),
        (ACTIVE, 60_000, OWED),
        (SEGMENT, 5000, OWED),
        (PROGRESS, 40, [*range(3, 16)]),
        (CURSOR, 3, OWED),
        (CORE, 3, OWED),
    ],
)
def test_bad_sectors_cost_what_was_in_them(store: Path, path: str, offset: int, owed: list[int], dry_run: bool) -> None:
    """Sectors are 4 KiB, and most files here are smaller: of the retired log all four entries are in the bad one."""
    posix = PosixDisk(str(store))
    disk = BadSectors(posix, {path: offset})
    before = snapshot(store)
    repair = repair_engine(Tree(disk, ""), ENGINE, topic_settings(), dry_run=dry_run)
    posix.close()
    assert any(finding.code == "file.unreadable" for finding in repair.damage)
    assert repair.is_whole, repair
    if dry_run:
        assert snapshot(store) == before
        return
    assert before[path] in [content for name, content in snapshot(store).items() if name.startswith(QUARANTINE)]
    assert set(owed) <= set(delivered(store))


def test_misnamed_copy_of_a_segment_is_moved_aside(store: Path) -> None:
    (store / ENGINE / "segments" / "0000000000000009.qseg").write_bytes((store / SEGMENT).read_bytes())
    assert repaired(store).is_whole
    assert os.listdir(store / QUARANTINE) == ["0000000000000009.qseg.0"]
    assert delivered(store) == OWED


def test_gap_in_the_log_is_left_as_it_is_and_told(store: Path) -> None:
    """Sealing the rest would take away the only sign that something is missing."""
    log_of_segment = (store / SEGMENT).read_bytes()[: 121 + 3 * ENTRY_BYTES]
    os.unlink(store / SEGMENT)
    (store / ENGINE / "wal" / "quiver.wal.2").write_bytes(log_of_segment)
    os.unlink(store / ROTATED)
    before = snapshot(store)
    repair = repaired(store)
    assert [finding.code for finding in repair.left] == ["log.gap"]
    assert repair.refusal
    assert not repair.is_whole
    assert snapshot(store) == before


def test_missing_segment_is_left_to_the_node_which_tells_its_subscribers(store: Path) -> None:
    os.unlink(store / SEGMENT)
    before = snapshot(store)
    repair = repaired(store)
    assert repair.is_whole
    assert snapshot(store) == before
    assert [finding.code for finding in repair.damage] == ["progress.missing_segment"]


def test_logs_of_another_slot_table_are_refused_with_the_reason(store: Path) -> None:
    flip(store / ROTATED, 121 + 300)
    settings = topic_settings(slots={"flights": 0})
    repair = repaired(store, settings=settings)
    assert not repair.is_whole
    assert "slot table" in repair.refusal


def test_open_engine_is_refused(store: Path) -> None:
    disk = PosixDisk(str(store))
    lock = disk.lock(f"{ENGINE}/quiver.lock")
    assert lock is not None
    flip(store / CURSOR, 13)
    before = snapshot(store)
    with pytest.raises(AlreadyRunning):
        repaired(store)
    assert snapshot(store) == before
    lock.release()
    disk.close()
    assert repaired(store).is_whole
