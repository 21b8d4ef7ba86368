"""Docstrings begin with a subject or a verb, so that a reader understands each one without the text around it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.outlines import Outline, outline, outline_of
from tests.tidy.test_layers import ROOT

ROOMS = ("quiver_actors", "shm", "supervisor", "tests", "benchmarks")
FRAGMENT = re.compile(
    r"\s*(Of|As|That|Who|What is|See above|See the module|For|From|By|Also|And|Again|Until|But|Or|Then|So|With|Without|To|In)\b"
)
"""Matches the beginning of a docstring that lacks a subject or a verb, or only refers to another text."""


def fragments(name: str, of_file: Outline) -> list[str]:
    """`file:line: text` of each docstring that begins as no sentence does; the text is its first line."""
    return [
        f"{name}:{line}: {text.strip().splitlines()[0]}" for line, text in of_file.docstrings if FRAGMENT.match(text)
    ]


def files() -> Iterator[Path]:
    """The Python files of the tree, each once: `shm` and `supervisor` are links below `quiver_actors`."""
    for room in ROOMS:
        links = tuple(path for path in (ROOT / room).iterdir() if path.is_symlink())
        yield from (
            path for path in sorted((ROOT / room).rglob("*.py")) if not any(path.is_relative_to(link) for link in links)
        )


def test_no_docstring_begins_as_a_fragment() -> None:
    found = [each for path in files() for each in fragments(str(path.relative_to(ROOT)), outline(path))]
    assert not found, f"{len(found)} docstrings are no sentences:\n" + "\n".join(found)


def test_every_kind_of_planted_fragment_is_found() -> None:
    source = '''"""Who may do what."""
LIMIT_BYTES = 1
"""Of each file."""
class Store:
    """See the module. Owner: the loop."""
    count: int = 0
    """What is stored."""
    async def read(self):
        """
        As `Reader.read`.

        The rest is fine.
        """
        self.path = ""
        """That was read last."""
'''
    assert fragments("a.py", outline_of(source)) == [
        "a.py:1: Who may do what.",
        "a.py:3: Of each file.",
        "a.py:5: See the module. Owner: the loop.",
        "a.py:7: What is stored.",
        "a.py:9: As `Reader.read`.",
        "a.py:15: That was read last.",
    ]


def test_sentences_and_other_strings_pass() -> None:
    source = '''"""Often read. What is not there stays unread."""
PREFIX = "Of each file"
def read(text="As it is"):
    """Offset and Ascii text of whoever reads; see the module."""
'''
    assert fragments("a.py", outline_of(source)) == []


def test_the_whole_tree_is_read() -> None:
    names = {str(path.relative_to(ROOT)) for path in files()}
    assert {
        "shm/arena.py",
        "supervisor/loop.py",
        "quiver_actors/errors.py",
        "benchmarks/aims.py",
        "tests/soak.py",
    } <= names
    assert not any(name.startswith(("quiver_actors/shm/", "quiver_actors/supervisor/")) for name in names)
