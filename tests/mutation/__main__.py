"""Plants known-bad edits one at a time in a copy of the source and asks the tests: `python -m tests.mutation [--only NAME] [--jobs N]`.

For each edit the tests named beside it run first, then simulated nodes and the engine's sweeps, until something fails: it is caught.
The table and, last, one JSON line are printed; exit code 0 when at least 95 % were caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tests.mutation.edits import EDITS, Edit

ROOT = Path(__file__).parents[2]
CAUGHT_SHARE_MIN = 0.95
_SECONDS = 600
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
)


class Verdict(NamedTuple):
    edit: Edit
    caught_by: str
    """Empty: by nothing."""
    seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--only", default="", help="edits whose name has this in it")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    chosen = [edit for edit in EDITS if arguments.only in edit.name]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        verdicts = []
        for verdict in pool.map(examine, chosen):
            verdicts.append(verdict)
            print(f"{verdict.caught_by or 'NOT CAUGHT':<44} {verdict.seconds:6.1f} s  {verdict.edit.name}", flush=True)
    caught = sum(bool(verdict.caught_by) for verdict in verdicts)
    missed = [verdict.edit.name for verdict in verdicts if not verdict.caught_by]
    print(json.dumps({"edits": len(verdicts), "caught": caught, "missed": missed}))
    return 0 if caught >= CAUGHT_SHARE_MIN * len(verdicts) else 1


def examine(edit: Edit) -> Verdict:
    """Plant one edit and find out which tests notice."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="qv-mutation-") as made:
        copy = Path(made)
        for name in _COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        plant(copy, edit)
        caught_by = next((what for what, command in _questions(edit) if _fails(copy, command)), "")
    return Verdict(edit, caught_by, time.monotonic() - started)


def plant(root: Path, edit: Edit) -> None:
    """Make the edit in the source below `root`."""
    path = root / edit.file
    source = path.read_text(encoding="utf-8")
    if source.count(edit.old) != 1:
        raise ValueError(f"{edit.name}: its piece stands {source.count(edit.old)} times in {edit.file}")
    path.write_text(source.replace(edit.old, edit.new), encoding="utf-8")


def _questions(edit: Edit) -> list[tuple[str, list[str]]]:
    tests = [*edit.tests, "tests/unit/engine", "tests/sim/test_sweeps.py"]
    named = [(path, ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path]) for path in dict.fromkeys(tests)]
    simulated = ("tests.sim.node, 40 seeds", ["-m", "tests.sim.node", "--seeds", "0:40", "--steps", "1000"])
    return [named[0], simulated, *named[1:]]


def _fails(copy: Path, command: list[str]) -> bool:
    # The copy goes before an installed package; an endless loop is noticed, too.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [sys.executable, *command], cwd=copy, env=environment, capture_output=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
