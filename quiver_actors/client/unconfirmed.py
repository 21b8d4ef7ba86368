"""The final resolutions over the connections to one worker that are not known to be durable yet.

A resolution is noted when it is sent; asking the worker to make progress durable (FlushProgress) covers all that was noted before, and its
answer confirms them. What was noted and not confirmed when the connection breaks is lost: durable or not, only the next worker knows.
A lost bundle that is delivered and resolved again is not lost any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from quiver_actors.base.ranges import runs_by_segment

Place = tuple[int, int]
"""Segment and bundle index on the worker's core."""
Range = tuple[Place, Place]
"""First and last place of a range; the end is exclusive."""


class Unconfirmed:
    """Owner: the channel to the worker."""

    __slots__ = ("_asked", "_lost", "_noted", "noted_count")

    def __init__(self) -> None:
        self.noted_count = 0
        """Resolutions since the worker was last asked."""
        self._noted: dict[int, array[int]] = {}
        """Bundle indexes by segment."""
        self._asked: dict[int, dict[int, array[int]]] = {}
        """Unconfirmed resolutions by the tag of the question that covers them, oldest first."""
        self._lost: dict[int, set[int]] = {}

    @property
    def has_lost(self) -> bool:
        """Whether a lost connection took resolutions that were not known to be durable."""
        return bool(self._lost)

    def note(self, segment_seq: int, bundle_indexes: Sequence[int]) -> None:
        """Note that bundles were sent as acknowledged or rejected."""
        self.noted_count += len(bundle_indexes)
        noted = self._noted.get(segment_seq)
        if noted is None:
            noted = self._noted[segment_seq] = array("I")
        noted.extend(bundle_indexes)
        if self._lost:
            self._forget(segment_seq, bundle_indexes)

    def note_late(self, segment_seq: int, bundle_indexes: Iterable[int]) -> None:
        """Note that bundles were resolved when the connection of their claim was gone."""
        self._lost.setdefault(segment_seq, set()).update(bundle_indexes)

    def asked(self, tag: int) -> None:
        """Note that the worker was asked, under `tag`, to make all resolutions durable."""
        self._asked[tag] = self._noted
        self._noted, self.noted_count = {}, 0

    def confirmed(self, tag: int) -> None:
        """Note that the worker answered the question: that covers earlier questions."""
        for earlier in [other for other in self._asked if other <= tag]:
            del self._asked[earlier]

    def connection_lost(self) -> None:
        """Treat every resolution that was sent or noted, but not confirmed, as late."""
        for places in (*self._asked.values(), self._noted):
            for segment_seq, indexes in places.items():
                self.note_late(segment_seq, indexes)
        self._asked.clear()
        self._noted, self.noted_count = {}, 0

    def lost(self) -> list[Place]:
        """Return the lost places in rising order."""
        return [(segment_seq, index) for segment_seq in sorted(self._lost) for index in sorted(self._lost[segment_seq])]

    def settle(self, lost: Iterable[Place]) -> None:
        """Forget places whose fate is known."""
        for segment_seq, index in lost:
            self._forget(segment_seq, (index,))

    def _forget(self, segment_seq: int, bundle_indexes: Iterable[int]) -> None:
        lost = self._lost.get(segment_seq)
        if lost is not None:
            lost.difference_update(bundle_indexes)
            if not lost:
                del self._lost[segment_seq]


def ranges_of(places: Iterable[Place], ranges_max: int) -> list[Range]:
    """Return ranges of exactly these rising places; above `ranges_max`, the last range also holds the places in between."""
    found = [
        ((segment_seq, first), (segment_seq, first + count)) for segment_seq, first, count in runs_by_segment(places)
    ]
    if len(found) > ranges_max:
        found[ranges_max - 1 :] = [(found[ranges_max - 1][0], found[-1][1])]
    return found
