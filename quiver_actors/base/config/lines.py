"""The line of each key in a TOML file, which `tomllib` does not tell. Pure.

The file is read again and again, each time one line longer. A beginning that is whole TOML ends with a finished value, so what is new in it
was written since the last such beginning; whatever TOML allows (dotted keys, inline tables, strings over several lines) is `tomllib`'s to
understand. That takes time with the square of the length: it is done once something is wrong.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

KeyPath = tuple[str, ...]


def lines_of(text: str) -> dict[KeyPath, int]:
    """The line, from 1, on which each key and each table of a whole TOML document is first written."""
    found: dict[KeyPath, int] = {}
    lines = text.splitlines(keepends=True)
    begin = 1
    for end in range(1, len(lines) + 1):
        try:
            document = tomllib.loads("".join(lines[:end]))
        except tomllib.TOMLDecodeError:
            continue
        for path in _paths(document, ()):
            found.setdefault(path, begin)
        begin = end + 1
    return found


def _paths(table: Mapping[str, Any], above: KeyPath) -> Iterator[KeyPath]:
    for key, value in table.items():
        path = (*above, key)
        yield path
        if isinstance(value, Mapping):
            yield from _paths(value, path)
