"""Building a compacted segment again from what is left of it. The checksum of each bundle in the manifest tells what is proven.

Reads through a function, writes one new file. A bundle that cannot be proven keeps its number as a row without slots.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import FormatError
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.segment.compaction import Rewriting
from quiver_actors.store.segment.flips import flipped_bit
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.outline import Outline, Read
from quiver_actors.store.segment.salvage import salvage

ATTEMPTS_MAX = 3
"""How often a segment is rebuilt that is damaged further while it is copied."""


class Rebuilt(NamedTuple):
    """The contents of a file that was built from what is left of a damaged one."""

    info: SegmentInfo
    lost: tuple[int, ...]
    """Indexes of bundles without slots."""
    is_end_known: bool = True
    """Whether no bundle was lost behind the last one; False: nobody can tell."""


def rebuild_compacted(read: Read, size_bytes: int, file: DiskFile, segment_seq: int) -> Rebuilt | None:
    """Write what can be proven of a compacted segment into `file`, which is empty; None if that is nothing. Not synced.

    Raises:
        DiskError: `file` cannot be written.
    """
    for _ in range(ATTEMPTS_MAX):
        try:
            outline, way = _salvage(read, size_bytes)
            offset = 0
            for part in Rewriting(outline, way).parts():
                file.write(part, offset)
                offset += sum(map(len, part))
            # What was copied has new checksums: nothing of it may have been damaged between its proof and the copy.
            if lost_bundles(_salvage(read, size_bytes)[0].columns) == lost_bundles(outline.columns):
                break
        except FormatError:
            return None
        file.truncate(0)
    else:
        return None
    slot_counts, extension = outline.columns.slot_counts, outline.extension
    times = (extension.first_ingestion_ts_nanos, extension.last_ingestion_ts_nanos)
    info = SegmentInfo(
        segment_seq,
        len(slot_counts),
        extension.row_count,
        offset,
        *times,
        position_start=extension.wal_position_start,
        position_end=extension.wal_position_end,
    )
    return Rebuilt(info, lost_bundles(outline.columns)) if outline.streams else None


def _salvage(read: Read, size_bytes: int) -> tuple[Outline, Read]:
    """The outline of what can be proven of a compacted segment, and how to read it: with one bit turned back where that proves more.

    Raises:
        FormatError: nothing can be proven.
    """
    ways = [read]
    flip = flipped_bit(read, size_bytes)
    if flip is not None:
        ways.insert(0, _with_flip(read, *flip))
    found = [(outline, way) for way in ways if (outline := _try_salvage(way, size_bytes)) is not None]
    if not found:
        return salvage(read, size_bytes), read  # for its error
    return min(found, key=lambda each: len(lost_bundles(each[0].columns)))


def _try_salvage(read: Read, size_bytes: int) -> Outline | None:
    try:
        return salvage(read, size_bytes)
    except FormatError:
        return None


def _with_flip(read: Read, at: int, mask: int) -> Read:
    def corrected(length: int, offset: int) -> bytes:
        data = read(length, offset)
        if not offset <= at < offset + len(data):
            return data
        return data[: at - offset] + bytes([data[at - offset] ^ mask]) + data[at - offset + 1 :]

    return corrected


def lost_bundles(columns: ManifestColumns) -> tuple[int, ...]:
    """Indexes of the bundles that have no slots: what they were is not known any more."""
    return tuple(np.flatnonzero(columns.slot_counts == 0).tolist())
