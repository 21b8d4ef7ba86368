"""Who is let in, to what, and how much of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver_actors.config import AccessSettings, TopicSettings
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.units import MIB
from quiver_actors.worker.access import Access
from quiver_actors.worker.peer import Peer

OWN, ROOT, GUEST, STRANGER, OWNER = 1000, 0, 2000, 3000, 4000
OPEN = TopicSettings(name="open", allowed_uids=(GUEST,), owner_uid=OWNER)
CLOSED = TopicSettings(name="closed")
TOPICS = [CLOSED, OPEN]


def peer(uid: int) -> Peer:
    return Peer(pid=1, uid=uid, gid=uid)


@pytest.fixture
def access() -> Access:
    return Access(AccessSettings(max_connections=2, max_arena_bytes=10 * MIB, max_subscribers=2), own_uid=OWN)


@pytest.mark.parametrize("uid", [OWN, ROOT, GUEST, OWNER])
def test_those_that_a_topic_names_are_let_in(access: Access, uid: int) -> None:
    access.admit(peer(uid), TOPICS)
    access.check_topic(peer(uid), OPEN)
    assert access.is_trusted(peer(uid)) == (uid in (OWN, ROOT))


def test_a_stranger_is_not(access: Access) -> None:
    with pytest.raises(NotAllowed, match="allowed_uids"):
        access.admit(peer(STRANGER), TOPICS)


@pytest.mark.parametrize("uid", [GUEST, OWNER, STRANGER])
def test_other_topics_stay_closed(access: Access, uid: int) -> None:
    with pytest.raises(NotAllowed, match="'closed'"):
        access.check_topic(peer(uid), CLOSED)


QUOTAS: list[tuple[Callable[[Access, int], None], Callable[[Access, int], None]]] = [
    (lambda access, uid: access.admit(peer(uid), TOPICS), lambda access, uid: access.leave(peer(uid))),
    (
        lambda access, uid: access.take_arena(peer(uid), 5 * MIB),
        lambda access, uid: access.give_arena(peer(uid), 5 * MIB),
    ),
    (lambda access, uid: access.take_subscriber(peer(uid)), lambda access, uid: access.give_subscriber(peer(uid))),
]


@pytest.mark.parametrize(("take", "give"), QUOTAS, ids=["connections", "arenas", "subscribers"])
def test_each_quota_is_a_users_own_and_comes_back(
    access: Access, take: Callable[[Access, int], None], give: Callable[[Access, int], None]
) -> None:
    take(access, GUEST)
    take(access, GUEST)
    with pytest.raises(QuotaExceeded, match=f"user {GUEST}"):
        take(access, GUEST)
    take(access, OWNER)
    give(access, GUEST)
    take(access, GUEST)
    with pytest.raises(QuotaExceeded):
        take(access, GUEST)


@pytest.mark.parametrize(("take", "give"), QUOTAS, ids=["connections", "arenas", "subscribers"])
def test_the_nodes_own_user_has_none(
    access: Access, take: Callable[[Access, int], None], give: Callable[[Access, int], None]
) -> None:
    for _ in range(5):
        take(access, OWN)
    for _ in range(5):
        give(access, OWN)
    with pytest.raises(AssertionError):
        give(access, OWN)
