"""The plan of a start for each log file: the table of `store.wal.decisions` over what was found, before anything is done. Pure.

`verify` shows the same plans to an operator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.store.wal import layout
from quiver_actors.store.wal.decisions import Decision, Header, Held, decide
from quiver_actors.store.wal.reader import Span
from quiver_actors.store.wal.recovery import FoundLog


class LogPlan(NamedTuple):
    """Plan of a start for one log file."""

    log: FoundLog
    decision: Decision
    covered_end: int = 0
    """File offset up to which segments hold the log's entries, or the cursor of the log's writer says that they do."""
    taken: frozenset[Span] = frozenset()
    """Entries that an earlier adoption has stored elsewhere."""


class Covered(NamedTuple):
    """Which entries of logs segments are known to hold."""

    cursor_position: int | None
    """The log position that the cursor says; None if there is no cursor that can be read."""
    believes_cursor: bool
    """Whether the cursor speaks of the logs of another writer that are there: see `believes_cursor`."""
    held_ends: Mapping[str, int]
    """File offsets up to which segments hold the entries of logs, by name."""
    taken: Mapping[str, frozenset[Span]]
    """Entries that an earlier adoption has stored elsewhere, of logs that it had no time to remove, by name."""
    adopted: Collection[str]
    """Names of those of these logs of which the adoption has stored everything that it read."""


def plan_logs(found: Sequence[FoundLog], covered: Covered, *, is_clean: bool) -> list[LogPlan]:
    """A plan for each log."""
    return [_plan(log, covered, is_clean=is_clean) for log in found]


def _plan(log: FoundLog, covered: Covered, *, is_clean: bool) -> LogPlan:
    taken = covered.taken.get(log.name, frozenset())
    if log.name in covered.adopted:
        decision = Decision.ADOPT if log.header is not None else Decision.ADOPT_AND_KEEP
        return LogPlan(log, decision, taken=taken)
    end = covered.held_ends.get(log.name, 0)
    decision = decide(log.case(covered.cursor_position, _held(log, end), is_clean=is_clean))
    if log.header_state is Header.FOREIGN and covered.believes_cursor and log.header is not None:
        end = max(0, (covered.cursor_position or 0) - log.position_start + log.header.header_bytes)
    return LogPlan(log, decision, end, taken)


def _held(log: FoundLog, end: int) -> Held:
    if end and end >= log.end:
        return Held.ALL
    return Held.SOME if end else Held.NOTHING


def believes_cursor(
    found: Sequence[FoundLog], cursor_position: int, accounted_position: int, *, has_record: bool
) -> bool:
    """Whether the cursor speaks of the logs of another writer that are there. It does not

    - where one of them begins before a log position that was accounted for: then the writer has found no log to go on in, and has begun
      at 0, while the cursor stands where we left it;
    - where a log of ours before them goes on behind its entries, preallocated or with the tail of a seal: the writer's replay ends there,
      and its cursor then passes entries that it has never read;
    - where it stands at the end of no entry: that writer makes the cursor durable before the log, and a power loss took the entries that it
      speaks of; others stand in their places.

    Args:
        found: by position.
        accounted_position: everything before it was in segments at the last start, or is in one of ours.
        has_record: the last start has kept a record of that.
    """
    theirs = [log for log in found if log.header_state is Header.FOREIGN and log.has_entries]
    if not theirs:
        return True
    first = theirs[0]
    assert first.header is not None
    # The empty log that we leave has our length of the header.
    is_left_by_us = first.header.header_bytes == layout.HEADER_BYTES
    begins_anew = has_record and first.position_start == 0 and not is_left_by_us
    before = [log for log in found if log.header_state is Header.OURS and log.position_start <= first.position_start]
    ends_replays = any(log.size_bytes > log.end for log in before)
    is_at_an_end = cursor_position <= first.position_start or any(_ends_at(log, cursor_position) for log in theirs)
    return first.position_start >= accounted_position and is_at_an_end and not (begins_anew or ends_replays)


def _ends_at(log: FoundLog, position: int) -> bool:
    """Whether an entry of the log ends at that position."""
    assert log.header is not None
    offset = position - log.position_start + log.header.header_bytes
    return any(span.end == offset for span in log.scan.entries)
