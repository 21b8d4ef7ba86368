"""A subscriber whose owners remember their tokens, so that a test speaks of owners and bundles only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quiver_actors.store.subscriber.claims import SubscriberState


class RememberingState(SubscriberState):
    """Claims come as (segment, indexes); `resolve` finds the tokens and returns what did not move, in the order asked."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._held: dict[tuple[object, int, int], int] = {}

    @property
    def pending_count(self) -> int:
        """Bundles of sealed segments that nobody holds and that are not resolved, deferred ones included."""
        return self.progress.unresolved_count - self.leases.claimed_count

    def claim(self, owner: object, bundles: int, *more: Any, **options: Any) -> Any:
        grants = super().claim(owner, bundles, *more, **options)
        for grant in grants:
            self._held.update(((owner, grant.segment_seq, index), grant.token) for index in grant.indexes)
        return [(grant.segment_seq, list(grant.indexes)) for grant in grants]

    def resolve(  # type: ignore[override]
        self, owner: object, segment_seq: int, outcome: str, indexes: Sequence[int], delay_ns: int, now_ns: int
    ) -> list[int]:
        by_token: dict[int, list[int]] = {}
        for index in dict.fromkeys(indexes):
            by_token.setdefault(self._held.pop((owner, segment_seq, index), 0), []).append(index)
        refused: set[int] = set()
        for token, group in (by_token or {0: []}).items():
            for _, bundles in super().resolve(owner, segment_seq, token, outcome, group, delay_ns, now_ns):
                refused.update(bundles)
        seen: set[int] = set()
        # The second mention of a bundle did not move it either; `add` returns None.
        return [index for index in indexes if index in refused or index in seen or seen.add(index)]  # type: ignore[func-returns-value]
