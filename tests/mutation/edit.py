"""What a known-bad edit is."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """`tests`: what is run before the simulated nodes, because it is cheaper and likely to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
