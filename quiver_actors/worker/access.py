"""Who may do what, and how much of it: users other than the worker's own, told apart by the kernel's word (`SO_PEERCRED`).

Owner: the loop thread. The worker's own user and root are *trusted*: they may do everything and have no quota. Any other user
- is let in only if a topic names it (`allowed_uids`, `owner`), and sees and uses those topics alone;
- cannot stop intake, drop subscribers or do anything else that is the operator's;
- has its bundles validated in full (`wal.foreign`) and shares one quota among all its connections to this worker.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from quiver_actors.config import AccessSettings, TopicSettings
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.units import format_size
from quiver_actors.worker.peer import Peer

_ROOT_UID = 0


def may_use(uid: int, topic: TopicSettings) -> bool:
    """Whether a user that is not trusted may push to the topic and subscribe."""
    return uid in topic.allowed_uids or uid == topic.owner_uid


class Access:
    """See the module."""

    def __init__(self, settings: AccessSettings, own_uid: int | None = None) -> None:
        self.settings = settings
        self._trusted = frozenset((os.geteuid() if own_uid is None else own_uid, _ROOT_UID))
        self._connections: Counter[int] = Counter()
        self._arena_bytes: Counter[int] = Counter()
        self._subscribers: Counter[int] = Counter()

    def is_trusted(self, peer: Peer) -> bool:
        return peer.uid in self._trusted

    def admit(self, peer: Peer, topics: Iterable[TopicSettings]) -> None:
        """Let a connection in and count it; `leave` takes it out of the count.

        Raises:
            NotAllowed: no topic names the user.
            QuotaExceeded: it has all the connections that it may have.
        """
        if not self.is_trusted(peer):
            if not any(may_use(peer.uid, topic) for topic in topics):
                raise NotAllowed(
                    f"user {peer.uid} may not use this node: an operator can name it in a topic's allowed_uids"
                )
            if self._connections[peer.uid] >= self.settings.max_connections:
                raise QuotaExceeded(
                    f"user {peer.uid} has {self.settings.max_connections} connections to this worker, as many as it may: close one"
                )
        self._connections[peer.uid] += 1

    def leave(self, peer: Peer) -> None:
        """A connection that `admit` has counted is over."""
        _take(self._connections, peer.uid, 1)

    def check_topic(self, peer: Peer, topic: TopicSettings) -> None:
        """
        Raises:
            NotAllowed: the topic is not the user's.
        """
        if not self.is_trusted(peer) and not may_use(peer.uid, topic):
            raise NotAllowed(f"user {peer.uid} may not use topic {topic.name!r}")

    def take_arena(self, peer: Peer, size_bytes: int) -> None:
        """Count an arena that is about to be made; `give_arena` takes it out.

        Raises:
            QuotaExceeded: it would be more than the user may have; nothing is counted.
        """
        most = self.settings.max_arena_bytes
        if not self.is_trusted(peer) and self._arena_bytes[peer.uid] + size_bytes > most:
            raise QuotaExceeded(
                f"user {peer.uid} has {format_size(self._arena_bytes[peer.uid])} of shared memory in this worker and may have "
                f"{format_size(most)}: an arena of {format_size(size_bytes)} is too much"
            )
        self._arena_bytes[peer.uid] += size_bytes

    def give_arena(self, peer: Peer, size_bytes: int) -> None:
        _take(self._arena_bytes, peer.uid, size_bytes)

    def take_subscriber(self, peer: Peer) -> None:
        """Count a connection's attachment to a subscriber; `give_subscriber` takes it out.

        Raises:
            QuotaExceeded: the user has as many as it may.
        """
        most = self.settings.max_subscribers
        if not self.is_trusted(peer) and self._subscribers[peer.uid] >= most:
            raise QuotaExceeded(f"user {peer.uid} is attached to {most} subscribers, as many as it may: close one")
        self._subscribers[peer.uid] += 1

    def give_subscriber(self, peer: Peer) -> None:
        _take(self._subscribers, peer.uid, 1)


def _take(counter: Counter[int], uid: int, amount: int) -> None:
    counter[uid] -= amount
    assert counter[uid] >= 0, "given back more than was taken"
    if not counter[uid]:
        del counter[uid]
