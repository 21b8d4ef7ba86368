"""The figures of docs/reliability.md: what long runs have printed, kept beside the page, and the table made from it.

    python -m tests.reliability run make soak HOURS=1        runs a command and keeps its last line of JSON
    python -m tests.reliability take FILE make soak HOURS=1  the same, of a run whose output is in a file
    python -m tests.reliability write                        makes the table anew

A command's line stands until the same command is run again.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "reliability" / "runs.json"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- figures: python -m tests.reliability write -->\n", "<!-- end of figures -->\n"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["run", *command] if command:
            return _run(command)
        case ["take", file, *command] if command:
            _keep(" ".join(command), Path(file).read_text(), time.gmtime(Path(file).stat().st_mtime))
        case ["write"]:
            PAGE.write_text(page(PAGE.read_text()))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def _run(command: list[str]) -> int:
    ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout, end="")
    _keep(" ".join(command), ran.stdout, time.gmtime())
    return ran.returncode


def _keep(command: str, output: str, when: time.struct_time) -> None:
    figures = json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))
    runs = read_runs()
    runs[command] = {"day": time.strftime("%Y-%m-%d", when), "figures": figures}
    FIGURES.write_text(json.dumps(runs, indent=1) + "\n")
    PAGE.write_text(page(PAGE.read_text()))


def read_runs() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text())
    return found


def page(before: str) -> str:
    """The page with the table as it follows from the figures that are kept."""
    head, _, rest = before.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + table(read_runs()) + END + tail


def table(runs: dict[str, Any]) -> str:
    rows = [f"| `{command}` | {run['day']} | {_listed(run['figures'])} |" for command, run in runs.items()]
    return "\n".join(["| command | day | what it printed |", "|---|---|---|", *rows, ""])


def _listed(figures: dict[str, Any], prefix: str = "") -> str:
    return ", ".join(f"{prefix}{name.replace('_', ' ')} {_shown(value)}" for name, value in figures.items())


def _shown(value: object) -> str:
    match value:
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case list():
            return ", ".join(map(str, value)) or "none"
        case {"drift": drift, "first": first, "last": last}:
            return f"{first:,} to {last:,} ({drift:+,})"
        case dict():
            return f"({_listed(value)})"
        case _:
            return str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
