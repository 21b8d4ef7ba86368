"""`quiver subscribers export --format rust`: what that implementation reads, and what it is owed by it."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from quiver_actors.base.config import RetentionSettings
from quiver_actors.cli.main import main
from quiver_actors.store.disk.posix import PosixDisk
from tests.golden.parser import parse_progress
from tests.support.engine_driver import EngineDriver, topic_settings
from tests.support.other_writer import OtherWriter
from tests.unit.store.inspection.stores import snapshot

DIRECTORY = "default/core_0"


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Segment 0 is done and kept, of segment 1 two of four bundles are, segment 2 is untouched."""
    root = tmp_path / "data"
    root.mkdir()
    settings = topic_settings(retention=RetentionSettings(steady_state_headroom_bytes=1 << 30))
    driver = EngineDriver(PosixDisk(str(root)), settings)
    driver.engine.registrations.register("exporter", "earliest")
    for first in (0, 4, 8):
        driver.push_numbered(first, 4)
        driver.settle()
        driver.seal()
    for segment_seq, indexes, *_ in driver.claim("exporter", "x", 6):
        driver.resolve("exporter", "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    driver.drain_and_close()
    return root


def export(data_dir: Path, out: Path, *more: str) -> int:
    return main(["subscribers", "export", "exporter", "--data-dir", str(data_dir), "--out", str(out), *more])


def test_what_is_written_is_what_the_other_implementation_goes_by(data_dir: Path, tmp_path: Path) -> None:
    assert export(data_dir, tmp_path / "out", "--format", "rust") == 0
    content = (tmp_path / "out/default/core_0/quiver.sub.exporter").read_bytes()
    assert zlib.crc32(content[:-4]) == int.from_bytes(content[-4:], "little")
    assert content[12:14] == bytes(2), "no flag that it does not know"
    progress = parse_progress(content)
    assert progress.resolved[0] == [True] * 4, "complete, and still there: it would be delivered again"
    assert progress.resolved[1] == [True, True, False, False]
    assert 2 not in progress.resolved or not any(progress.resolved[2])


def test_an_own_start_believes_what_was_exported(data_dir: Path, tmp_path: Path) -> None:
    export(data_dir, tmp_path / "out")
    name = "default/core_0/quiver.sub.exporter"
    (data_dir / name).write_bytes((tmp_path / "out" / name).read_bytes())
    driver = EngineDriver(PosixDisk(str(data_dir)))
    driver.settle()
    assert driver.claim_numbers("exporter") == [6, 7, 8, 9, 10, 11]


def test_nothing_is_overwritten_and_nobody_is_made_up(
    data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(data_dir, tmp_path / "out", "--json") == 0
    (written,) = json.loads(capsys.readouterr().out)["files"]
    assert written.endswith("default/core_0/quiver.sub.exporter")
    assert export(data_dir, tmp_path / "out") == 2
    assert "exists" in capsys.readouterr().err
    assert main(["subscribers", "export", "stranger", "--data-dir", str(data_dir)]) == 2
    assert "stranger" in capsys.readouterr().err


def test_what_only_the_journal_says_is_exported_too(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    driver = EngineDriver(PosixDisk(str(tmp_path / "data")))
    for subscriber in ("exporter", "other"):
        driver.engine.registrations.register(subscriber, "earliest")
    driver.push_numbered(0, 4)
    driver.seal()
    for index in range(2):
        for subscriber in ("exporter", "other"):
            driver.claim(subscriber, "x", 1)
            driver.resolve(subscriber, "x", 0, "ack", [index])
        driver.flush_progress()
    assert (tmp_path / "data/default/core_0/quiver.progress.tmp").exists()
    driver.engine.close()
    assert export(tmp_path / "data", tmp_path / "out", "--format", "rust") == 0
    content = (tmp_path / "out/default/core_0/quiver.sub.exporter").read_bytes()
    assert parse_progress(content).resolved[0] == [True, True, False, False]


def killed(root: Path) -> EngineDriver:
    """Four bundles in a log, of which two are resolved."""
    root.mkdir()
    driver = EngineDriver(PosixDisk(str(root)), directory=DIRECTORY)
    driver.engine.registrations.register("exporter", "earliest")
    driver.push_numbered(0, 4)
    driver.commit()
    ((segment_seq, indexes, *_),) = driver.claim("exporter", "x", 2)
    driver.resolve("exporter", "x", segment_seq, "ack", indexes)
    driver.flush_progress()
    return driver


def test_what_a_killed_node_has_left_in_its_log_is_sealed_first(tmp_path: Path) -> None:
    """The other implementation would replay the log into a segment of whatever number, of which the progress says nothing."""
    killed(tmp_path / "data").engine.close()
    assert OtherWriter(PosixDisk(str(tmp_path / "data")), DIRECTORY).open_bundles
    assert export(tmp_path / "data", tmp_path / "out", "--format", "rust") == 0
    content = (tmp_path / "out" / DIRECTORY / "quiver.sub.exporter").read_bytes()
    assert parse_progress(content).resolved == {0: [True, True, False, False]}
    (segment,) = (tmp_path / "data" / DIRECTORY / "segments").iterdir()
    assert segment.name == "0000000000000000.qseg"
    assert not OtherWriter(PosixDisk(str(tmp_path / "data")), DIRECTORY).open_bundles
    driver = EngineDriver(PosixDisk(str(tmp_path / "data")), directory=DIRECTORY)
    driver.settle()
    assert driver.claim_numbers("exporter") == [2, 3]


def test_an_open_directory_and_one_with_losses_are_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = killed(tmp_path / "data")
    assert export(tmp_path / "data", tmp_path / "out") == 3
    assert "stop it first" in capsys.readouterr().err
    driver.engine.close()
    with (tmp_path / "data" / DIRECTORY / "wal/quiver.wal").open("r+b") as log:
        log.seek(1_000)
        log.write(b"damage")
    before = snapshot(tmp_path / "data")
    assert export(tmp_path / "data", tmp_path / "out") != 0
    assert "start the node, stop it, and export again" in capsys.readouterr().err
    assert snapshot(tmp_path / "data") == before
    assert not (tmp_path / "out").exists()
