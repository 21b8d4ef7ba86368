"""Decides when a dead child is started again: doubling backoff inside an intensity window. Pure; the clock is passed in."""

from __future__ import annotations

from collections import deque

from .spec import RestartPolicy


class RestartHistory:
    """Deaths of one child, as far back as the window reaches."""

    __slots__ = ("_deaths", "_policy", "_since_reset")

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._deaths: deque[int] = deque()
        self._since_reset = 0

    def died(self, now_ns: int, lived_ns: int) -> int | None:
        """Record a death after a life of `lived_ns`.

        Returns:
            Nanoseconds to wait before the next start, or None: more deaths in the window than the policy allows.
        """
        if lived_ns >= self._policy.backoff_reset_ns:
            self._since_reset = 0
        self._since_reset += 1
        self._deaths.append(now_ns)
        while self._deaths[0] <= now_ns - self._policy.intensity_window_ns:
            self._deaths.popleft()
        if len(self._deaths) > self._policy.intensity_count:
            return None
        return self._backoff_ns()

    def _backoff_ns(self) -> int:
        policy = self._policy
        doublings = min(self._since_reset - 1, 62)  # the shift stays small however often the child has died
        return min(policy.backoff_first_ns << doublings, policy.backoff_max_ns)
