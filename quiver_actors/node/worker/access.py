"""Users other than the worker's own, told apart by the kernel's word (`SO_PEERCRED`): what they may do, and how much of it.

Owner: the loop thread. The worker's own user and root are *trusted*: they may do everything and have no quota. Any other user
- is let in only if a topic names it (`allowed_uids`, `owner`), and sees and uses those topics alone;
- may do what the table of `rights` says: `Guest.check` is called before any request is carried out;
- has its bundles validated in full (`store.wal.foreign`) and shares one quota among all its connections to this worker.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable

from quiver_actors.base.config import AccessSettings, TopicSettings
from quiver_actors.base.protocol.messages import Message, Register
from quiver_actors.base.rights import Caller, Ownership, User, Verdict, require, verdict
from quiver_actors.errors import NotAllowed, QuotaExceeded
from quiver_actors.node.worker.peer import Peer

_DESTROYING_TERMS = "Register: destroying terms"


class Guest:
    """One connection of a user who is not trusted, and what it has of that user's quota. `leave` gives all of it back."""

    def __init__(self, access: Access, user: User) -> None:
        """Use `Access.admit`."""
        self.user = user
        self.durable_subscribers_max = access.durable_subscribers_max
        self._access = access
        self._uid = user.uid
        self._arena_bytes = 0
        self._memory_bytes = 0
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
        """Whether the topic names this user."""
        return topic.may_use(self._uid)

    def check(
        self, message: Message, topic: TopicSettings | None, subscriber: str, ownership: Ownership | None
    ) -> Verdict:
        """Check a message of this connection against the table of rights.

        Args:
            topic: topic named by the message; None: the message names no topic, or one that does not exist.
            subscriber: subscriber named by the message, else empty; ownership: its owner, None: there is none.

        Raises:
            NotAllowed: it may not be carried out.
        """
        caller = self.user.caller(topic, subscriber, ownership)
        where = f"topic {topic.name!r}" if topic is not None else ""
        where += f", subscriber {subscriber!r}" if subscriber else ""
        if isinstance(message, Register) and has_destroying_terms(message):
            require(self.user, caller, _DESTROYING_TERMS, where)
        return require(self.user, caller, type(message).__name__, where)

    def caller(self, topic: TopicSettings, subscriber: str, ownership: Ownership | None) -> Caller:
        """Return what the user is to a subscriber."""
        return self.user.caller(topic, subscriber, ownership)

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

    def has_memory(self, size_bytes: int) -> None:
        """Note how many bytes of the worker's own memory the connection takes.

        Raises:
            QuotaExceeded: the user's connections together take more than they may; the connection must end.
        """
        more_bytes = size_bytes - self._memory_bytes
        if more_bytes > 0:
            self._access.take("memory_bytes", self._uid, more_bytes)
        elif more_bytes < 0:
            self._access.give("memory_bytes", self._uid, -more_bytes)
        self._memory_bytes = size_bytes

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
            self._access.give("memory_bytes", self._uid, self._memory_bytes)
            self._access.give("subscribers", self._uid, len(self._subscribers))


def has_destroying_terms(message: Register) -> bool:
    """Whether the terms end bundles or the subscriber itself, by time or by a count of deliveries."""
    terms = message.terms
    return bool(terms.max_deliveries or terms.orphan_ttl_ns or terms.dead_letter_topic)


def may_set_terms(caller: Caller) -> bool:
    """Whether terms of such a caller hold for all consumers of the subscriber."""
    return verdict(_DESTROYING_TERMS, caller) is Verdict.YES


class Access:
    """Admits the connections of users and limits what each user may occupy."""

    def __init__(self, settings: AccessSettings, own_uid: int | None = None) -> None:
        self._own_uid = os.geteuid() if own_uid is None else own_uid
        self.durable_subscribers_max = settings.max_durable_subscribers
        """Durable subscribers that one user may own; the worker counts the stored ones, so there is no counter here."""
        self._most = {
            "connections": settings.max_connections,
            "arena_bytes": settings.max_arena_bytes,
            "memory_bytes": settings.max_memory_bytes,
            "subscribers": settings.max_subscribers,
        }
        self._taken: dict[str, Counter[int]] = {what: Counter() for what in self._most}

    def trusts(self, peer: Peer) -> bool:
        """Whether the peer is the worker's own user or root."""
        return User(peer.uid, self._own_uid).is_operator

    def admit(self, peer: Peer, topics: Iterable[TopicSettings]) -> Guest | None:
        """Let a connection in. None: its user is trusted.

        Raises:
            NotAllowed: no topic names the user.
            QuotaExceeded: it has all the connections that it may have.
        """
        user = User(peer.uid, self._own_uid)
        if user.is_operator:
            return None
        if not any(topic.may_use(peer.uid) for topic in topics):
            raise NotAllowed(
                f"user {peer.uid} may not use this node: an operator can name it in a topic's allowed_uids"
            )
        self.take("connections", peer.uid, 1)
        return Guest(self, user)

    def take(self, what: str, uid: int, amount: int) -> None:
        """Count something of a user's quota; `what` is `connections`, `arena_bytes`, `memory_bytes` or `subscribers`.

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
        """Count so much less of a user's quota, as something that `take` counted is gone."""
        counter = self._taken[what]
        counter[uid] -= amount
        assert counter[uid] >= 0, "given back more than was taken"
        if not counter[uid]:
            del counter[uid]
