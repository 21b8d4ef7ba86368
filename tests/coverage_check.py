"""Which branches of the code that keeps the promise no test takes: `python -m tests.coverage_check`; `make coverage`.

Measured: the log, segments, subscribers, retention and recovery, by the unit tests of them and of the engine alone, which run in one
process and take the same branches each time; simulations do not count. Every line and branch that is not taken is printed, unless its
function stands in `EXCLUDED` with a reason; exit code 1 if something is left.
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
"""Folders of quiver_actors/store."""
SUITE = (
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-o",
    "timeout=0",
    "--hypothesis-seed=0",
    *(
        f"tests/unit/store/{name}"
        for name in ("wal", "segment", "subscriber", "retention", "recovery", "engine", "staged")
    ),
    "tests/contract",
    "tests/golden",
)
EXCLUDED: dict[str, str] = {}
"""`package/file.py:function` to the reason why nothing of it, or not all of it, is taken."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="qv-coverage-") as made:
        environment = os.environ | {"COVERAGE_FILE": str(Path(made, "data")), "PYTHONHASHSEED": "0"}
        has_failed = _coverage(environment, "run", "--branch", f"--source={_sources()}", "-m", *SUITE)
        report = Path(made, "report.json")
        _coverage(environment, "json", "--quiet", "-o", str(report))
        found = json.loads(report.read_text())
    if has_failed:
        print("tests have failed: what they would have taken is missing below")
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
    return int(has_failed or bool(left))


def _sources() -> str:
    return ",".join(f"quiver_actors.store.{name}" for name in MEASURED)


def _coverage(environment: dict[str, str], *arguments: str) -> bool:
    """Whether it has failed."""
    command = [sys.executable, "-m", "coverage", *arguments]
    return bool(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


def _left(files: dict[str, Any]) -> Iterator[str]:
    """A line for each function of which something was not taken."""
    for path, file in sorted(files.items()):
        short = path.removeprefix("quiver_actors/store/")
        for function, found in file["functions"].items():
            lines, branches = found["missing_lines"], found["missing_branches"]
            name = f"{short}:{function or 'module'}"
            if (lines or branches) and name not in EXCLUDED:
                yield f"{name}: lines {lines}, branches {[f'{start}->{end}' for start, end in branches]}"


if __name__ == "__main__":
    sys.exit(main())
