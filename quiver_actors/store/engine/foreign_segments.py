"""Segments of other writers that subscribers were told of, as `quiver.foreign` lists them. See `foreign_record`.

Owner: the engine, on the loop thread. A segment leaves the record before its file goes: another writer that begins its numbers at 0 again
may write a file of that number, size and checksum, which is new data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from quiver_actors.store.files.foreign_record import ForeignRecord, encode_foreign


class ForeignSegments:
    """The segments of other writers that subscribers were told of, and the record of them that is on disk."""

    def __init__(self, record: ForeignRecord) -> None:
        self._record = record

    def __contains__(self, segment_seq: object) -> bool:
        return segment_seq in self._record.segments

    def without(self, segment_seqs: Iterable[int]) -> bytes | None:
        """The record's content without those segments; None if it has none of them."""
        gone = set(segment_seqs)
        if gone.isdisjoint(self._record.segments):
            return None
        left = {seq: segment for seq, segment in self._record.segments.items() if seq not in gone}
        return encode_foreign(replace(self._record, segments=left))

    def forget(self, segment_seqs: Iterable[int]) -> None:
        """Remove these segments from the record: their files are gone."""
        gone = set(segment_seqs)
        left = {seq: segment for seq, segment in self._record.segments.items() if seq not in gone}
        self._record = replace(self._record, segments=left)
