"""The time of the loop that each user may use, and the order in which connections are served.

Owner: the loop thread. Every request costs the time that it took; another user's request costs the row of its message in
`base.protocol.costs` where that is more.

- The node's own user and root have `OWN_TURN_NS` for requests in every turn. Their pushes are not counted: a push has a budget of bytes.
- Any other user (a guest) has one budget for everything that its connections ask, pushes included. The budget grows with time, up to
  `GUEST_TURN_NS`, so that a guest alone can keep the loop busy; what costs more than is left becomes a debt that is waited for.
- Guests are served at the end of a turn, for `GUESTS_TURN_NS` altogether: users in rotation, and the connections of each in rotation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any, Generic, Protocol, TypeVar

from quiver_actors.base.units import MICROSECOND_NS, MILLISECOND_NS

OWN_TURN_NS = 4 * MILLISECOND_NS
GUEST_TURN_NS = 250 * MICROSECOND_NS
GUESTS_TURN_NS = 500 * MICROSECOND_NS
NEVER_NS = (1 << 63) - 1


class Served(Protocol):
    """A connection that uses the budget of its user."""

    budget: Budget[Any]


S = TypeVar("S", bound=Served)


class Budget(Generic[S]):
    """Time that one user may still use of the loop now.

    Attributes:
        left_ns: at or below 0 nothing more is taken from the user's connections.
        waiting: connections of a guest from which something can be taken, the next one first.
    """

    __slots__ = ("_at_ns", "_is_guest", "_turn", "left_ns", "waiting")

    def __init__(self, *, is_guest: bool, now_ns: int) -> None:
        self._is_guest = is_guest
        self.left_ns = GUEST_TURN_NS if is_guest else OWN_TURN_NS
        self.waiting: dict[S, None] = {}
        self._at_ns = now_ns
        self._turn = 0

    def begin(self, turn: int) -> None:
        """The node's own user has a whole budget in each turn of that number."""
        if turn != self._turn and not self._is_guest:
            self._turn = turn
            self.left_ns = OWN_TURN_NS

    def grow(self, now_ns: int) -> None:
        """A guest's budget grows by the time that has passed."""
        self.left_ns = min(GUEST_TURN_NS, self.left_ns + now_ns - self._at_ns)
        self._at_ns = now_ns

    @property
    def due_ns(self) -> int:
        """When something is left of a guest's budget; not after now if something is."""
        return self._at_ns + 1 - self.left_ns


class Budgets(Generic[S]):
    """Time budgets of all users on one worker, and the order in which waiting guests are served."""

    def __init__(self) -> None:
        self._of_user: dict[int, Budget[S]] = {}
        """Budgets by user id, kept for ever: a user who connects anew has the same debt."""
        self.in_turn: deque[Budget[S]] = deque()
        """Guests with connections that wait, the next one first."""

    def of(self, uid: int, *, is_guest: bool) -> Budget[S]:
        """The one budget of that user."""
        budget = self._of_user.get(uid)
        if budget is None:
            budget = self._of_user[uid] = Budget(is_guest=is_guest, now_ns=monotonic_ns())
        return budget

    @property
    def due_ns(self) -> int:
        """When `serve` has something to do: not after now if it has, `NEVER_NS` if no guest waits."""
        return min(budget.due_ns for budget in self.in_turn) if self.in_turn else NEVER_NS

    def want(self, session: S) -> None:
        """Something can be taken from a guest's connection: it waits for its turn."""
        budget = session.budget
        if not budget.waiting:
            self.in_turn.append(budget)
        budget.waiting[session] = None

    def leave(self, session: S) -> None:
        """The connection is over, or is not to be served. Idempotent."""
        budget = session.budget
        if session in budget.waiting:
            del budget.waiting[session]
            if not budget.waiting:
                self.in_turn.remove(budget)

    def serve(self, now_ns: int, take: Callable[[S], None]) -> None:
        """Serve guests within their budgets.

        Args:
            take: takes from a connection what is there, until nothing is left of its budget; calls `want` if there is more.
        """
        stop_ns = now_ns + GUESTS_TURN_NS
        for _ in range(len(self.in_turn)):
            if not self.in_turn or now_ns >= stop_ns:
                return
            budget = self.in_turn[0]
            self.in_turn.rotate(-1)
            budget.grow(now_ns)
            while budget.waiting and budget.left_ns > 0:
                session = next(iter(budget.waiting))
                self.leave(session)
                take(session)
            now_ns = monotonic_ns()
