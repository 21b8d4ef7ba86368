"""What `verify` says of the next start is what the next start does: it names whose entries are dropped, lost or renamed, and never passes
over them."""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from quiver_actors.cli.main import main
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.inspection.findings import Finding
from tests.disks.faulty import FaultyDisk
from tests.support.engine_driver import EngineDriver, numbered_batch, topic_settings
from tests.support.other_writer import OtherWriter
from tests.unit.store.inspection.stores import snapshot, verified

DIRECTORY = "default/core_0"
PATHS = EnginePaths(DIRECTORY)
UNKNOWN_TYPE = 9


def start(root: Path) -> EngineDriver:
    driver = EngineDriver(PosixDisk(str(root)), topic_settings(segment_target_size_bytes=64 << 10), DIRECTORY)
    driver.settle()
    return driver


def kill(driver: EngineDriver) -> None:
    driver.engine._lock.release()


def said(root: Path) -> list[Finding]:
    return [finding for finding in verified(root, deep=False) if finding.code.startswith("start.")]


# --- scenes ------------------------------------------------------------------------------------------------------------------------


def other_writer_numbers_from_0_again(root: Path) -> None:
    """Everything of ours was delivered and deleted; another writer finds no segment and begins at number 0."""
    driver = start(root)
    driver.engine.registrations.register("s", "earliest")
    driver.push_numbered(0, 5)
    driver.settle()
    driver.seal()
    for segment_seq, indexes, *_ in driver.claim("s", "x", 5):
        driver.resolve("s", "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    assert driver.engine.segments() == []
    kill(driver)
    other = OtherWriter(PosixDisk(str(root)), DIRECTORY)
    other.append({0: numbered_batch(1_000)})
    assert other.seal() == 0


def append_of_unknown_type(root: Path) -> None:
    """Append a bundle as another writer does, under a type that nobody knows, and a usual one behind it."""
    other = OtherWriter(PosixDisk(str(root)), DIRECTORY)
    first = other.end
    other.append({0: numbered_batch(1_000)})
    path = root / PATHS.active
    data = bytearray(path.read_bytes())
    body = bytes([UNKNOWN_TYPE]) + bytes(data[first + 5 : other.end - 4])
    data[first + 4 : other.end] = body + zlib.crc32(body).to_bytes(4, "little")
    path.write_bytes(data)
    other.append({0: numbered_batch(1_001)})


def entry_of_unknown_type_in_another_writers_log(root: Path) -> None:
    kill(start(root))
    append_of_unknown_type(root)


def entry_of_unknown_type_in_a_log_of_ours(root: Path) -> None:
    driver = start(root)
    driver.push_numbered(0, 5)
    driver.commit()
    kill(driver)
    append_of_unknown_type(root)


def segment_that_nobody_has_read_is_gone(root: Path) -> None:
    driver = start(root)
    driver.engine.registrations.register("s", "earliest")
    driver.flush_progress()
    for first in (0, 3, 6):
        driver.push_numbered(first, 3)
        driver.settle()
        driver.seal()
    kill(driver)
    os.unlink(root / PATHS.segment(1))


def log_between_others_is_gone(root: Path) -> None:
    disk = FaultyDisk(PosixDisk(str(root)))
    disk.fail("truncate", 1, errno.ENOSPC, then=["truncate"])  # only a seal cuts a log
    driver = EngineDriver(disk, topic_settings(segment_target_size_bytes=4 << 10, wal_max_rotated_files=8), DIRECTORY)
    driver.engine.registrations.register("s", "earliest")
    for first in (0, 3, 6):
        driver.push_numbered(first, 3)
        driver.commit()
        driver.engine.seal_now()
        driver.commit()
        driver.run_background()
    driver.flush_progress()
    driver.engine.close()
    os.unlink(sorted((root / PATHS.wal).glob("quiver.wal.[0-9]*"))[1])


SCENES: dict[Callable[[Path], None], tuple[str, str]] = {
    other_writer_numbers_from_0_again: ("start.renumbered", "segment 0 of another writer is new data"),
    entry_of_unknown_type_in_another_writers_log: ("start.span_aside", "of type 9, which nobody knows"),
    entry_of_unknown_type_in_a_log_of_ours: ("start.span_aside", "of type 9, which nobody knows"),
    segment_that_nobody_has_read_is_gone: ("start.lost", "3 bundles are lost"),
    log_between_others_is_gone: ("start.lost", "the log of segment 1 is gone: 3 bundles are lost"),
}
LOSING = [scene for scene, (code, _) in SCENES.items() if code != "start.renumbered"]


def name_of(scene: Callable[[Path], None]) -> str:
    return scene.__name__


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


# --- tests -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scene", SCENES, ids=name_of)
def test_what_the_start_will_do_is_said_before_and_is_what_it_does(root: Path, scene: Callable[[Path], None]) -> None:
    scene(root)
    code, words = SCENES[scene]
    before = snapshot(root)
    matching = [finding for finding in said(root) if finding.code == code]
    assert len(matching) == 1
    assert words in matching[0].message
    assert matching[0].action
    assert snapshot(root) == before, "a look changes nothing"
    driver = start(root)
    assert any(words in note for note in driver.engine.recovery_notes), driver.engine.recovery_notes
    driver.drain_and_close()
    assert said(root) == [], "what was told is told"


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("scene", LOSING, ids=name_of)
def test_entries_that_would_be_dropped_or_lost_are_damage_for_the_exit_code_and_the_document(
    root: Path, scene: Callable[[Path], None], deep: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    scene(root)
    assert main(["verify", "--data-dir", str(root), "--json", *(["--deep"] if deep else [])]) == 5
    shown = capsys.readouterr()
    document: dict[str, Any] = json.loads(shown.out)
    assert not document["ok"]
    (found,) = [each for each in document["findings"] if each["code"] == SCENES[scene][0]]
    assert found["severity"] == "damage"
    assert found["path"].startswith(str(root))
    assert shown.err == ""
    assert main(["verify", str(root / DIRECTORY)]) == 5
    assert SCENES[scene][1] in capsys.readouterr().out


def test_a_segment_that_gets_another_number_is_a_warning(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other_writer_numbers_from_0_again(root)
    assert main(["verify", "--data-dir", str(root)]) == 0
    assert "it becomes segment" in capsys.readouterr().out


def test_without_a_record_what_counts_as_delivered_is_a_warning(root: Path) -> None:
    """A program that kept no record of other writers was here last: nobody can tell new segments from delivered ones."""
    other_writer_numbers_from_0_again(root)
    os.unlink(root / PATHS.foreign)
    (found,) = [finding for finding in said(root) if finding.code == "start.taken_for_delivered"]
    assert found.severity == "warning"
    assert found.path == str(root / PATHS.segment(0))


def test_nothing_is_said_of_a_start_while_an_engine_has_the_directory_open(root: Path) -> None:
    entry_of_unknown_type_in_a_log_of_ours(root)
    assert said(root)
    lock = PosixDisk(str(root)).lock(PATHS.lock)
    assert lock is not None
    assert said(root) == []
    lock.release()
