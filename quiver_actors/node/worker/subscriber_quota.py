"""The limits for durable subscribers: each costs memory, a file, and a look at every bundle, also while it has no consumer.

Owner: the loop thread. A topic has `SUBSCRIBERS_MAX` on each core. The last quarter of them is for the topic's owner and the operator, so
that no number of other users takes all. One user owns at most `access.max_durable_subscribers` in topics of others.
"""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.rights import Caller
from quiver_actors.errors import TooManySubscribers
from quiver_actors.node.worker.access import Guest
from quiver_actors.node.worker.host import EngineHost

SUBSCRIBERS_MAX = 1024
"""Durable subscribers that one topic may have on one core."""
GUESTS_SUBSCRIBERS_MAX = SUBSCRIBERS_MAX * 3 // 4


def check_room(host: EngineHost, subscriber: str, guest: Guest | None, hosts: Iterable[EngineHost]) -> None:
    """Whether a subscriber may be registered with a topic; one that is known may.

    Args:
        host: of the topic.
        guest: who registers it; None: the operator.
        hosts: of all topics of the worker.

    Raises:
        TooManySubscribers: the topic, or the user, has as many as it may have.
    """
    engine = host.engine
    if engine.registrations.ownership_of(subscriber) is not None:
        return
    topic, count = engine.topic, len(engine.registrations.names())
    is_owner = guest is None or guest.caller(engine.settings, "", None) is Caller.OWNER
    if count >= (SUBSCRIBERS_MAX if is_owner else GUESTS_SUBSCRIBERS_MAX):
        left = "" if is_owner else f"; the {SUBSCRIBERS_MAX - GUESTS_SUBSCRIBERS_MAX} that are left are its owner's"
        raise TooManySubscribers(
            f"topic {topic!r} has {count} subscribers, as many as it can{left}: drop one with `quiver subscribers drop`, or use one"
            " that exists"
        )
    if guest is not None and not is_owner:
        _check_user(guest, hosts)


def _check_user(guest: Guest, hosts: Iterable[EngineHost]) -> None:
    owned = sum(host.engine.registrations.count_owned_by(guest.user.uid) for host in hosts)
    if owned >= guest.durable_subscribers_max:
        raise TooManySubscribers(
            f"user {guest.user.uid} owns {owned} subscribers of this worker and may own {guest.durable_subscribers_max}: drop one, use one"
            " that exists, or ask the node's operator (access.max_durable_subscribers)"
        )
