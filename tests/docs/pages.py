"""The documentation's code blocks, and how they are run.

A block is run as its first word says, in the order of the page, in one directory and one process a page, so that a later block uses what
an earlier one made:

    python        executed; all blocks of a page share their names
    sh            executed by bash, line by line output is not compared; a line `quiver up ... &` leaves a node running until the page ends
    toml          read as a configuration, with every check
    json, text    not executed

The only exceptions: `python continued` is a fragment that is compiled only; `sh elsewhere` and `python elsewhere` are for another
machine (root, a cluster, a package that is not published where the tests run): their `quiver` commands are parsed, their `make`
targets and modules have to be there, their Python is compiled. `make fresh-user` runs those of "Getting started".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block."""

    line: int
    language: str
    mode: str
    code: str


def pages() -> list[Path]:
    """Every page of the documentation."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        language, _, mode = found["info"].strip().partition(" ")
        indent = len(found["indent"])
        code = "".join(line[indent:] if line.strip() else "\n" for line in found["code"].splitlines(keepends=True))
        yield Block(text.count("\n", 0, found.start()) + 1, language, mode, code)
