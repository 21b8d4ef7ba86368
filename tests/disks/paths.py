"""Paths of a simulated disk. Pure."""

from __future__ import annotations

from functools import lru_cache

ROOT = "."


@lru_cache(maxsize=4096)
def normal_path(path: str) -> str:
    return path.strip("/").removeprefix("./") or ROOT


@lru_cache(maxsize=4096)
def parent_of(path: str) -> str:
    """The directory that a name stands in."""
    return normal_path(path).rpartition("/")[0] or ROOT


@lru_cache(maxsize=4096)
def parents_of(path: str) -> tuple[str, ...]:
    """All directories above a path, outermost first, without the root."""
    parts = normal_path(path).split("/")
    return tuple("/".join(parts[:count]) for count in range(1, len(parts)))
