"""What `verify` says, before a start, of entries that another writer has left."""

from __future__ import annotations

from pathlib import Path

from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.inspection.findings import Finding
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.inspection.verification import Totals, verify
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.other_writer import OtherWriter

DIRECTORY = "default/core_0"


def findings(root: Path) -> dict[str, Finding]:
    disk = PosixDisk(str(root))
    return {each.code: each for each in verify(Tree(disk, str(root)), ".", deep=True, totals=Totals())}


def killed(root: Path, pushed: int) -> PosixDisk:
    disk = PosixDisk(str(root))
    driver = EngineDriver(disk, directory=DIRECTORY)
    if pushed:
        driver.push_numbered(0, pushed)
        driver.commit()
    driver.engine._lock.release()
    return disk


def test_a_log_that_another_writer_has_sealed_is_not_said_to_go(tmp_path: Path) -> None:
    other = OtherWriter(killed(tmp_path, 5), DIRECTORY)
    other.seal()
    other.append({0: numbered_batch(9)})
    found = findings(tmp_path)["log.sealed_already"]
    assert "another writer has made segment 0, the number of this log of 6 entries" in found.message
    assert "adopts the entries that the segment does not hold" in found.action


def test_entries_in_a_log_of_another_writer_are_said_to_be_adopted(tmp_path: Path) -> None:
    other = OtherWriter(killed(tmp_path, 0), DIRECTORY)
    other.append({0: numbered_batch(9)})
    found = findings(tmp_path)["log.other_writer"]
    assert found.message == "holds entries of another writer: 1"
    assert "adopts" in found.action
