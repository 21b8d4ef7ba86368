"""Which branches of the code that keeps the promise no test takes: `python -m tests.coverage_check`; `make coverage`.

Measured: the log, segments, subscribers, retention and recovery, by the suites that run in one process. Every line and branch that is
not taken is printed, unless its function stands in `EXCLUDED` with a reason; exit code 1 if something is left.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MEASURED = ("wal", "segment", "subscriber", "retention", "recovery")
"""Packages of quiver_actors."""
SUITES: tuple[tuple[str, ...], ...] = (
    (
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "timeout=0",
        *(
            f"tests/unit/{name}"
            for name in ("wal", "segment", "subscriber", "retention", "recovery", "engine", "transactions")
        ),
        "tests/contract",
        "tests/golden",
        "tests/property/test_contents.py",
        "tests/property/test_parsers.py",
        # Works in processes of its own, which are not measured.
        "--deselect=tests/property/test_parsers.py::test_mutants_are_refused_with_errors_of_ours_in_time_and_memory",
        "tests/property/test_subscriber_claims.py",
        "tests/property/test_subscriber_progress.py",
        "tests/property/test_uniform_pushes.py",
    ),
    ("tests.sim.node", "--seeds", "0:12", "--steps", "2000"),
)
EXCLUDED: dict[str, str] = {}
"""`package/file.py:function` to the reason why nothing of it, or not all of it, is taken."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="qv-coverage-") as made:
        environment = os.environ | {"COVERAGE_FILE": str(Path(made, "data")), "PYTHONHASHSEED": "0"}
        failed = [suite[0] for suite in SUITES if _run(environment, suite)]
        _coverage(environment, "combine", "--quiet")
        report = Path(made, "report.json")
        _coverage(environment, "json", "--quiet", "-o", str(report))
        found = json.loads(report.read_text())
    for suite in failed:
        print(f"failed: {suite}: what it would have taken is missing below")
    left = list(_left(found["files"]))
    for line in left:
        print(line)
    for name, reason in EXCLUDED.items():
        print(f"excluded: {name}: {reason}")
    totals = found["totals"]
    figures = {
        "coverage_lines": totals["num_statements"],
        "coverage_branches": totals["num_branches"],
        "coverage_branches_taken": totals["covered_branches"],
        "coverage_percent": round(totals["percent_covered"], 2),
        "functions_with_something_left": len(left),
        "functions_excluded": len(EXCLUDED),
    }
    print(json.dumps(figures))
    return bool(left or failed)


def _run(environment: dict[str, str], suite: tuple[str, ...]) -> int:
    command = ["run", "--parallel-mode", "--branch", f"--source={_sources()}", "-m", *suite]
    return subprocess.run(
        [sys.executable, "-m", "coverage", *command], cwd=ROOT, env=environment, check=False
    ).returncode


def _sources() -> str:
    return ",".join(f"quiver_actors.{name}" for name in MEASURED)


def _coverage(environment: dict[str, str], *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "coverage", *arguments], cwd=ROOT, env=environment, check=True)


def _left(files: dict[str, Any]) -> Iterator[str]:
    """A line for each function of which something was not taken."""
    for path, file in sorted(files.items()):
        short = path.removeprefix("quiver_actors/")
        for function, found in file["functions"].items():
            lines, branches = found["missing_lines"], found["missing_branches"]
            name = f"{short}:{function or 'module'}"
            if (lines or branches) and name not in EXCLUDED:
                yield f"{name}: lines {lines}, branches {[f'{start}->{end}' for start, end in branches]}"


if __name__ == "__main__":
    sys.exit(main())
