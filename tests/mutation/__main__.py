"""Plants known-bad edits one at a time in a copy of the source and asks the tests: `python -m tests.mutation [--part FIRST:END]`.

For each edit the cheapest questions come first: the tests named beside it, simulated nodes, then ever longer suites, until something
fails. What fails is asked again without the edit, and counts only if it passes there: then the edit is caught. The table and, last, one
JSON line are printed; exit code 0 when at least 95 % were caught. With `--keep FILE` a long run may be done in parts: what was caught is
kept there and not asked again, unless the edit was changed. The file is worth as much as the source stays as it was.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from tests.mutation.edit import Edit
from tests.mutation.edits import EDITS

ROOT = Path(__file__).parents[2]
CAUGHT_SHARE_MIN = 0.95
_SECONDS = 900
_COPIED = (
    "quiver_actors",
    "pyspark_quiver",
    "shm",
    "supervisor",
    "tests",
    "benchmarks",
    "pyproject.toml",
    "docs",
    "README.md",
    "examples",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)
_PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")
_UNIT = "tests/unit/store/engine"
_NODE = ("-m", "tests.sim.node", "--steps", "1000")
_FAILED_TEST = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - |$)", re.MULTILINE)
_FAILED_SEED = re.compile(r"^seed (\d+) fails", re.MULTILINE)


class Verdict(NamedTuple):
    edit: Edit
    is_caught: bool
    caught_by: str
    seconds: float


class Failure(NamedTuple):
    """A check that fails with an edit, and the shortest command that repeats it."""

    name: str
    command: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--only", default="", help="edits whose name has this in it")
    parser.add_argument("--part", default="0:", help="FIRST:END of the table")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", type=Path, help="a file of what was caught: it is not asked again")
    arguments = parser.parse_args()
    first, _, end = arguments.part.partition(":")
    chosen = [edit for edit in EDITS[int(first) : int(end or len(EDITS))] if arguments.only in edit.name]
    verdicts = []
    for verdict in _verdicts(chosen, arguments.jobs, arguments.keep):
        verdicts.append(verdict)
        print(f"{verdict.seconds:6.1f} s  {verdict.edit.name:<55} {verdict.caught_by}", flush=True)
    caught = sum(verdict.is_caught for verdict in verdicts)
    missed = [verdict.edit.name for verdict in verdicts if not verdict.is_caught]
    seconds = round(sum(verdict.seconds for verdict in verdicts))
    print(json.dumps({"edits": len(verdicts), "caught": caught, "missed": missed, "seconds": seconds}))
    return 0 if caught >= CAUGHT_SHARE_MIN * len(verdicts) else 1


def _verdicts(chosen: Sequence[Edit], jobs: int, keep: Path | None) -> Iterator[Verdict]:
    """Yield the verdicts in the order of the table: kept ones, and those found out now."""
    kept = _read_kept(keep)
    with tempfile.TemporaryDirectory(prefix="qv-mutation-") as made, ThreadPoolExecutor(jobs) as pool:
        copies: queue.SimpleQueue[Path] = queue.SimpleQueue()
        for number in range(jobs):
            copies.put(_copy_to(Path(made) / str(number)))
        for verdict in pool.map(lambda edit: kept.get(edit.name) or _examine_in_one_of(copies, edit), chosen):
            if keep is not None and verdict.is_caught and verdict.edit.name not in kept:
                _keep(keep, verdict)
            yield verdict


def _read_kept(path: Path | None) -> dict[str, Verdict]:
    """Return the kept verdicts by name of the edit, without those of edits that have changed."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    now = {(edit.name, _digest(edit)): edit for edit in EDITS}
    found = [json.loads(line) for line in lines]
    return {name: Verdict(now[name, of], *rest) for name, of, *rest in found if (name, of) in now}


def _keep(path: Path, verdict: Verdict) -> None:
    with path.open("a") as file:
        file.write(json.dumps([verdict.edit.name, _digest(verdict.edit), *verdict[1:]]) + "\n")


def _digest(edit: Edit) -> int:
    return crc32("\0".join((edit.file, edit.old, edit.new)).encode())


def _copy_to(copy: Path) -> Path:
    copy.mkdir()
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


def _examine_in_one_of(copies: queue.SimpleQueue[Path], edit: Edit) -> Verdict:
    copy = copies.get()
    try:
        return examine(copy, edit)
    finally:
        copies.put(copy)


def examine(copy: Path, edit: Edit) -> Verdict:
    """Plant one edit in a copy of the source and find out what notices."""
    started = time.monotonic()
    with planted(copy, edit):
        failures = (failure for question in _questions(edit) if (failure := _failure(copy, question)) is not None)
        noticed = next(failures, None)
    seconds = time.monotonic() - started
    if noticed is None:
        return Verdict(edit, False, "NOT CAUGHT", seconds)
    if _failure(copy, noticed.command) is not None:
        return Verdict(edit, False, f"NOTHING KNOWN: {noticed.name} fails without the edit, too", seconds)
    return Verdict(edit, True, noticed.name, seconds)


@contextmanager
def planted(root: Path, edit: Edit) -> Iterator[None]:
    """The edit stands in the source below `root` for as long as this lasts."""
    path = root / edit.file
    source = path.read_text(encoding="utf-8")
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.name}: its piece stands {source.count(edit.old)} times in {edit.file}")
    path.write_text(source.replace(edit.old, edit.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(source, encoding="utf-8")


def _questions(edit: Edit) -> list[tuple[str, ...]]:
    simulated = (*_NODE, "--seeds", "0:40", "--first-failure")
    tests = [(*_PYTEST, path) for path in edit.tests]
    return [*tests, simulated, (*_PYTEST, _UNIT)]


def _failure(copy: Path, command: tuple[str, ...]) -> Failure | None:
    # The copy goes before an installed package; an endless loop is noticed, too.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Failure(f"{command[-1]} does not end", command)
    if done.returncode == 0:
        return None
    if seed := _FAILED_SEED.search(done.stdout):
        return Failure(f"tests.sim.node, seed {seed[1]}", (*_NODE, "--seed", seed[1]))
    if test := _FAILED_TEST.search(done.stdout):
        return Failure(test[1], (*_PYTEST, test[1]))
    return Failure(" ".join(command), command)


if __name__ == "__main__":
    sys.exit(main())
