"""Admission of connections: who is let in, to what, and how much of it."""

from __future__ import annotations

import pytest

from quiver_actors.base.config import AccessSettings, TopicSettings
from quiver_actors.base.protocol.messages import Unregister
from quiver_actors.base.rights import Ownership
from quiver_actors.base.units import MIB
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.node.worker.access import Access, Guest
from quiver_actors.node.worker.peer import Peer

OWN, ROOT, GUEST, STRANGER, OWNER = 1000, 0, 2000, 3000, 4000
OPEN = TopicSettings(name="open", allowed_uids=(GUEST,), owner_uid=OWNER)
CLOSED = TopicSettings(name="closed")
TOPICS = [CLOSED, OPEN]


def peer(uid: int) -> Peer:
    return Peer(pid=1, uid=uid, gid=uid)


@pytest.fixture
def access() -> Access:
    return Access(AccessSettings(max_connections=2, max_arena_bytes=10 * MIB, max_subscribers=2), own_uid=OWN)


def guest(access: Access, uid: int = GUEST) -> Guest:
    admitted = access.admit(peer(uid), TOPICS)
    assert admitted is not None
    return admitted


@pytest.mark.parametrize("uid", [OWN, ROOT])
def test_the_nodes_own_user_and_root_are_trusted(access: Access, uid: int) -> None:
    for _ in range(10):
        assert access.admit(peer(uid), TOPICS) is None


@pytest.mark.parametrize("uid", [GUEST, OWNER])
def test_those_that_a_topic_names_are_guests(access: Access, uid: int) -> None:
    admitted = guest(access, uid)
    admitted.check_topic(OPEN)
    with pytest.raises(NotAllowed, match="'closed'"):
        admitted.check_topic(CLOSED)


def test_a_stranger_is_not_let_in(access: Access) -> None:
    with pytest.raises(NotAllowed, match="allowed_uids"):
        access.admit(peer(STRANGER), TOPICS)


def test_what_is_the_owners_is_not_a_guests(access: Access) -> None:
    drop = Unregister(1, "open", "billing")
    guest(access, OWNER).check(drop, OPEN, "billing", Ownership())
    guest(access).check(drop, OPEN, "billing", Ownership(GUEST))
    with pytest.raises(NotAllowed, match=r"drop the subscriber .*'open', subscriber 'billing'"):
        guest(access).check(drop, OPEN, "billing", Ownership())


def test_connections_are_counted_by_user(access: Access) -> None:
    first, _ = guest(access), guest(access)
    with pytest.raises(QuotaExceeded, match=f"user {GUEST}"):
        guest(access)
    guest(access, OWNER)
    first.leave()
    first.leave()
    guest(access)
    with pytest.raises(QuotaExceeded):
        guest(access)


def test_arenas_are_counted_over_all_connections_and_while_one_replaces_another(access: Access) -> None:
    first, second = guest(access), guest(access)
    first.want_arena(4 * MIB)
    first.has_arena(4 * MIB)
    second.want_arena(5 * MIB)
    with pytest.raises(QuotaExceeded, match="arena"):
        first.want_arena(2 * MIB)
    first.want_arena(1 * MIB)
    first.has_arena(1 * MIB)
    first.want_arena(3 * MIB)
    first.has_arena(1 * MIB)
    second.leave()
    first.want_arena(9 * MIB)


def test_an_arena_that_is_ready_after_its_connection_has_gone_counts_no_more(access: Access) -> None:
    gone = guest(access)
    gone.want_arena(10 * MIB)
    gone.leave()
    gone.has_arena(10 * MIB)
    guest(access).want_arena(10 * MIB)


def test_subscribers_are_counted_once_each(access: Access) -> None:
    first = guest(access)
    for _ in range(3):
        first.attach("open", "a")
        first.attach("open", "b")
    with pytest.raises(QuotaExceeded, match="subscribers"):
        guest(access).attach("open", "c")
    first.leave()
    guest(access).attach("open", "c")
