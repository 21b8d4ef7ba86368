"""The order in which users are served, and how long each may use the loop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from quiver_actors.base.protocol.costs import COSTS_NS, least_cost_ns
from quiver_actors.base.protocol.messages import AttachArena, ClientMessage, FlushProgress, Resolve
from quiver_actors.node.worker import budgets
from quiver_actors.node.worker.budgets import GUEST_TURN_NS, GUESTS_TURN_NS, NEVER_NS, OWN_TURN_NS, Budget, Budgets
from quiver_actors.node.worker.connection import Connection
from quiver_actors.node.worker.peer import Peer
from quiver_actors.node.worker.session import Session


class Clock:
    """Stands still but for what is charged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 10**12
        monkeypatch.setattr(budgets, "monotonic_ns", lambda: self.now_ns)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def session_of() -> Iterator[Callable[[Budgets[Session], int], Session]]:
    made: list[socket.socket] = []

    def make(budgets: Budgets[Session], uid: int) -> Session:
        pair = socket.socketpair()
        made.extend(pair)
        budget = budgets.of(uid, is_guest=True)
        return Session(Connection(pair[0], frame_bytes_max=4096), Peer(1, uid, uid), 0, set(), budget)

    yield make
    for end in made:
        end.close()


def test_every_message_of_a_client_has_a_cost() -> None:
    assert set(COSTS_NS) == set(ClientMessage.__args__)
    assert all(cost_ns > 0 for cost_ns in COSTS_NS.values())


def test_what_a_message_asks_for_is_in_its_cost() -> None:
    assert least_cost_ns(AttachArena(1, 64 << 20)) > 10 * least_cost_ns(AttachArena(1, 1 << 20))
    assert least_cost_ns(AttachArena(1, 1 << 62)) < 1_000_000_000  # no number postpones a user for ever
    plain, durable = (Resolve(1, "t", "s", 0, 1, "ack", b"", durable=durable) for durable in (False, True))
    assert least_cost_ns(durable) == least_cost_ns(FlushProgress(1, "t", "s")) > least_cost_ns(plain)


def test_the_own_user_has_a_whole_budget_in_each_turn(clock: Clock) -> None:
    budget: Budget[Session] = Budget(is_guest=False, now_ns=clock.now_ns)
    budget.left_ns = -(10**9)
    budget.begin(1)
    assert budget.left_ns == OWN_TURN_NS
    budget.left_ns = 5
    budget.begin(1)
    assert budget.left_ns == 5


def test_a_guest_pays_its_debt_with_time(clock: Clock) -> None:
    budget: Budget[Session] = Budget(is_guest=True, now_ns=clock.now_ns)
    budget.left_ns = -1000
    budget.begin(1)
    budget.grow(clock.now_ns + 1000)
    assert budget.left_ns == 0
    assert budget.due_ns == clock.now_ns + 1001
    budget.grow(clock.now_ns + 10**9)
    assert budget.left_ns == GUEST_TURN_NS


def test_connections_of_one_user_share_one_budget_in_rotation(
    clock: Clock, session_of: Callable[[Budgets[Session], int], Session]
) -> None:
    made: Budgets[Session] = Budgets()
    sessions = [session_of(made, 7) for _ in range(5)]
    served: list[int] = []

    def take(session: Session) -> None:
        served.append(sessions.index(session))
        clock.now_ns += GUEST_TURN_NS // 2
        session.budget.left_ns -= GUEST_TURN_NS // 2
        made.want(session)

    for session in sessions:
        made.want(session)
    made.serve(clock.now_ns, take)
    assert served == [0, 1], "a budget is for all connections of a user together"
    for _ in range(4):
        made.serve(clock.now_ns, take)
    assert served == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]


def test_users_take_turns_and_none_waits_for_one_with_more_connections(
    clock: Clock, session_of: Callable[[Budgets[Session], int], Session]
) -> None:
    made: Budgets[Session] = Budgets()
    crowd = [session_of(made, 1) for _ in range(50)]
    single = session_of(made, 2)
    served: list[int] = []

    def take(session: Session) -> None:
        served.append(session.peer.uid)
        clock.now_ns += GUEST_TURN_NS
        session.budget.left_ns -= GUEST_TURN_NS
        made.want(session)

    for session in [*crowd, single]:
        made.want(session)
    for _ in range(10):
        started_ns = clock.now_ns
        made.serve(started_ns, take)
        assert clock.now_ns - started_ns <= GUESTS_TURN_NS, "guests together have a part of a turn"
    assert served.count(1) == served.count(2) == 10


def test_a_costly_request_is_waited_for_by_its_user_alone(
    clock: Clock, session_of: Callable[[Budgets[Session], int], Session]
) -> None:
    made: Budgets[Session] = Budgets()
    costly, other = session_of(made, 1), session_of(made, 2)
    made.want(costly)
    costly.budget.left_ns = -20 * GUEST_TURN_NS
    served: list[Session] = []
    made.serve(clock.now_ns, served.append)
    assert served == []
    assert made.due_ns == clock.now_ns + 20 * GUEST_TURN_NS + 1
    made.want(other)
    assert made.due_ns <= clock.now_ns
    made.serve(clock.now_ns, served.append)
    clock.now_ns += 20 * GUEST_TURN_NS + 1
    made.serve(clock.now_ns, served.append)
    assert served == [other, costly]
    assert made.due_ns == NEVER_NS


def test_a_user_who_connects_anew_has_the_same_debt(
    clock: Clock, session_of: Callable[[Budgets[Session], int], Session]
) -> None:
    made: Budgets[Session] = Budgets()
    first = session_of(made, 1)
    made.want(first)
    first.budget.left_ns = -1
    made.leave(first)
    made.leave(first)
    assert not made.in_turn
    assert session_of(made, 1).budget.left_ns == -1
