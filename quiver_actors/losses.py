"""What of an engine's sealed segments is damaged, what is lost for good, and what subscribers are told about it.

Owner: the engine, on its loop thread. Pure. A lost bundle is a row without slots in a segment that can be read: nobody gets it, and whoever
would have got it gets a gap notice in its place. A damaged segment waits for its rescue, and is whole again or gone after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from quiver_actors.events import Event, GapFound
from quiver_actors.subscriber.claims import SubscriberState
from quiver_actors.subscriber.registry import SubscriberRegistry

REASON = "damaged"

Granted = list[tuple[int, list[int]]]
"""Segments and bundle indexes in them."""


class Losses:
    """See the module.

    Attributes:
        damaged: segments that wait for their rescue, and what is wrong with them.
    """

    def __init__(self, registry: SubscriberRegistry, damaged: Mapping[int, str]) -> None:
        self._registry = registry
        self._lost: dict[int, frozenset[int]] = {}
        self.damaged = dict(damaged)

    def record(self, segment_seq: int, lost: Collection[int]) -> None:
        """The segment can be read, but for these bundles."""
        self.damaged.pop(segment_seq, None)
        if lost:
            self._lost[segment_seq] = frozenset(lost)

    def forget(self, segment_seq: int) -> None:
        """The segment's file was deleted."""
        self.damaged.pop(segment_seq, None)
        self._lost.pop(segment_seq, None)

    def lose_whole(self, segment_seq: int) -> list[Event]:
        """Nothing of the segment can be read. Where nobody knows how many bundles it had, the gap names 0 of them."""
        gaps: list[Event] = []
        for state in self._registry:
            if not state.is_complete(segment_seq):
                runs = state.forget_segment(segment_seq) or [(0, 0)]
                gaps += [GapFound(state.subscriber, segment_seq, *run, REASON) for run in runs]
        self._registry.forget_segment(segment_seq)
        self.forget(segment_seq)
        return gaps

    def open_ends(self, segment_seq: int, bundle_count: int) -> list[GapFound]:
        """Behind the last bundle of a rescued segment there may have been more: a gap of 0 bundles there."""
        waiting = [state.subscriber for state in self._registry if not state.is_complete(segment_seq)]
        return [GapFound(subscriber, segment_seq, bundle_count, 0, REASON) for subscriber in waiting]

    def claim(self, state: SubscriberState, owner: object, bundles: int, now_ns: int) -> tuple[Granted, list[GapFound]]:
        """Claim for `owner` what can be read; what is lost is resolved and named as gaps."""
        granted = state.claim(owner, bundles)
        kept: Granted = []
        gaps: list[GapFound] = []
        while any(segment_seq in self._lost for segment_seq, _ in granted):
            missing = 0
            for segment_seq, indexes in granted:
                lost = self._lost.get(segment_seq, frozenset())
                gone = [index for index in indexes if index in lost]
                state.resolve(owner, segment_seq, "reject", gone, 0, now_ns)
                gaps += [GapFound(state.subscriber, segment_seq, *run, REASON) for run in _runs(gone)]
                missing += len(gone)
                if len(gone) < len(indexes):
                    kept.append((segment_seq, [index for index in indexes if index not in lost]))
            # Whoever gets less than asked for waits until there is more: lost bundles must not look like the end.
            granted = state.claim(owner, missing)
        return kept + granted, gaps


def _runs(indexes: Sequence[int]) -> list[tuple[int, int]]:
    """Ascending indexes as (first, count)."""
    starts = [place for place, index in enumerate(indexes) if not place or indexes[place - 1] != index - 1]
    return [(indexes[start], end - start) for start, end in zip(starts, [*starts[1:], len(indexes)], strict=False)]
