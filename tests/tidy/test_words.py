"""Words that mean nothing to a stranger, or several things, do not come back into the source."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
BANNED = {
    "reckon": "compute, sum",
    "reckoning": "usage, sum",
    "shelf": "sealed segments",
    "mending": "repair",
    "neighbours": "peers",
    "chronicle": "event log",
    "farewell": "close",
    "agenda": "run queue",
    "handing_out": "dispatch, delivery",
}
"""Each word with what is said in its place. docs/developing.md has the glossary."""


OF_CLAIMS = ("grant", "grants", "granted")
"""A grant is a set of claims; what the supervisor gives is a quota."""


def words_in(source: str, banned: Iterable[str] = tuple(BANNED)) -> Iterator[tuple[int, str]]:
    """Line and banned word of each name in a source."""
    if not any(word.replace("_", "") in source.lower().replace("_", "") for word in banned):
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", token.string).lower().strip("_")
            for word in banned:
                if re.search(rf"(?:^|_){word}(?:$|_)", snake):
                    yield token.start[0], word


def sources() -> Iterator[Path]:
    for top in ("quiver_actors", "shm", "supervisor", "pyspark_quiver", "tests", "benchmarks"):
        yield from sorted((ROOT / top).rglob("*.py"))


def test_banned_words_are_no_names() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word}: say {BANNED[word]}"
        for path in sources()
        for line, word in words_in(path.read_text())
    ]
    assert found == []


def test_banned_words_are_no_modules() -> None:
    assert [str(path) for path in sources() if path.stem in BANNED] == []


def test_the_supervisor_gives_quotas_and_no_grants() -> None:
    found = [
        (path.name, *each)
        for path in (ROOT / "supervisor").glob("*.py")
        for each in words_in(path.read_text(), OF_CLAIMS)
    ]
    assert found == []


def test_a_banned_word_is_found() -> None:
    assert list(words_in("class MyShelf:\n    _handing_out = 1\n")) == [(1, "shelf"), (2, "handing_out")]
