"""The table of what is tested with Spark names things that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENTRY = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[int, list[str]]]:
    """Number and entries of each row."""
    section = (ROOT / "docs" / "spark.md").read_text().split("## What is tested", 1)[1].split("\n## ", 1)[0]
    found = []
    for line in section.splitlines():
        number, _, entries = (line.strip("| ") + "||").split("|", 2)
        if number.strip().isdecimal():
            found.append((int(number), ENTRY.findall(entries)))
    return found


def exists(entry: str) -> bool:
    kind, _, name = entry.rpartition(" ")
    if kind == "make":
        return f"\n{name}:" in (ROOT / "Makefile").read_text()
    if kind == "python -m":
        return (ROOT / f"{name.replace('.', '/')}.py").exists()
    file, _, test = entry.partition("::")
    return any(f"\ndef {test}(" in path.read_text() for path in (ROOT / "tests").rglob(file))


def test_every_row_names_tests_that_exist() -> None:
    found = rows()
    assert [number for number, _ in found] == list(range(1, len(found) + 1))
    assert len(found) >= 28
    assert [(number, entry) for number, entries in found for entry in entries or [""] if not exists(entry)] == []
