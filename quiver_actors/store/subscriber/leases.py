"""Grants of one subscriber of which something is held: who owns each, and when its lease runs out.

Owner: one `SubscriberState`. A claim makes one grant a segment, with a token that rises for ever. Only that token and its owner can
finish the grant's bundles. A grant ends when its last bundle is finished, when its lease runs out, or when its owner goes.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence

from quiver_actors.store.subscriber.grants import Grant, Live, Owner, TokenSource

_ENDED_MAX = 65_536
"""How many tokens that lost their claims are remembered, to tell their late owners why."""


NoteWithdrawn = Callable[[Live, int, int], object]
"""Called with a grant and the range of bundles in which nothing of it is held any more."""


class Leases:
    """The grants of one subscriber of which something is held, with their owners and their leases.

    Attributes:
        tokens: where every token comes from.
        lease_ns: how long a silent owner keeps its bundles, in nanoseconds; 0 = as long as it lives.
        claimed_count: bundles held by owners now.
    """

    def __init__(self, tokens: TokenSource, note_withdrawn: NoteWithdrawn) -> None:
        """
        Args:
            note_withdrawn: told of claims that end without their owner having ended them. It must not refer to this object.
        """
        self.tokens = tokens
        self._note_withdrawn = note_withdrawn
        self.lease_ns = 0
        self.claimed_count = 0
        self._owners: dict[object, Owner] = {}
        self._live: dict[int, Live] = {}
        self._leased: OrderedDict[int, Live] = OrderedDict()  # by the end of their lease
        self._ended: dict[int, bool] = {}  # by token: whether its bundles were taken from everybody
        self._ended_order: deque[int] = deque()

    def owner(self, key: object) -> Owner:
        """The record of an owner (any hashable object), made if there is none."""
        return self._owners.get(key) or self._owners.setdefault(key, Owner())

    def held(self, key: object) -> tuple[int, int]:
        """How many bundles, and how many bytes, an owner has claimed now."""
        holder = self._owners.get(key)
        return (holder.held_count, holder.held_bytes) if holder else (0, 0)

    # --- grants begin ------------------------------------------------------------------------------------------------------

    def grant(self, live: Live, key: object, now_ns: int) -> Grant:
        """Give the owner what was claimed of one segment."""
        self.hold(live, key, now_ns)
        grant = Grant(live.segment_seq, live.indexes, live.token, live.counts, live.lease_until_ns)
        live.indexes, live.counts = (), b""
        return grant

    def hold(self, live: Live, key: object, now_ns: int) -> None:
        """Note that the owner holds what was claimed of one segment."""
        token, lease_ns, holder = live.token, self.lease_ns, self._owners.get(key) or self.owner(key)
        live.owner, live.owner_key = holder, key
        self._live[token] = live
        holder.tokens.add(token)
        holder.held_count += live.held
        holder.held_bytes += live.held_bytes
        self.claimed_count += live.held
        live.lease_until_ns = now_ns + lease_ns if lease_ns else 0
        if lease_ns:
            self._leased[token] = live

    def _lease(self, live: Live, now_ns: int) -> None:
        live.lease_until_ns = now_ns + self.lease_ns if self.lease_ns else 0
        if self.lease_ns:
            self._leased[live.token] = live
            self._leased.move_to_end(live.token)

    def set_lease(self, lease_ns: int, now_ns: int) -> None:
        """Change the length of leases: every grant gets the new lease from now."""
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

    def note_taken(self, token: int, key: object, segment_seq: int, indexes: Sequence[int]) -> None:
        """Note that the caller of an owner was handed bundles. What the owner does not hold under that token is passed over."""
        live = self.find(token, key, segment_seq)
        if live is not None:
            live.note_taken(live.states.held(indexes, token)[0])

    def count_off(self, live: Live, count: int, size_bytes: int | None = None) -> None:
        """Note that so many bundles of a grant are held no more; the last one ends the grant.

        Args:
            size_bytes: bytes of those bundles; None: nobody knows which they are, and they count with their share of the grant's bytes.
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

    def give_up(self, claimed: Iterable[tuple[int, int]], start: int, stop: int) -> None:
        """End claims, as (token, how many of its bundles), that were resolved whoever held them; all lie in `start..stop`."""
        for token, count in claimed:
            live = self._live[token]
            self._note_withdrawn(live, start, stop)
            self.count_off(live, count)

    def note_ended(self, token: int, *, given_up: bool) -> None:
        """Note that the grant of that token lost its claims; `given_up`: its bundles were taken from everybody."""
        if token not in self._ended:
            self._ended_order.append(token)
        self._ended[token] = given_up
        if len(self._ended_order) > _ENDED_MAX:
            del self._ended[self._ended_order.popleft()]

    def succeed(self, former: Leases) -> None:
        """Take the place of `former`: everything that is held there is taken from its owners."""
        for token in former.withdraw_all():
            self.note_ended(token, given_up=True)
        for key in former.telling():
            self.owner(key).tells_taken = True

    def telling(self) -> list[object]:
        """Return the owners that tell which bundles their callers were handed."""
        return [key for key, holder in self._owners.items() if holder.tells_taken]

    def withdraw_all(self) -> Iterable[int]:
        """Tell every owner that it holds nothing any more. Returns the tokens of what was held."""
        for live in self._live.values():
            self._note_withdrawn(live, live.start, live.stop)
        return self._live

    def has_ended(self, token: int) -> bool:
        """Whether the grant of that token lost its claims, as far as that is remembered."""
        return token in self._ended

    def was_given_up(self, token: int) -> bool:
        """Whether the bundles of a token that `has_ended` were taken from everybody."""
        return self._ended[token]

    def of_owner(self, key: object) -> list[Live]:
        """Forget an owner that is gone, and return what it held, oldest grant first."""
        holder = self._owners.pop(key, None)
        return [self._live[token] for token in sorted(holder.tokens)] if holder else []

    def overdue(self, now_ns: int) -> list[Live]:
        """Grants whose lease has run out."""
        return list(itertools.takewhile(lambda live: live.lease_until_ns <= now_ns, self._leased.values()))

    def take_away(self, lives: Iterable[Live]) -> None:
        """End grants whose owner is gone or silent. What becomes of their bundles is the caller's to decide."""
        for live in lives:
            self._note_withdrawn(live, live.start, live.stop)
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
        """Numbers of the segments of which something is held."""
        return {live.segment_seq for live in self._live.values()}
