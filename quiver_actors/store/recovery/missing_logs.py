"""Logs that are gone when a directory is opened: which segments they would have become, and what is known of their bundles. Pure.

Logs are begun and sealed in the order of their numbers, and each begins at the log position where the one before it ended. So positions
that are in no file between two files of ours are those of logs that are gone, and if they were never sealed, no subscriber can have
taken anything of them. That they were not is proven by the file before them, which is a log itself, or by the cursor, if it stands
before their end; behind a sealed segment anything else may have been done and deleted. What was sealed and deleted is never told of:
the cursor has passed such a file before it goes. An empty log is no file here: transactions are published behind it, and deleted.

| the file before the gap                              | numbers left out | what is lost                                      |
|------------------------------------------------------|------------------|---------------------------------------------------|
| a log, or a segment with the cursor at or before its end | one          | exactly as many bundles as sequences are left out |
| the same                                             | several          | all of them, each with nobody knows how many      |
| the same                                             | very many        | the last one, with nobody knows how many: a start |
|                                                      |                  | lies between that was no clean one                |
| none, or a segment before the cursor                 | any              | the last one, with nobody knows how many: those   |
|                                                      |                  | before it may have been done and deleted          |
| none or a segment, and no cursor, or one behind the gap | any           | nothing is proven                                 |

Not seen: a log behind which there is none, and one that another file explains: a log whose header cannot be read, or prepared stages, whose
publish takes numbers before it is recorded.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK


class Extent(NamedTuple):
    """Which log positions and sequences one file of ours covers; ends are exclusive."""

    segment_seq: int
    position_start: int
    position_end: int
    first_sequence: int
    sequence_end: int
    incarnation: bytes
    is_log: bool


class MissingLog(NamedTuple):
    """A log that is gone, so that there will never be its segment."""

    segment_seq: int
    bundle_count: int
    """How many bundles the segment would have had; 0 = nobody knows."""


def find_missing_logs(extents: Sequence[Extent], taken: Container[int], cursor: int | None) -> list[MissingLog]:
    """Find the logs that are gone, by the table of this module.

    Args:
        extents: by rising number.
        taken: numbers of which there is a file, readable or not.
        cursor: everything before that log position is in segments, or was; None if there is none that can be read.
    """
    found: list[MissingLog] = []
    for before, behind in pairwise([None, *extents]):
        assert behind is not None
        if behind.segment_seq - 1 not in taken and behind.segment_seq > 0:
            found += _missing_between(before, behind, taken, cursor)
    return found


def _missing_between(
    before: Extent | None, behind: Extent, taken: Container[int], cursor: int | None
) -> Iterator[MissingLog]:
    if before is not None and (
        before.incarnation != behind.incarnation or before.position_end >= behind.position_start
    ):
        return
    unsealed_from = before.position_end if before is not None and before.is_log else cursor
    if unsealed_from is None or unsealed_from >= behind.position_start:
        return
    last = behind.segment_seq - 1
    numbers = range(before.segment_seq + 1 if before else 0, behind.segment_seq)
    is_all = before is not None and unsealed_from <= before.position_end
    if before is None or not is_all or len(numbers) > SEGMENT_SEQ_BLOCK // 2 or any(seq in taken for seq in numbers):
        yield MissingLog(last, 0)
    elif len(numbers) == 1:
        count = behind.first_sequence - before.sequence_end
        yield MissingLog(last, count if 0 < count <= SEGMENT_BUNDLES_MAX else 0)
    else:
        yield from (MissingLog(segment_seq, 0) for segment_seq in numbers)
