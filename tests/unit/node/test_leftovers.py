"""What a killed node leaves: which page is still asked for, and in which order things go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from quiver_actors.node.leftovers import is_asked_for, sweep
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.names import new_name, unlink_name
from quiver_actors.supervisor.figures import RUN_DIRECTORY_ROW, SUPERVISOR_REGION


@pytest.fixture
def page_of(tmp_path: Path) -> Iterator[str]:
    """The page of a node of `tmp_path`, which this process holds as workers do: no other node removes it."""
    page = CountersPage.create(new_name(), 2, 8)
    writer = page.writer(SUPERVISOR_REGION)
    writer.begin(1, 1)
    writer.row(RUN_DIRECTORY_ROW, str(tmp_path))
    yield page.name
    page.close()
    unlink_name(page.name)


def record(run_dir: Path, name: str) -> None:
    (run_dir / "node.json").write_text(json.dumps({"counters": name}))


def test_a_page_is_asked_for_as_long_as_its_run_directory_names_it(tmp_path: Path, page_of: str) -> None:
    assert not is_asked_for(page_of)
    record(tmp_path, page_of)
    assert is_asked_for(page_of)
    record(tmp_path, new_name())
    assert not is_asked_for(page_of)
    assert not is_asked_for(new_name())


def test_the_record_goes_before_the_page_that_it_names(tmp_path: Path, page_of: str) -> None:
    """A start that was killed in between left a record without a page: dead, and left no figures."""
    record(tmp_path, page_of)
    (tmp_path / "core_0.sock").mkdir()  # where this sweep ends
    with pytest.raises(OSError, match=r"core_0\.sock"):
        sweep(str(tmp_path))
    assert not (tmp_path / "node.json").exists()
    assert Path(f"/dev/shm{page_of}").exists()
    (tmp_path / "core_0.sock").rmdir()
    record(tmp_path, page_of)
    sweep(str(tmp_path))
    assert not Path(f"/dev/shm{page_of}").exists()


def test_a_node_elsewhere_leaves_a_page_that_is_asked_for(tmp_path: Path) -> None:
    """Try several times: other nodes of this machine, of any version, remove pages too."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    kept = 0
    for _ in range(20):
        page = CountersPage.create(new_name(), 2, 8)
        writer = page.writer(SUPERVISOR_REGION)
        writer.begin(1, 1)
        writer.row(RUN_DIRECTORY_ROW, str(tmp_path))
        record(tmp_path, page.name)
        del writer
        page.close()
        sweep(str(elsewhere))
        kept += unlink_name(page.name)
    assert kept
