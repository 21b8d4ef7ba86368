from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.core_file import decode_core, encode_core
from quiver_actors.store.inspection import segments
from quiver_actors.store.inspection.findings import Severity
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.inspection.verification import Totals, verify
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress, encode_progress
from quiver_actors.store.wal.codec import encode_cursor
from tests.disks.simulated import SimDisk
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
    codes,
    copy_store,
    damage_in,
    flip,
    overwrite,
    snapshot,
    verified,
)


@pytest.mark.parametrize("deep", [False, True])
def test_healthy_store_has_no_findings_and_is_counted(healthy_store: Path, deep: bool) -> None:
    totals = Totals()
    findings = verified(healthy_store, deep=deep, totals=totals)
    assert codes(findings) <= {"file.temporary"}
    assert totals == Totals(engines=1, files=8, segments=2, bundles=6, entries=8, subscribers=1)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("directory", "entries"), [("quiver-v1", 9), ("quiver-v1-rotated", 6)])
def test_directories_of_the_rust_implementation_are_whole_and_said_to_be_another_writers(
    directory: str, entries: int, deep: bool
) -> None:
    totals = Totals()
    findings = verified(GOLDEN / directory, deep=deep, totals=totals)
    assert codes(findings) == {"log.other_writer", "start.adopted"}
    assert [each.message for each in findings if each.code == "start.adopted"] == [
        "the next start adopts 4 entries of another writer: laid into logs of ours and delivered"
    ]
    assert (totals.segments, totals.bundles, totals.entries, totals.subscribers) == (2, 5, entries, 1)


@pytest.mark.parametrize("path", [ENGINE, "default", SEGMENT, ACTIVE, f"{ENGINE}/segments", f"{ENGINE}/wal"])
def test_any_part_of_a_data_directory_can_be_verified(healthy_store: Path, path: str) -> None:
    totals = Totals()
    assert damage_in(verified(healthy_store, path=path, totals=totals)) == []
    assert totals.files > 0


def test_verify_changes_nothing_and_takes_no_lock(store: Path) -> None:
    os.unlink(store / ENGINE / "quiver.lock")
    before = snapshot(store)
    verified(store)
    assert snapshot(store) == before


def test_what_is_not_there_is_an_error(store: Path) -> None:
    with pytest.raises(DiskError):
        verified(store / "nowhere")


# --- damage to single files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "offset", "code"),
    [
        (CURSOR, 13, "cursor"),
        (CORE, 33, "core"),
        (PROGRESS, 40, "progress.checksum"),
        (ACTIVE, 3, "log.header"),
        (ACTIVE, 75, "log.header"),
        (SEGMENT, 3, "log.header"),
        (SEGMENT, -9, "segment.trailer"),
        (SEGMENT, -124, "segment.footer"),
    ],
)
def test_damaged_structures_are_found_without_reading_everything(
    store: Path, path: str, offset: int, code: str
) -> None:
    flip(store / path, offset)
    found = [each for each in damage_in(verified(store, deep=False)) if each.code != "start.lost"]
    assert code in codes(found)
    assert all(finding.path == str(store / path) and finding.action for finding in found)
    assert all(finding.expected is not None and finding.found is not None for finding in found)


@pytest.mark.parametrize(
    ("path", "offset", "code"),
    [
        (ACTIVE, 121 + 300, "log.entry"),
        (ROTATED, 121 + 3 * ENTRY_BYTES + 300, "log.end"),
        (SEGMENT, 121 + 300, "segment.entry"),
        (SEGMENT, 121 + 300, "segment.checksum"),
    ],
)
def test_damaged_contents_are_found_by_a_deep_look(store: Path, path: str, offset: int, code: str) -> None:
    flip(store / path, offset)
    of_start = {"start.span_aside"} if "wal" in path else set()
    assert codes(damage_in(verified(store, deep=False))) == of_start, "a start reads its logs, but no segment, whole"
    found = [finding for finding in damage_in(verified(store)) if finding.code == code]
    assert len(found) == 1
    assert found[0].path == str(store / path)


def test_a_segment_with_bundles_that_were_lost_says_how_many(store: Path) -> None:
    flip(store / SEGMENT, 121 + 30)
    disk = PosixDisk(str(store))
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    driver.settle()
    driver.drain_and_close()
    disk.close()
    findings = verified(store, deep=True)
    assert damage_in(findings) == []
    (lost,) = [finding for finding in findings if finding.code == "segment.lost_bundles"]
    assert (lost.severity, lost.path) == (Severity.WARNING, str(store / SEGMENT))
    assert lost.message.startswith("1 of its 3 bundles were lost to damage")


def test_of_a_segment_too_large_to_decode_the_checksums_are_looked_at(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "DECODE_BYTES_MAX", 1000)
    findings = [finding for finding in verified(store, path=SEGMENT, deep=True) if finding.code != "file.temporary"]
    assert [(finding.code, finding.severity) for finding in findings] == [("segment.size", Severity.NOTE)]
    assert "only the checksums were looked at" in findings[0].message
    flip(store / SEGMENT, 121 + 200)
    assert "segment.checksum" in codes(verified(store, path=SEGMENT, deep=True))


def test_damage_in_the_last_entry_of_the_active_log_is_a_torn_write(store: Path) -> None:
    """Nobody can tell it from a write that a power loss cut off; the order of sync and acknowledgement guards against more."""
    data = (store / ACTIVE).read_bytes()
    last = len(data.rstrip(b"\0")) - 10
    flip(store / ACTIVE, last)
    findings = verified(store)
    assert damage_in(findings) == []
    (torn,) = [finding for finding in findings if finding.code == "log.torn_write"]
    assert torn.expected is not None
    assert torn.expected.startswith("CRC-32")


def test_zeroed_end_of_a_retired_log_is_missed_by_position(store: Path) -> None:
    overwrite(store / ROTATED, 121 + 2 * ENTRY_BYTES, bytes(2 * ENTRY_BYTES))
    (gap,) = damage_in(verified(store, deep=False))
    assert (gap.code, gap.path) == ("log.gap", str(store / ROTATED))
    assert f"{2 * ENTRY_BYTES} bytes" in gap.message


def test_missing_middle_log_is_missed_by_position(store: Path) -> None:
    log_of_segment = (store / SEGMENT).read_bytes()[: 121 + 3 * ENTRY_BYTES]
    os.unlink(store / SEGMENT)
    (store / ENGINE / "wal" / "quiver.wal.2").write_bytes(log_of_segment)
    assert "log.gap" not in codes(verified(store)), "segment 2 goes on where the log ends"
    os.unlink(store / ROTATED)
    gap, lost = damage_in(verified(store, deep=False))
    assert (gap.code, lost.code) == ("log.gap", "start.lost")
    assert f"{4 * ENTRY_BYTES} bytes" in gap.message
    assert "the log of segment 3 is gone" in lost.message


def test_missing_first_log_is_a_warning_by_the_cursor_and_a_loss_by_the_start(store: Path) -> None:
    os.unlink(store / ROTATED)
    findings = verified(store, deep=False)
    assert "log.missing_before" in codes(findings)
    assert [finding.code for finding in damage_in(findings)] == ["start.lost"]


def test_link_and_directory_under_names_of_ours_are_damage(store: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"")
    os.unlink(store / CURSOR)
    (store / CURSOR).symlink_to(tmp_path / "elsewhere")
    os.mkdir(store / ENGINE / "wal" / "quiver.wal.7")
    found = damage_in(verified(store))
    assert [finding.code for finding in found] == ["file.unreadable", "file.unreadable", "start.fails"]


def test_bad_sectors_are_damage_and_do_not_stop_the_look(store: Path) -> None:
    posix = PosixDisk(str(store))
    disk = BadSectors(posix, {ROTATED: 70_000, PROGRESS: 3})
    totals = Totals()
    found = damage_in(list(verify(Tree(disk, ""), ".", deep=True, totals=totals)))
    posix.close()
    places = {(finding.path, finding.offset) for finding in found if finding.code == "file.unreadable"}
    assert places == {(ROTATED, 69_632), (PROGRESS, 0)}
    assert totals.entries == 8


def test_simulated_disks_can_be_verified() -> None:
    disk = SimDisk()
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    driver.push_numbered(0, 3)
    driver.settle()
    driver.seal()
    driver.push_numbered(3, 2)
    driver.commit()
    totals = Totals()
    assert damage_in(list(verify(Tree(disk, "sim"), ".", deep=True, totals=totals))) == []
    assert (totals.segments, totals.bundles, totals.entries) == (1, 3, 2)


# --- files against each other ----------------------------------------------------------------------------------------------------


def progress_of(root: Path, entries: dict[int, SegmentProgress], oldest: int = 1) -> None:
    progress = SubscriberProgress(oldest_incomplete_seg=oldest, entries=entries, trusted_watermark=True)
    (root / PROGRESS).write_bytes(encode_progress(progress))


def test_progress_that_waits_for_a_deleted_segment_is_damage(store: Path) -> None:
    os.unlink(store / SEGMENT)
    (missing,) = damage_in(verified(store, deep=False))
    assert missing.code == "progress.missing_segment"
    assert "2 bundles of segment 1" in missing.message


def test_progress_that_waits_for_a_quarantined_segment_is_a_warning(store: Path) -> None:
    os.mkdir(store / ENGINE / "quarantine")
    os.rename(store / SEGMENT, store / ENGINE / "quarantine" / "0000000000000001.qseg.0")
    findings = verified(store, deep=False)
    assert damage_in(findings) == []
    assert {"progress.quarantined_segment", "quarantine"} <= codes(findings)


def test_progress_of_more_bundles_than_the_segment_has_is_damage(store: Path) -> None:
    progress_of(store, {1: SegmentProgress(5, b"\1" + bytes(7))})
    assert codes(damage_in(verified(store, deep=False))) == {"progress.bundle_count"}


def test_progress_of_segments_that_are_still_logs_is_fine(store: Path) -> None:
    progress_of(store, {3: SegmentProgress(2, b"\1" + bytes(7)), 4: SegmentProgress(1, bytes(8))})
    assert damage_in(verified(store, deep=False)) == []


def test_progress_ahead_of_all_numbers_is_a_warning(store: Path) -> None:
    progress_of(store, {}, oldest=1 << 40)
    assert "progress.ahead" in codes(verified(store, deep=False))


def test_segment_under_another_number_is_damage(store: Path) -> None:
    os.rename(store / SEGMENT, store / ENGINE / "segments" / "0000000000000009.qseg")
    found = damage_in(verified(store, deep=False))
    assert codes(found) == {"segment.name", "progress.missing_segment"}


def test_second_copy_of_a_segment_is_damage_and_a_warning(store: Path) -> None:
    (store / ENGINE / "segments" / "0000000000000009.qseg").write_bytes((store / SEGMENT).read_bytes())
    assert {"segment.name", "segment.overlap"} <= codes(verified(store, deep=False))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"incarnation": bytes(16)}, "file.origin"),
        ({"core_id": 3}, "core.id"),
        ({"next_segment_seq_reserved": 2}, "core.behind"),
        ({"next_sequence_reserved": 5}, "core.behind"),
        ({"clean_shutdown": True}, "core.clean"),
    ],
)
def test_core_file_that_does_not_fit_is_a_warning(store: Path, changes: dict[str, object], code: str) -> None:
    import dataclasses

    core = decode_core((store / CORE).read_bytes())
    (store / CORE).write_bytes(encode_core(dataclasses.replace(core, **changes)))  # type: ignore[arg-type]
    findings = verified(store, deep=False)
    assert damage_in(findings) == []
    assert code in codes(findings)


def test_cursor_ahead_of_the_log_is_a_warning(store: Path) -> None:
    (store / CURSOR).write_bytes(encode_cursor(1 << 30))
    assert "cursor.ahead" in codes(verified(store, deep=False))


def test_version_file_of_another_version_is_found(store: Path) -> None:
    (store / "quiver.version").write_bytes(b"quiver-data 4\n")
    assert codes(damage_in(verified(store, deep=False))) == {"version_file"}
    for version in (1, 2, 3):
        (store / "quiver.version").write_bytes(b"quiver-data %d\n" % version)
        assert damage_in(verified(store, deep=False)) == []


def test_leftovers_and_strangers_are_notes(store: Path) -> None:
    (store / ENGINE / "quiver.core.tmp").write_bytes(b"x")
    (store / ENGINE / "notes.txt").write_bytes(b"x")
    findings = verified(store)
    assert damage_in(findings) == []
    assert {"file.temporary", "file.unknown"} <= codes(findings)


# --- states that crashes leave ------------------------------------------------------------------------------------------------------


def test_half_sealed_log_is_a_note(store: Path) -> None:
    sealed = (store / SEGMENT).read_bytes()
    os.unlink(store / SEGMENT)
    (store / ENGINE / "wal" / "quiver.wal.2").write_bytes(sealed[:-40])
    findings = verified(store)
    assert damage_in(findings) == []
    assert "log.unfinished_seal" in codes(findings)


def test_sealed_log_that_lacks_its_name_is_a_note(store: Path) -> None:
    os.rename(store / SEGMENT, store / ENGINE / "wal" / "quiver.wal.2")
    findings = verified(store)
    assert damage_in(findings) == []
    assert "log.unrenamed_segment" in codes(findings)


# --- beside a running engine --------------------------------------------------------------------------------------------------------


class _Ingest(threading.Thread):
    """An engine that takes bundles, seals, delivers, acknowledges and deletes until it is told to stop."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._disk = PosixDisk(str(root))
        self._driver = EngineDriver(self._disk, topic_settings(segment_target_size_bytes=64 << 10))
        self.stop = threading.Event()
        self.error: BaseException | None = None
        self.rounds = 0

    def run(self) -> None:
        try:
            self._driver.engine.registrations.register("exporter", "earliest")
            while not self.stop.is_set():
                self._round()
                self.rounds += 1
        except BaseException as error:
            self.error = error
            raise
        finally:
            self._driver.engine.close()
            self._disk.close()

    def _round(self) -> None:
        driver = self._driver
        driver.push_numbered(self.rounds * 20, 20)
        driver.settle()
        if self.rounds % 3 == 0:
            driver.engine.seal_now()
            driver.settle()
        for segment_seq, indexes, *_ in driver.claim("exporter", "owner", 15):
            driver.resolve("exporter", "owner", segment_seq, "ack", indexes, 0)
        driver.flush_progress()


def test_running_engine_is_never_called_damaged(tmp_path: Path) -> None:
    ingest = _Ingest(tmp_path)
    ingest.start()
    looks = 0
    try:
        while (looks < 25 or ingest.rounds < 40) and ingest.is_alive():
            findings = verified(tmp_path, deep=looks % 2 == 0)
            assert [finding for finding in findings if finding.severity is not Severity.NOTE] == []
            looks += 1
    finally:
        ingest.stop.set()
        ingest.join(60)
    assert ingest.error is None
    assert ingest.rounds >= 40
    assert damage_in(verified(tmp_path)) == []


def test_copy_of_a_running_store_is_as_good_as_a_crash(healthy_store: Path, tmp_path: Path) -> None:
    """The fixture never closes its engine: what it left is what a kill leaves."""
    root = copy_store(healthy_store, tmp_path / "copy")
    disk = PosixDisk(str(root))
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=64 << 10))
    driver.settle()
    driver.drain_and_close()
    disk.close()
    assert verified(root) == []
