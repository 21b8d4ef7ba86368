"""How many of one thing each token may have: calls under way, open subscriptions, open datasets."""

from __future__ import annotations

from collections import Counter

from quiver_actors.base.locks import new_lock
from quiver_actors.base.rights import TokenHolder
from quiver_actors.errors import QuotaExceeded


class TokenLimit:
    """Counts what each token has. A place is taken before anything is opened, so opens at the same time cannot exceed it together.

    Several threads may call its methods.
    """

    def __init__(self, most: int, refusal: str) -> None:
        """`refusal`: what is said to a token that has as many, with the fields `holder` and `most`."""
        self.most = most
        self._refusal = refusal
        self._counts: Counter[TokenHolder] = Counter()
        self._lock = new_lock()

    def count(self, holder: TokenHolder) -> int:
        """How many a token has."""
        with self._lock:
            return self._counts[holder]

    def begin(self, holder: TokenHolder) -> None:
        """Take a place.

        Raises:
            QuotaExceeded: the token has as many as it may have.
        """
        with self._lock:
            if self._counts[holder] >= self.most:
                raise QuotaExceeded(self._refusal.format(holder=holder, most=self.most))
            self._counts[holder] += 1

    def end(self, holder: TokenHolder) -> None:
        """Give the place of one that has ended back to its token."""
        with self._lock:
            self._counts[holder] -= 1
