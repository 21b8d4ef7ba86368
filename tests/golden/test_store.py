"""Whole directories: those of the Rust implementation open and deliver exactly what is owed, ours pass the independent parser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from quiver_actors.store.disk.posix import PosixDisk
from tests.golden.parser import parse_cursor, parse_log, parse_progress, parse_segment
from tests.golden.test_segments import DATA, DIRECTORIES, as_values, expected
from tests.support.engine_driver import EngineDriver, numbered_batch

OWED = [1, 4, 5, 6, 7, 8]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PosixDisk]:
    opened = PosixDisk(str(tmp_path))
    yield opened
    opened.close()


def opened_copy(disk: PosixDisk, tmp_path: Path, directory: str) -> EngineDriver:
    target = tmp_path / "default/core_0"
    shutil.copytree(DATA / directory, target)
    for path in target.rglob("*"):
        path.chmod(0o750 if path.is_dir() else 0o640)
    driver = EngineDriver(disk)
    driver.settle()
    return driver


def delivered(driver: EngineDriver, subscriber: str) -> list[tuple[int, dict[int, pa.RecordBatch]]]:
    return [
        (driver.read(segment_seq).sequence(index) or 0, driver.read(segment_seq).bundle(index))
        for segment_seq, indexes, *_ in driver.claim(subscriber, "owner", 100)
        for index in indexes
    ]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_rust_directory_delivers_exactly_what_its_readme_says(disk: PosixDisk, tmp_path: Path, directory: str) -> None:
    driver = opened_copy(disk, tmp_path, directory)
    bundles = [bundle for _, bundle in delivered(driver, "sub-a")]
    assert [as_values(bundle) for bundle in bundles] == [as_values(expected(i)) for i in OWED]
    assert [bundle[31].schema for bundle in bundles] == [expected(i)[31].schema for i in OWED]


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_rust_directory_opens_again_without_replaying_anything_twice(
    disk: PosixDisk, tmp_path: Path, directory: str
) -> None:
    driver = opened_copy(disk, tmp_path, directory)
    driver.engine._lock.release()
    driver.reopen()
    driver.settle()
    assert driver.engine.recovery_notes == []
    assert len(delivered(driver, "sub-a")) == len(OWED)
    (run,) = driver.push_numbered(0)
    assert run.sequence >= 9, "sequences go on behind those of the Rust log"
    assert run.segment_seq > 2


def test_adopted_entries_keep_time_and_sequence(disk: PosixDisk, tmp_path: Path) -> None:
    driver = opened_copy(disk, tmp_path, "quiver-v1")
    reader = driver.read(2)
    assert [reader.sequence(index) for index in range(4)] == [5, 6, 7, 8]
    assert [reader.ingestion_ts(index) for index in range(4)] == [1700000000000000000 + i for i in (5, 6, 7, 8)]


def test_files_of_ours_pass_the_independent_parser(disk: PosixDisk, tmp_path: Path) -> None:
    driver = EngineDriver(disk)
    driver.engine.registrations.register("s", "latest")
    words = [pa.array(["a", "b"]), pa.array(["a", "b", "c"]), pa.array(["x"])]
    driver.push(*({1: numbered_batch(number), 5: _with_dictionary(words[number % 3])} for number in range(6)))
    driver.commit()
    root = tmp_path / "default/core_0"
    log = parse_log((root / "wal/quiver.wal").read_bytes(), aligned=True)
    assert [entry.sequence for entry in log.entries] == list(range(6))
    driver.seal()
    ((segment_seq, indexes, *_),) = driver.claim("s", "x", 4)
    driver.resolve("s", "x", segment_seq, "ack", indexes, 0)
    driver.flush_progress()
    segment = parse_segment((root / "segments/0000000000000000.qseg").read_bytes())
    assert len(segment.bundles) == 6
    assert segment.in_place
    progress = parse_progress((root / "quiver.sub.s").read_bytes())
    assert progress.oldest_incomplete_seg == 0
    assert progress.resolved == {0: [True] * 4 + [False] * 2}
    assert parse_cursor((root / "wal/quiver.wal.cursor").read_bytes()) == driver.engine._parts.numbers.position


def _with_dictionary(values: pa.Array) -> pa.RecordBatch:
    return pa.record_batch({"d": pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), values)})
