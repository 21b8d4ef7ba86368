"""Who holds what: the grants of one subscriber of which something is held, their owners, and when their leases run out.

Owner: one `SubscriberState`. A claim makes one grant a segment, with a token that rises for ever. Only that token and its owner can
finish the grant's bundles. A grant ends when its last bundle is finished, when its lease runs out, or when its owner goes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable

from quiver_actors.subscriber.grants import Grant, Live, Owner, TokenSource

_ENDED_MAX = 65_536
"""So many tokens that lost their claims are remembered, to tell their late owners why."""


class Leases:
    """See the module.

    Attributes:
        tokens: where every token comes from.
        lease_ns: how long a silent owner keeps its bundles; 0 = as long as it lives.
        claimed_count: bundles held by owners now.
    """

    def __init__(self, tokens: TokenSource) -> None:
        self.tokens = tokens
        self.lease_ns = 0
        self.claimed_count = 0
        self._owners: dict[object, Owner] = {}
        self._live: dict[int, Live] = {}
        self._leased: OrderedDict[int, Live] = OrderedDict()  # by the end of their lease
        self._ended: dict[int, bool] = {}  # token: whether its bundles were given up for everybody
        self._ended_order: deque[int] = deque()

    def owner(self, key: object) -> Owner:
        """What is noted of an owner (any hashable object)."""
        return self._owners.get(key) or self._owners.setdefault(key, Owner())

    def held(self, key: object) -> tuple[int, int]:
        """(bundles, bytes) that an owner has claimed now."""
        holder = self._owners.get(key)
        return (holder.held_count, holder.held_bytes) if holder else (0, 0)

    # --- grants begin ------------------------------------------------------------------------------------------------------

    def grant(self, live: Live, key: object, holder: Owner, now_ns: int) -> Grant:
        """What was claimed of one segment is the owner's from now on."""
        token, lease_ns = live.token, self.lease_ns
        live.owner, live.owner_key = holder, key
        self._live[token] = live
        holder.tokens.add(token)
        holder.held_count += live.held
        holder.held_bytes += live.held_bytes
        self.claimed_count += live.held
        live.lease_until_ns = now_ns + lease_ns if lease_ns else 0
        if lease_ns:
            self._leased[token] = live
        grant = Grant(live.segment_seq, live.indexes, token, live.counts, live.lease_until_ns)
        live.indexes, live.counts = (), b""
        return grant

    def _lease(self, live: Live, now_ns: int) -> None:
        live.lease_until_ns = now_ns + self.lease_ns if self.lease_ns else 0
        if self.lease_ns:
            self._leased[live.token] = live
            self._leased.move_to_end(live.token)

    def set_lease(self, lease_ns: int, now_ns: int) -> None:
        """What is held gets the new lease from now."""
        if lease_ns == self.lease_ns:
            return
        self.lease_ns = lease_ns
        self._leased.clear()
        for live in self._live.values():
            self._lease(live, now_ns)

    def extend(self, key: object, tokens: Iterable[int], now_ns: int) -> tuple[int, list[int]]:
        """Start the lease of these grants anew.

        Returns:
            When it ends now (0: never), and the tokens under which that owner holds nothing any more.
        """
        ended = []
        for token in tokens:
            live = self._live.get(token)
            if live is None or live.owner_key is not key:
                ended.append(token)
            else:
                self._lease(live, now_ns)
        return (now_ns + self.lease_ns if self.lease_ns else 0), ended

    # --- grants end --------------------------------------------------------------------------------------------------------

    def find(self, token: int, key: object, segment_seq: int) -> Live | None:
        """The grant of that token, if it is that owner's and of that segment."""
        live = self._live.get(token)
        return live if live is not None and live.owner_key is key and live.segment_seq == segment_seq else None

    def count_off(self, live: Live, count: int, size_bytes: int | None = None) -> None:
        """So many bundles of a grant are held no more; the last one ends it.

        Args:
            size_bytes: of those; None: nobody knows which they are, so their share of the grant's.
        """
        if size_bytes is None or count == live.held or size_bytes > live.held_bytes:
            size_bytes = live.held_bytes * count // live.held
        live.held -= count
        live.held_bytes -= size_bytes
        live.owner.held_count -= count
        live.owner.held_bytes -= size_bytes
        self.claimed_count -= count
        if not live.held:
            del self._live[live.token]
            self._leased.pop(live.token, None)
            live.owner.tokens.discard(live.token)

    def give_up(self, claimed: Iterable[tuple[int, int]]) -> None:
        """(token, how many of its bundles) that were resolved whoever held them."""
        for token, count in claimed:
            self.count_off(self._live[token], count)

    def note_ended(self, token: int, *, given_up: bool) -> None:
        """The grant lost its claims; `given_up`: they were taken from everybody."""
        if token not in self._ended:
            self._ended_order.append(token)
        self._ended[token] = given_up
        if len(self._ended_order) > _ENDED_MAX:
            del self._ended[self._ended_order.popleft()]

    def succeed(self, former: Leases) -> None:
        """All that is held under `former` is given up."""
        for token in former._live:
            self.note_ended(token, given_up=True)

    def has_ended(self, token: int) -> bool:
        """Whether it lost its claims, as far as that is remembered."""
        return token in self._ended

    def was_given_up(self, token: int) -> bool:
        """Of one that `has_ended`."""
        return self._ended[token]

    def of_owner(self, key: object) -> list[Live]:
        """The owner is gone and forgotten; what it held, oldest grant first."""
        holder = self._owners.pop(key, None)
        return [self._live[token] for token in sorted(holder.tokens)] if holder else []

    def overdue(self, now_ns: int) -> list[Live]:
        """Grants whose lease has run out."""
        return list(itertools.takewhile(lambda live: live.lease_until_ns <= now_ns, self._leased.values()))

    def take_away(self, lives: Iterable[Live]) -> None:
        """End grants whose owner is gone or silent; their bundles are somebody else's business."""
        for live in lives:
            owner, token = live.owner, live.token
            self.claimed_count -= live.held
            owner.held_count -= live.held
            owner.held_bytes -= live.held_bytes
            owner.tokens.discard(token)
            del self._live[token]
            self._leased.pop(token, None)
            self.note_ended(token, given_up=False)

    def next_end_ns(self) -> int | None:
        """When the next lease runs out."""
        return next(iter(self._leased.values())).lease_until_ns if self._leased else None

    def segments(self) -> set[int]:
        """Of which something is held."""
        return {live.segment_seq for live in self._live.values()}
