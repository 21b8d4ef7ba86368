"""The claims that one connection to a worker holds for a subscriber: its grants, and the lease that all consumers of the subscriber have.

Used under the lock of the consumer's exchange. The worker's view decides: a grant ends here when this side has resolved all of it, or the
worker has said that it is withdrawn.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from quiver_actors.base.protocol.messages import Terms
from quiver_actors.client.grants import Grant
from quiver_actors.client.inbox import Inbox

INDEXES_END = 1 << 32


class HeldClaims:
    """The claims of one subscriber that one connection to a worker holds, with their leases."""

    def __init__(self, terms: Terms, inbox: Inbox[Any]) -> None:
        """
        Args:
            terms: what the consumer asks for.
            inbox: queue of held bundles that wait to be taken.
        """
        self.terms = terms
        """Terms in force for all consumers of the subscriber; the worker announces a change by another consumer."""
        self._asked = terms
        self._inbox = inbox
        self._grants: dict[int, Grant] = {}
        """Grants with unresolved bundles, by token."""

    @property
    def bundle_count(self) -> int:
        """Number of held bundles: those that wait in the inbox, and those that were delivered to the caller."""
        return sum(grant.unresolved for grant in self._grants.values())

    def get(self, token: int) -> Grant | None:
        """Return the grant of a fencing token, or None if this connection holds nothing under it."""
        return self._grants.get(token)

    def granted(self, token: int, segment_seq: int, lease_until_ns: int, now_ns: int) -> Grant:
        """The grant that bundles have come under; several deliveries may share one."""
        grant = self._grants.get(token)
        if grant is None:
            grant = self._grants[token] = Grant(token, lease_until_ns, now_ns, segment_seq)
        return grant

    def release(self, grant: Grant, bundle_indexes: Sequence[int]) -> None:
        """Note that this side has resolved or returned bundles of the grant."""
        grant.finished.extend(bundle_indexes)
        grant.unresolved -= len(bundle_indexes)
        self._drop_empty(grant)

    def withdraw(self, grant: Grant, first: int = 0, stop: int = INDEXES_END, *, is_lost: bool = True) -> int:
        """Drop claims that the worker has ended. Returns how many of the bundles waited in the inbox: they are not delivered."""
        waited = self._inbox.withdraw(grant, grant.withdraw(first, stop), is_lost=is_lost)
        self._drop_empty(grant)
        return waited

    def retire(self, segment_seq: int) -> int:
        """Drop all claims of a segment of which nothing is owed any more, like `withdraw` for each of its grants."""
        retired = [grant for grant in self._grants.values() if grant.segment_seq == segment_seq]
        return sum(self.withdraw(grant, is_lost=False) for grant in retired)

    def taken(self) -> Iterator[tuple[Grant, array[int]]]:
        """Yield the bundles that the caller was handed and that are held, grant by grant."""
        for grant in self._grants.values():
            waiting = self._inbox.waiting_of(grant)
            held = set(grant.delivered).difference(grant.finished, grant.withdrawn, waiting)
            if held:
                yield grant, array("I", sorted(held))

    def take_over(self, terms: Terms, lease_until_ns: int) -> None:
        """Take over new terms for all consumers; leases end at `lease_until_ns`; -1: when they ended before."""
        self.terms = terms
        if lease_until_ns >= 0:
            for grant in self._grants.values():
                grant.lease_until_ns = lease_until_ns

    def extended(self, tokens: Iterable[int], ended: Collection[int], lease_until_ns: int) -> int:
        """Note leases that the worker began anew, and those that had ended. Returns how many bundles left the inbox by that."""
        waited = 0
        for grant in [self._grants[token] for token in tokens if token in self._grants]:
            grant.is_asked = False
            if grant.token in ended:
                waited += self.withdraw(grant)
            else:
                grant.lease_until_ns = lease_until_ns
        return waited

    def due(self, now_ns: int) -> list[Grant]:
        """Grants of which something waits in the inbox, and whose lease is to begin anew."""
        lease_ns = self.terms.lease_ns
        if not lease_ns:
            return []
        due_ns = now_ns - lease_ns // 3
        return [grant for grant in self._grants.values() if grant.waiting and grant.asked_at_ns <= due_ns]

    def clear(self) -> None:
        """The connection is lost, and all claims with it; the next one asks for its own terms."""
        self._grants.clear()
        self.terms = self._asked

    def _drop_empty(self, grant: Grant) -> None:
        if grant.unresolved <= 0:
            self._grants.pop(grant.token, None)
