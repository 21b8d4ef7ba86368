from __future__ import annotations

import json
from pathlib import Path

import pytest

from quiver_actors.cli.main import main
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.files.data_version import DATA_VERSION
from quiver_actors.store.segment.reader import SegmentReader
from tests.support.engine_driver import EngineDriver, numbered_batch
from tests.support.held_directories import held_by_another
from tests.unit.cli.examples import run_examples

COUNT = 400


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two topics; segment 0 of each is worth compacting, segment 1 is not."""
    root = tmp_path / "data"
    root.mkdir()
    disk = PosixDisk(str(root))
    for topic in ("clicks", "default"):
        driver = EngineDriver(disk, directory=f"{topic}/core_0")
        driver.push_numbered(0, COUNT)
        driver.settle()
        driver.seal()
        driver.push({0: numbered_batch(COUNT, rows=5000)})
        driver.settle()
        driver.seal()
        driver.drain_and_close()
    disk.close()
    return root


def segment(data_dir: Path, topic: str = "default", segment_seq: int = 0) -> Path:
    return data_dir / topic / f"core_0/segments/{segment_seq:016}.qseg"


def sizes(data_dir: Path) -> dict[str, int]:
    return {str(path.relative_to(data_dir)): path.stat().st_size for path in sorted(data_dir.rglob("*.qseg"))}


def numbers(path: Path) -> list[int]:
    reader = SegmentReader(path.read_bytes())
    reader.verify_checksum()
    return [reader.bundle(index)[0].column(0)[0].as_py() for index in range(reader.bundle_count)]


def test_examples_run(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned, done = run_examples("compact", capsys, data_dir, tmp_path)
    assert "default/core_0: 2 segments, 1 would be rewritten, about " in planned
    assert "clicks/core_0: 2 segments, 1 rewritten, " in done
    assert "default" not in done


def test_a_dry_run_changes_nothing(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sizes(data_dir)
    assert main(["compact", "--data-dir", str(data_dir), "--dry-run"]) == 0
    assert sizes(data_dir) == before
    assert capsys.readouterr().out.count("are schemas and padding") == 2


def test_segments_that_pay_get_smaller_and_keep_their_bundles(
    data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sizes(data_dir)
    assert main(["compact", "--data-dir", str(data_dir), "--json"]) == 0
    after = sizes(data_dir)
    document = json.loads(capsys.readouterr().out)
    for topic in ("clicks", "default"):
        assert numbers(segment(data_dir, topic)) == list(range(COUNT))
        small, large = (str(segment(data_dir, topic, seq).relative_to(data_dir)) for seq in (0, 1))
        assert after[small] < before[small] * 0.75
        assert after[large] == before[large]
        found = document["engines"][f"{topic}/core_0"]
        assert [each["new_size_bytes"] for each in found] == [after[small], None]
        assert found[0]["saving_bytes"] == before[small] - after[small]


def test_it_is_done_once(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compact", "--data-dir", str(data_dir), "--topic", "default"]
    assert main(arguments) == 0
    first = segment(data_dir).stat().st_ino
    capsys.readouterr()
    assert main(arguments) == 0
    assert segment(data_dir).stat().st_ino == first
    assert "0 rewritten, 0 B less" in capsys.readouterr().out


def test_an_engine_opens_what_was_compacted(data_dir: Path) -> None:
    assert main(["compact", "--data-dir", str(data_dir)]) == 0
    disk = PosixDisk(str(data_dir))
    driver = EngineDriver(disk)
    driver.settle()
    driver.engine.registrations.register("s", "earliest")
    assert driver.claim_numbers("s") == list(range(COUNT + 1))
    assert driver.engine.recovery_notes == []
    driver.engine.close()
    disk.close()


def test_damaged_segments_are_left_alone_and_said(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = segment(data_dir)
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    assert main(["compact", "--data-dir", str(data_dir), "--topic", "default"]) == 5
    assert path.read_bytes() == data
    assert "segment 0: DAMAGED, left as it is" in capsys.readouterr().out


def test_it_refuses_a_directory_in_use(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sizes(data_dir)
    with held_by_another(data_dir / "quiver.node.lock"):
        assert main(["compact", "--data-dir", str(data_dir)]) == 3
    disk = PosixDisk(str(data_dir))
    lock = disk.lock("clicks/core_0/quiver.lock")
    assert lock is not None
    assert main(["compact", "--data-dir", str(data_dir)]) == 3
    lock.release()
    disk.close()
    assert sizes(data_dir) == before
    assert "quiver.lock is held" in capsys.readouterr().err


def test_an_unknown_topic_is_an_error(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", "--data-dir", str(data_dir), "--topic", "nothing"]) == 2
    assert "nothing" in capsys.readouterr().err


def test_a_directory_without_engines_is_named_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong path was "done" without a word, and got a lock file."""
    assert main(["compact", "--data-dir", str(tmp_path)]) == 0
    assert "no engine's directory is in it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("compact",), ("repair", "--yes"), ("repair", "--dry-run")])
def test_what_a_newer_program_wrote_is_left_to_it(
    command: tuple[str, ...], data_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data_dir / "quiver.version").write_text(f"quiver-data {DATA_VERSION + 1}\n")
    before = sizes(data_dir)
    assert main([*command, "--data-dir", str(data_dir)]) == 4
    assert "use the program that wrote it" in capsys.readouterr().err
    assert sizes(data_dir) == before
