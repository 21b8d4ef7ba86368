"""Failed reads of bundles whose file is whole: how often, by subscriber and bundle, and what was found of the bundle since.

Owner: the engine's `Repair`, on the loop thread. Pure. A bundle that the engine itself can decode is offered to a subscriber `TRIES_MAX`
times; then the subscriber's copy is set aside. It is set aside only after a check that was made since its first failure, so that a fault of
the disk is never taken for a consumer's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

TRIES_MAX = 5
ENTRIES_MAX = 65_536
"""Beyond it the failures of the segment that was named first are forgotten: its bundles get as many tries again."""


class ReadFailures:
    """Counts how often each subscriber failed to read each bundle of a file that is whole."""

    def __init__(self) -> None:
        self._tries: dict[int, dict[tuple[str, int], int]] = {}
        """How many reads failed, by segment, then by subscriber and bundle."""
        self._decodable: dict[int, set[int]] = {}
        """Bundles of these segments that were found to be what they should be."""
        self._count = 0

    def tries(self, subscriber: str, segment_seq: int, index: int) -> int:
        """How often the subscriber could not read the bundle."""
        return self._tries.get(segment_seq, {}).get((subscriber, index), 0)

    def last_tries(self, subscriber: str, segment_seq: int, indexes: Iterable[int]) -> list[int]:
        """The indexes that were unreadable too often: these bundles are not offered to the subscriber again."""
        decodable = self._decodable.get(segment_seq, ())
        tries = self._tries.get(segment_seq, {})
        return [index for index in indexes if index in decodable and tries.get((subscriber, index), 0) + 1 >= TRIES_MAX]

    def note(self, subscriber: str, segment_seq: int, indexes: Iterable[int]) -> None:
        """Count one failed read of each of these bundles by the subscriber."""
        tries = self._tries.setdefault(segment_seq, {})
        before = len(tries)
        for index in indexes:
            tries[subscriber, index] = tries.get((subscriber, index), 0) + 1
        self._count += len(tries) - before
        while self._count > ENTRIES_MAX and len(self._tries) > 1:
            self.forget(next(iter(self._tries)))

    def note_decodable(self, segment_seq: int, indexes: Sequence[int]) -> None:
        """Note that the file is whole and that these bundles of it can be decoded."""
        if segment_seq in self._tries:
            self._decodable.setdefault(segment_seq, set()).update(indexes)

    def forget(self, segment_seq: int) -> None:
        """Forget a segment that is gone, or has another file."""
        self._count -= len(self._tries.pop(segment_seq, ()))
        self._decodable.pop(segment_seq, None)
