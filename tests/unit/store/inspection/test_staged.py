"""Staged bundles under inspection: whole ones are whole, damaged ones are found, and recovery gives up no more than is damaged."""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.cli.main import main
from quiver_actors.errors import TransactionLost
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.inspection.findings import Severity
from quiver_actors.store.inspection.look import look_at
from quiver_actors.store.inspection.repair import repair_engine
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.inspection.views import FileView
from quiver_actors.store.staged.keys import KeyRun, Windows
from tests.disks.faulty import FaultyDisk, SimulatedCrash
from tests.support.engine_driver import topic_settings
from tests.support.stage_driver import StageDriver, order
from tests.unit.store.inspection.stores import flip, verified

ENGINE = "default/core_0"
STAGED = f"{ENGINE}/staged"
PUBLISHED = f"{ENGINE}/segments/0000000000000000.qseg"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A published stage of three bundles, a prepared one, a dropped one, windows of a producer."""
    disk = PosixDisk(str(tmp_path))
    driver = StageDriver(disk, topic_settings())
    driver.publish(driver.prepared(1, 2, 3))
    driver.prepared(4, 5, wanted=order(txn_id="waiting"))
    driver.drop(driver.prepared(6, wanted=order(txn_id="gone")))
    driver.engine.close()
    windows = Windows()
    windows.add("p", KeyRun(1, 2, 3, 4, 5))
    (tmp_path / ENGINE / "quiver.producers").write_bytes(windows.encode())
    return tmp_path


def look(root: Path, name: str) -> FileView:
    with contextlib.closing(PosixDisk(str(root))) as disk, Tree(disk, str(root)).open(name) as source:
        return look_at(source, deep=True, limit=10)


def wrong(root: Path) -> list[str]:
    return [finding.code for finding in verified(root) if finding.severity is not Severity.NOTE]


def test_a_healthy_directory_has_nothing_wrong(store: Path) -> None:
    assert wrong(store) == []


def test_every_file_is_known_and_shown(store: Path) -> None:
    names = {path.name for path in (store / STAGED).iterdir()}
    assert names == {"0000000000000002.prepared", "0000000000000002.0000.stage"}
    record = look(store, f"{STAGED}/0000000000000002.prepared")
    assert record.kind == "prepared stage"
    assert record.text is not None
    assert '"txn_id": "waiting"' in record.text
    assert '"reason": "aborted"' in str(look(store, f"{ENGINE}/quiver.transactions").text)
    assert look(store, f"{ENGINE}/quiver.producers").kind == "idempotent producers"
    part = look(store, f"{STAGED}/0000000000000002.0000.stage")
    assert part.log is not None
    assert [(entry.entry_type, entry.sequence, len(entry.slots)) for entry in part.log.entries] == [
        (2, 0, 1),
        (2, 1, 1),
    ]
    assert part.findings == []


def test_a_published_stage_is_a_segment_like_any_other(store: Path) -> None:
    segment = look(store, PUBLISHED)
    assert segment.findings == []
    assert segment.segment is not None
    assert segment.segment.bundle_count == 3
    assert segment.segment.log is not None
    assert segment.segment.log.first_sequence == segment.segment.first_sequence


def test_a_kill_at_any_call_of_a_publish_leaves_no_damage(tmp_path: Path) -> None:
    for calls in itertools.count():
        root = tmp_path / str(calls)
        root.mkdir()
        disk = FaultyDisk(PosixDisk(str(root)))
        driver = StageDriver(disk, topic_settings())
        numbers = [driver.prepared(1, 2), driver.prepared(3, 4)]
        disk.crash_at(disk.mutating_count + 1 + calls)
        is_done = publishes(driver, numbers)
        driver.engine._lock.release()
        assert [finding for finding in verified(root) if finding.severity is Severity.DAMAGE] == [], calls
        if is_done:
            break
    assert calls > 10


def publishes(driver: StageDriver, numbers: list[int]) -> bool:
    """Publish the stages; whether the disk let that end."""
    try:
        driver.publish(*numbers)
    except SimulatedCrash:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "code"), [("0000000000000002.prepared", "stage.record"), ("0000000000000002.0000.stage", "stage.part")]
)
def test_damage_is_found_and_costs_that_stage_only(store: Path, name: str, code: str) -> None:
    flip(store / STAGED / name, 300 if code == "stage.part" else 30, 0x10)
    assert code in wrong(store)
    driver = StageDriver(PosixDisk(str(store)), topic_settings())
    assert list(driver.engine.stages) == []
    assert driver.stored() == [1, 2, 3]
    assert any(path.name.startswith(name) for path in (store / ENGINE / "quarantine").iterdir())
    with pytest.raises(TransactionLost, match="damaged"):
        driver.publish(2, txn_id="waiting")


def test_a_damaged_journal_and_damaged_windows_go_to_quarantine(store: Path) -> None:
    for name in ("quiver.transactions", "quiver.producers"):
        flip(store / ENGINE / name, 30, 0x10)
    assert wrong(store) == ["stage.record", "producers"]
    driver = StageDriver(PosixDisk(str(store)), topic_settings())
    driver.publish(2, txn_id="waiting")
    assert driver.stored() == [1, 2, 3, 4, 5]
    assert len(list((store / ENGINE / "quarantine").iterdir())) == 2


def test_repair_settles_what_a_start_would(store: Path) -> None:
    for name in ("quiver.transactions", "quiver.producers", "staged/0000000000000002.prepared"):
        flip(store / ENGINE / name, 30, 0x10)
    with contextlib.closing(PosixDisk(str(store))) as disk:
        repair = repair_engine(Tree(disk, ""), ENGINE, topic_settings(), dry_run=False)
    assert repair.is_whole
    assert sorted({finding.code for finding in repair.damage}) == ["producers", "stage.record"]
    assert any("found again in the 1 segments" in note for note in repair.notes)
    assert wrong(store) == []


def test_a_damaged_published_segment_is_rescued_like_any_other(store: Path) -> None:
    driver = StageDriver(PosixDisk(str(store)), topic_settings())
    driver.engine.registrations.register("s", "earliest")
    driver.settle()
    driver.engine.close()
    segment = look(store, PUBLISHED)
    assert segment.segment is not None
    assert segment.segment.log is not None
    flip(store / PUBLISHED, segment.segment.log.entries[1].offset + 200)
    driver = StageDriver(PosixDisk(str(store)), topic_settings())
    driver.settle()
    assert driver.claim_numbers("s") == [1, 3]
    assert [(notice.bundle_index_first, notice.bundle_count, notice.reason) for notice in driver.told] == [
        (1, 1, "damaged")
    ]
    reader = driver.read(0)
    assert [reader.sequence(index) for index in range(3)] == [0, 1, 2]


def test_staged_bundles_can_be_exported_and_looked_at(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = store / STAGED / "0000000000000002.0000.stage"
    assert main(["export-segment", str(part), "--out", str(store / "out")]) == 0
    (exported,) = (store / "out").iterdir()
    assert pa.ipc.open_file(exported).read_all().column("number").unique().to_pylist() == [4, 5]
    capsys.readouterr()
    assert main(["inspect", str(part)]) == 0
    assert "0: 5 rows" in capsys.readouterr().out
