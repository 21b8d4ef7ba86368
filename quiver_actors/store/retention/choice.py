"""Chooses the segments of a worker that are deleted to fulfil a claim. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

IN_LOGS = -1
"""Stands in the place of a segment number for what is not sealed yet."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """Something that may go for want of space. Ordered as it goes: by class, then by ingestion time."""

    eviction_class: int
    unix_ns: int
    """Ingestion time, UNIX nanoseconds; never younger than what its engine appended later, whatever the clock did."""
    topic: str
    segment_seq: int
    size_bytes: int


def choose(candidates: Iterable[Candidate], last_class: int, through_unix_ns: int, size_bytes: int) -> list[Candidate]:
    """The oldest candidates of the first class that has any, up to `last_class`: none younger than `through_unix_ns`, and no more than
    are needed to free `size_bytes`."""
    chosen: list[Candidate] = []
    freed_bytes = 0
    for candidate in sorted(candidates):
        is_covered = candidate.eviction_class <= last_class and candidate.unix_ns <= through_unix_ns
        is_same = not chosen or candidate.eviction_class == chosen[0].eviction_class
        if freed_bytes >= size_bytes or not is_covered or not is_same:
            break
        freed_bytes += candidate.size_bytes
        chosen.append(candidate)
    return chosen
