"""Every code block of the documentation works, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from quiver_actors.node.leftovers import is_asked_for
from quiver_actors.shm.liveness import recorded_name, sweep_named_memory
from tests.docs.pages import ELSEWHERE, ROOT, blocks_of, pages

_PAGE_SECONDS = 300
WITH_TEXT_IN_COLUMNS = ("benchmarks",)
"""What the measuring programs say about their methods."""
SPARK = "--master local[2] --conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"
"""Spark settings of a small machine: with the default of 200 tasks, ten rows take a minute. In a file, they would be in a directory of the
class path, which the archive of Spark's classes does not have."""
_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


@pytest.fixture
def empty_home() -> Iterator[Path]:
    """Home, temporary and run directory of one page; short, since sockets have short addresses."""
    made = Path(tempfile.mkdtemp(prefix="qv-doc-"))
    (made / "work").mkdir()
    yield made
    sweep_named_memory(recorded_name(made / "run" / "node.json"), is_asked_for)
    shutil.rmtree(made)


def environment(home: Path) -> dict[str, str]:
    (home / "bin").mkdir()
    command = home / "bin" / "quiver"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m quiver_actors.cli.main "$@"\n')
    command.chmod(0o755)
    (home / "bin" / "python").symlink_to(sys.executable)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIVER_")}
    return kept | {
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "QUIVER_RUN_DIR": str(home / "run"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": SPARK,
        "PYTHONUNBUFFERED": "1",
    }


@pytest.mark.timeout(_PAGE_SECONDS + 60)
@pytest.mark.parametrize("page", [page for page in pages() if any(blocks_of(page))], ids=lambda page: page.stem)
def test_every_block_works(page: Path, empty_home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_page", str(page), str(empty_home / "work")],
        cwd=ROOT,
        env=environment(empty_home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_PAGE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_block_says_what_it_is(page: Path) -> None:
    unnamed = [block.line for block in blocks_of(page) if not block.language]
    assert unnamed == []


def test_what_is_not_run_here_is_listed_with_the_reason() -> None:
    found = [(page.stem, block) for page in pages() for block in blocks_of(page)]
    unrun = [(page, block.code) for page, block in found if block.mode in ("elsewhere", "continued")]
    assert [at for at in unrun if not any(at[0] == page and at[1].startswith(code) for page, code in ELSEWHERE)] == []
    assert len(unrun) == len(ELSEWHERE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.stem)
def test_every_block_has_a_fence_and_so_is_run(page: Path) -> None:
    lines = outside_fences(page.read_text(encoding="utf-8"))
    indented = [now for before, now in pairwise(lines) if not before.strip() and now.startswith("    ")]
    assert page.stem in WITH_TEXT_IN_COLUMNS or indented == []


def outside_fences(text: str) -> list[str]:
    found, is_inside = [], False
    for line in text.splitlines():
        is_fence = line.lstrip().startswith("```")
        if not is_fence and not is_inside:
            found.append(line)
        is_inside ^= is_fence
    return found
