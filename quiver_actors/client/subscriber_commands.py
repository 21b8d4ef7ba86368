"""The calls of a client about the durable subscribers of a topic, besides attaching to one."""

from __future__ import annotations

from collections.abc import Iterable

from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.base.protocol.messages import SubscriberInfo
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.requests import Requests
from quiver_actors.client.subscribe_request import SeekReport, Start


class SubscriberCommands:
    """Methods of `Client` that list, change and delete the durable subscribers of a topic."""

    _exchange: Exchange
    _requests: Requests

    def unsubscribe(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """Delete a subscriber with its progress, on all workers. What only it had not resolved may be deleted then.

        Returns:
            How many bundles it had not resolved: they are dropped.

        Raises:
            UnknownSubscriber: no worker knows it.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        return self._exchange.run(self._requests.unregister(subscriber, topic))

    def drop_orphan(self, subscriber: str, *, topic: str = DEFAULT_TOPIC) -> int:
        """Delete a subscriber like `unsubscribe`, but only where no consumer is attached to it.

        Raises:
            UsageError: a consumer is; on workers that had none it may be gone now, and begins there anew with the next one that attaches.
            UnknownSubscriber, UnknownTopic, WorkerUnavailable: as `unsubscribe`.
        """
        return self._exchange.run(self._requests.drop_orphan(subscriber, topic))

    def seek(self, subscriber: str, start: Start, *, topic: str = DEFAULT_TOPIC, dry_run: bool = False) -> SeekReport:
        """Move a known subscriber to another position, on all workers; durable on return.

        Everything before counts as done: what it was owed of it is dropped, and announced by gap notices (`dropped`). Everything from
        there on is owed, also what it had resolved before, as far as it is still stored. Claims end: what consumers hold may still be
        worked on, but their acknowledgements are refused.

        Args:
            start: as of `subscribe`.
            dry_run: only say what would be done.

        Raises:
            UnknownSubscriber: no worker knows it.
            UsageError: `start` is not possible.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`; after the latter some workers may have done it: repeat it.
        """
        return self._exchange.run(self._requests.seek(subscriber, start, topic, is_dry=dry_run))

    def share_subscriber(self, subscriber: str, uids: Iterable[int], *, topic: str = DEFAULT_TOPIC) -> None:
        """Let these users join a subscriber, and nobody else that was named before; durable on all workers on return.

        They take bundles of it and resolve those that they were given. It stays its owner's (docs/security.md).

        Args:
            uids: numbers of users whom the topic names in `allowed_uids`; empty: nobody.

        Raises:
            NotAllowed: the subscriber is another user's.
            UnknownSubscriber: no worker knows it.
            UsageError: too many users, or a number that no user has.
            UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`; after the latter some workers may have done it: repeat it.
        """
        self._exchange.run(self._requests.share_subscriber(subscriber, uids, topic))

    def subscribers(self, topic: str = DEFAULT_TOPIC) -> dict[int, list[SubscriberInfo]]:
        """The durable subscribers of a topic and how far they are, by core. Raises as `flush`."""
        return self._exchange.run(self._requests.subscribers(topic))

    def ack_through(self, bundle_id: BundleId, *, subscriber: str) -> None:
        """Resolve, for one subscriber, everything of that bundle's core up to and including it; durable on return.

        Raises:
            UsageError: no such bundle was appended yet.
            UnknownSubscriber, UnknownTopic, WorkerUnavailable: see `quiver_actors.errors`.
        """
        self._exchange.run(self._requests.ack_through(bundle_id, subscriber))
