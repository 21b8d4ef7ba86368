"""Sealed segments that are gone when a directory is opened, and that no progress names: which of them were lost, and to whom. Pure.

A segment is deleted by us only after the progress of every subscriber says durably that all of it is done. A progress file names
segments from its watermark on, so one that names none was written when nothing from there on was done, and nothing of it can have been
deleted since: what its subscriber has not got and is not there was taken by somebody else. That there was such a segment is proven by the
numbers around it: log positions that the cursor has passed, and that are in no file.

| between two files of ours, or before the first one        | what is lost, to a subscriber whose bare progress stands before it |
|------------------------------------------------------------|--------------------------------------------------------------------|
| positions are left out, and one number                      | that segment, with as many bundles as sequences are left out       |
| positions, and several numbers, where there are no transactions | each of them, with nobody knows how many                      |
| positions, and very many numbers                            | nothing is proven: a start lies between that was no clean one      |
| no positions                                                | nothing: numbers of transactions, or of starts                     |
| before the first file, and somebody stands behind it        | nothing: it may have been done and deleted before that subscriber came |

A bare watermark above 0 was written when everything below it was sealed, and the next segment got its number. So that subscriber
needs no positions: each number from its watermark on, up to the next file or to where another subscriber stands, is a segment that is
lost to it, with nobody knows how many. Again not where there are transactions, nor where very many numbers are left out. A watermark of
0 is also what a start writes of a subscriber that other cores know, and proves nothing by itself.

Not seen: the newest segments of a node that was killed, behind which nothing is and nobody stands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK
from quiver_actors.store.recovery.missing_logs import Extent, MissingLog

_NUMBERS_AT_ONCE_MAX = SEGMENT_SEQ_BLOCK // 4
"""More numbers than that in a row may have been left out by a start: half a block is reserved whenever one is used."""


def find_missing_segments(
    extents: Sequence[Extent],
    taken: Collection[int],
    cursor: int | None,
    *,
    has_transactions: bool,
    bare: Mapping[str, int],
    watermark_max: int,
) -> dict[str, list[MissingLog]]:
    """Find the segments that are gone, by the table of this module.

    Args:
        extents: by rising number, with the empty log of a clean stop.
        taken: numbers of which there is a file, readable or not.
        cursor: everything before that log position is in segments, or was; None if there is none that can be read.
        has_transactions: segments may have been published, whose numbers say nothing of log positions.
        bare: the watermarks of the progress files that name no segment, by subscriber.
        watermark_max: the highest watermark of all subscribers.

    Returns:
        What each subscriber loses.
    """
    lost: dict[str, list[MissingLog]] = {}
    sealed_end = watermark_max
    for before, behind in pairwise([None, *extents]):
        assert behind is not None
        if cursor is None or cursor < behind.position_start:
            break
        sealed_end = max(sealed_end, behind.segment_seq)
        for missing in _missing_between(before, behind, taken, has_transactions=has_transactions):
            if before is None and watermark_max > missing.segment_seq:
                continue
            for subscriber, watermark in bare.items():
                if watermark <= missing.segment_seq:
                    lost.setdefault(subscriber, []).append(missing)
    if not has_transactions:
        for subscriber, watermark in bare.items():
            told = {missing.segment_seq for missing in lost.get(subscriber, ())}
            more = [MissingLog(seq, 0) for seq in _missing_from(watermark, sealed_end, taken) if seq not in told]
            if more:
                lost[subscriber] = sorted([*lost.get(subscriber, ()), *more])
    return lost


def counts_of_missing(
    extents: Sequence[Extent], taken: Collection[int], cursor: int | None, *, has_transactions: bool
) -> dict[int, int]:
    """Return how many bundles a segment had that is gone, where the numbers around it prove that; arguments as above. Progress that
    was written while the segment was open names fewer."""
    counts: dict[int, int] = {}
    for before, behind in pairwise([None, *extents]):
        assert behind is not None
        if cursor is None or cursor < behind.position_start:
            break
        for missing in _missing_between(before, behind, taken, has_transactions=has_transactions):
            counts[missing.segment_seq] = missing.bundle_count
    return counts


def _missing_from(watermark: int, sealed_end: int, taken: Collection[int]) -> Iterator[int]:
    """The numbers between a bare watermark above 0 and the first file behind it, or the end of what was sealed."""
    end = min((seq for seq in taken if watermark <= seq < sealed_end), default=sealed_end)
    if watermark > 0 and end - watermark <= _NUMBERS_AT_ONCE_MAX:
        yield from range(watermark, end)


def _missing_between(
    before: Extent | None, behind: Extent, taken: Collection[int], *, has_transactions: bool
) -> Iterator[MissingLog]:
    if before is not None and before.incarnation != behind.incarnation:
        return
    position_end, sequence_end = (before.position_end, before.sequence_end) if before else (0, 0)
    numbers = range(before.segment_seq + 1 if before else 0, behind.segment_seq)
    is_jump = len(numbers) > SEGMENT_SEQ_BLOCK // 2
    if position_end >= behind.position_start or is_jump or any(seq in taken for seq in numbers):
        return
    count = behind.first_sequence - sequence_end
    if len(numbers) == 1 and 0 < count <= SEGMENT_BUNDLES_MAX:
        yield MissingLog(numbers[0], count)
    elif len(numbers) > 1 and not has_transactions:
        yield from (MissingLog(segment_seq, 0) for segment_seq in numbers)
