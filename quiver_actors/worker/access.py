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
from quiver_actors.worker.peer import Peer

_ROOT_UID = 0


class Guest:
    """One connection of a user who is not trusted, and what it has of that user's quota. `leave` gives all of it back."""

    def __init__(self, access: Access, uid: int) -> None:
        """Use `Access.admit`."""
        self._access = access
        self._uid = uid
        self._arena_bytes = 0
        self._subscribers: set[tuple[str, str]] = set()
        self._has_left = False

    def check_topic(self, topic: TopicSettings) -> None:
        """
        Raises:
            NotAllowed: the topic is not the user's.
        """
        if not self.may_use(topic):
            raise NotAllowed(f"user {self._uid} may not use topic {topic.name!r}")

    def may_use(self, topic: TopicSettings) -> bool:
        return topic.may_use(self._uid)

    def check_owner(self, topic: TopicSettings, doing: str) -> None:
        """
        Raises:
            NotAllowed: that is for the topic's owner and the node's own user.
        """
        if self._uid != topic.owner_uid:
            raise NotAllowed(f"user {self._uid} may not {doing} of topic {topic.name!r}: its owner may")

    def want_arena(self, size_bytes: int) -> None:
        """An arena is about to be made, beside the one that is there.

        Raises:
            QuotaExceeded: it would be more than the user may have.
        """
        self._access.take("arena_bytes", self._uid, size_bytes)
        self._arena_bytes += size_bytes

    def has_arena(self, size_bytes: int) -> None:
        """The connection has one arena of that size, 0 = none, whatever was wanted."""
        if self._has_left:
            return
        self._access.give("arena_bytes", self._uid, self._arena_bytes - size_bytes)
        self._arena_bytes = size_bytes

    def attach(self, topic: str, subscriber: str) -> None:
        """
        Raises:
            QuotaExceeded: the user is attached to as many subscribers as it may.
        """
        if (topic, subscriber) not in self._subscribers:
            self._access.take("subscribers", self._uid, 1)
            self._subscribers.add((topic, subscriber))

    def leave(self) -> None:
        """The connection is over. Idempotent."""
        if not self._has_left:
            self._has_left = True
            self._access.give("connections", self._uid, 1)
            self._access.give("arena_bytes", self._uid, self._arena_bytes)
            self._access.give("subscribers", self._uid, len(self._subscribers))


class Access:
    """See the module."""

    def __init__(self, settings: AccessSettings, own_uid: int | None = None) -> None:
        self._trusted = frozenset((os.geteuid() if own_uid is None else own_uid, _ROOT_UID))
        self._most = {
            "connections": settings.max_connections,
            "arena_bytes": settings.max_arena_bytes,
            "subscribers": settings.max_subscribers,
        }
        self._taken: dict[str, Counter[int]] = {what: Counter() for what in self._most}

    def admit(self, peer: Peer, topics: Iterable[TopicSettings]) -> Guest | None:
        """Let a connection in. None: its user is trusted.

        Raises:
            NotAllowed: no topic names the user.
            QuotaExceeded: it has all the connections that it may have.
        """
        if peer.uid in self._trusted:
            return None
        if not any(topic.may_use(peer.uid) for topic in topics):
            raise NotAllowed(
                f"user {peer.uid} may not use this node: an operator can name it in a topic's allowed_uids"
            )
        self.take("connections", peer.uid, 1)
        return Guest(self, peer.uid)

    def take(self, what: str, uid: int, amount: int) -> None:
        """Count something of a user's quota; `what` is `connections`, `arena_bytes` or `subscribers`.

        Raises:
            QuotaExceeded: it would be too much; nothing is counted.
        """
        taken, most = self._taken[what][uid], self._most[what]
        if taken + amount > most:
            named = what.replace("_bytes", " bytes")
            raise QuotaExceeded(
                f"user {uid} has {taken} {named} of this worker and may have {most}: {amount} more is too much; close some, or ask"
                " the node's operator"
            )
        self._taken[what][uid] += amount

    def give(self, what: str, uid: int, amount: int) -> None:
        """The reverse of `take`."""
        counter = self._taken[what]
        counter[uid] -= amount
        assert counter[uid] >= 0, "given back more than was taken"
        if not counter[uid]:
            del counter[uid]
