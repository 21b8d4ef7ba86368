"""What becomes of a log file that an engine finds when it opens: one table over everything that decides about it. Pure.

Six dimensions: where the cursor points, whose header it is, what its entries are like, what stands behind them, how much of it segments
hold already, and whether the last stop was a clean one. The first three quarters of the table need no cursor: for our own logs the
segment with their number says more, and a clean stop only says that the reserved numbers are exact; nothing is ever dropped because of
it. A row's `None` stands for every value.

A damaged span between entries, or before an end that the next log proves, is copied to quarantine/ and counted; its bundles keep their
numbers as lost bundles of the segment, so that each subscriber is told. Bytes behind the last valid entry of the last log are a torn
write: they are cut. A log of a newer version is refused before this table is asked.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


class Cursor(enum.Enum):
    """Where the cursor file says that sealing has come to, seen from this log."""

    NONE = "missing or damaged"
    BEFORE = "before the first entry"
    INSIDE = "inside"
    BEHIND = "behind the last entry"


class Header(enum.Enum):
    """What the header of the log says of who wrote it."""

    OURS = "ours"
    FOREIGN = "other writer"
    UNREADABLE = "unreadable"
    ZERO = "zero"


class Entries(enum.Enum):
    """What of the entries can be read."""

    NONE = "none"
    WHOLE = "whole"
    DAMAGED = "with damage before or between them, or before an end that is proven"


class Behind(enum.Enum):
    """What stands behind the last entry."""

    END = "the end of the file, or zeroes"
    OTHER = "other bytes"
    TAIL = "the tail of a finished seal, checksum included"


class Held(enum.Enum):
    """How much of it segments hold: for a log of ours all or nothing, by its number."""

    NOTHING = "nothing"
    SOME = "some"
    ALL = "all"


class Decision(enum.Enum):
    """What becomes of a log."""

    FINISH = "finish"
    """The seal was complete, only its rename is missing."""
    SEAL = "seal"
    """Cut behind the last entry and seal it under its number."""
    ADOPT = "adopt"
    """Lay the entries that neither the cursor nor a segment covers into new logs; the file goes when those are sealed."""
    ADOPT_AND_KEEP = "adopt and keep"
    """The same, and the file goes to quarantine/: its header cannot be read."""
    DROP = "drop"
    """Nothing in it is missing elsewhere."""
    QUARANTINE = "quarantine"
    """It cannot be parsed: moved aside, never deleted."""


class LogCase(NamedTuple):
    """One log file. Field by field the dimensions of the table."""

    cursor: Cursor
    header: Header
    entries: Entries
    behind: Behind
    held: Held
    is_clean: bool


class Rule(NamedTuple):
    """A row: what each dimension must be one of (None: anything), and what is done then."""

    cursor: frozenset[Cursor] | None
    header: frozenset[Header]
    entries: frozenset[Entries] | None
    behind: frozenset[Behind] | None
    held: frozenset[Held] | None
    is_clean: bool | None
    decision: Decision

    def applies(self, case: LogCase) -> bool:
        sets = zip(self[:5], case[:5], strict=True)
        return all(among is None or value in among for among, value in sets) and self.is_clean in (None, case.is_clean)


_OURS, _FOREIGN = frozenset([Header.OURS]), frozenset([Header.FOREIGN])
_UNREADABLE, _ZERO = frozenset([Header.UNREADABLE]), frozenset([Header.ZERO])
_SOME_ENTRIES, _NO_ENTRIES = frozenset([Entries.WHOLE, Entries.DAMAGED]), frozenset([Entries.NONE])
_TAIL, _NO_TAIL = frozenset([Behind.TAIL]), frozenset([Behind.END, Behind.OTHER])
_END, _BYTES = frozenset([Behind.END]), frozenset([Behind.OTHER, Behind.TAIL])
_ALL, _NOT_ALL = frozenset([Held.ALL]), frozenset([Held.NOTHING, Held.SOME])

RULES = (
    # cursor header                 entries        behind    held      clean
    Rule(None, _OURS, None, None, _ALL, None, Decision.DROP),
    Rule(None, _OURS, None, _TAIL, _NOT_ALL, None, Decision.FINISH),
    Rule(None, _OURS, _SOME_ENTRIES, _NO_TAIL, _NOT_ALL, None, Decision.SEAL),
    Rule(None, _OURS, _NO_ENTRIES, _NO_TAIL, _NOT_ALL, None, Decision.DROP),
    Rule(None, _FOREIGN, _SOME_ENTRIES, None, None, None, Decision.ADOPT),
    Rule(None, _FOREIGN, _NO_ENTRIES, _END, None, None, Decision.DROP),
    Rule(None, _FOREIGN, _NO_ENTRIES, _BYTES, None, None, Decision.QUARANTINE),
    Rule(None, _UNREADABLE | _ZERO, _SOME_ENTRIES, None, None, None, Decision.ADOPT_AND_KEEP),
    Rule(None, _UNREADABLE, _NO_ENTRIES, None, None, None, Decision.QUARANTINE),
    Rule(None, _ZERO, _NO_ENTRIES, _END, None, None, Decision.DROP),
    Rule(None, _ZERO, _NO_ENTRIES, _BYTES, None, None, Decision.QUARANTINE),
)
"""Exactly one row applies to each case."""


def decide(case: LogCase) -> Decision:
    return next(rule.decision for rule in RULES if rule.applies(case))
