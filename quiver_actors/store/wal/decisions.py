"""The decision about a log file that an engine finds when it opens: one table over everything that decides about it. Pure.

Six dimensions: where the cursor points, whose header it is, what its entries are like, what stands behind them, how much of it segments
hold already, and whether the last stop was a clean one. No row needs the cursor: of our own logs the segments say more, and an adoption
asks it entry by entry. A clean stop only says that the reserved numbers are exact; nothing is ever dropped because of it. A row's `None`
stands for every value.

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
    """The writer of a log, from its header."""

    OURS = "ours"
    FOREIGN = "other writer"
    UNREADABLE = "unreadable"
    ZERO = "zero"


class Entries(enum.Enum):
    """Which of the entries can be read, and whose they are."""

    NONE = "none"
    WHOLE = "whole"
    DAMAGED = "with damage before or between them, or before an end that is proven"
    MIXED = "ours and another writer's, damaged or not"


class Behind(enum.Enum):
    """Kind of the bytes behind the last entry."""

    END = "the end of the file, or zeroes"
    OTHER = "other bytes"
    TAIL = "the tail of a finished seal, checksum included"


class Held(enum.Enum):
    """How much of a log segments hold, to its end. A log of ours is held by a segment with its number, its first sequence and its first
    position, or by segments of another writer with the same bundles; another writer's log by an adoption that was cut off."""

    NOTHING = "nothing"
    SOME = "some"
    ALL = "all"


class Decision(enum.Enum):
    """Action of a start on a log."""

    FINISH = "finish"
    """Rename the log, whose seal is complete but for that."""
    SEAL = "seal"
    """Cut behind the last entry and seal it under its number."""
    RENEW = "renew"
    """Write it anew, aligned, under its number: our entries first, with their ids, then the other writer's."""
    ADOPT = "adopt"
    """Lay the entries that neither the cursor nor a segment covers into new logs, under new numbers; then the file goes."""
    ADOPT_AND_KEEP = "adopt and keep"
    """Do as for `ADOPT`, but move the file to quarantine/: its header cannot be read."""
    DROP = "drop"
    """Delete the log: everything in it is elsewhere too."""
    QUARANTINE = "quarantine"
    """Move the log aside, which cannot be parsed; it is never deleted."""


class LogCase(NamedTuple):
    """Facts about one log file by which the table decides: one field for each dimension."""

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
        """Whether every condition of the rule holds in this case; None in a rule means any value."""
        sets = zip(self[:5], case[:5], strict=True)
        return all(among is None or value in among for among, value in sets) and self.is_clean in (None, case.is_clean)


_OURS, _FOREIGN = frozenset([Header.OURS]), frozenset([Header.FOREIGN])
_UNREADABLE, _ZERO = frozenset([Header.UNREADABLE]), frozenset([Header.ZERO])
_OWN_ENTRIES, _MIXED_ENTRIES = frozenset([Entries.WHOLE, Entries.DAMAGED]), frozenset([Entries.MIXED])
_SOME_ENTRIES, _NO_ENTRIES = _OWN_ENTRIES | _MIXED_ENTRIES, frozenset([Entries.NONE])
_TAIL, _NO_TAIL = frozenset([Behind.TAIL]), frozenset([Behind.END, Behind.OTHER])
_END, _BYTES = frozenset([Behind.END]), frozenset([Behind.OTHER, Behind.TAIL])
_ALL, _NOT_ALL = frozenset([Held.ALL]), frozenset([Held.NOTHING, Held.SOME])
_NOTHING, _SOME = frozenset([Held.NOTHING]), frozenset([Held.SOME])

RULES = (
    # cursor header                 entries        behind    held      clean
    Rule(None, _OURS, None, None, _ALL, None, Decision.DROP),
    Rule(None, _OURS, None, _TAIL, _NOTHING, None, Decision.FINISH),
    Rule(None, _OURS, None, _TAIL, _SOME, None, Decision.QUARANTINE),
    Rule(None, _OURS, _OWN_ENTRIES, _NO_TAIL, _NOTHING, None, Decision.SEAL),
    Rule(None, _OURS, _MIXED_ENTRIES, _NO_TAIL, _NOTHING, None, Decision.RENEW),
    Rule(None, _OURS, _SOME_ENTRIES, _NO_TAIL, _SOME, None, Decision.ADOPT),
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
    """Return the decision of the first rule that applies; the table covers every case."""
    return next(rule.decision for rule in RULES if rule.applies(case))
