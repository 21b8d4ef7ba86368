"""Questions about the subscribers of one engine: what one is owed, and which there are. Answering changes nothing.

Owner: the loop thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.base.protocol.messages import GapRange, Pending, PendingInfo, SubscriberInfo, SubscriberList
from quiver_actors.base.rights import Verdict, verdict
from quiver_actors.errors import UnknownSubscriber, UsageError
from quiver_actors.node.worker.attachments import Attachments
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine import Engine

_GAPS_MAX = 100
"""Most gap notices of a subscriber that are listed one by one."""


class SubscriberQuestions:
    """Answers questions about the subscribers of one engine without changing anything."""

    def __init__(self, engine: Engine, attachments: Attachments) -> None:
        self._engine = engine
        self._attachments = attachments
        self.is_leaving = False
        """True: nothing new will ever be pushed."""

    def pending(self, session: Session, message: Pending) -> None:
        """
        Raises:
            UnknownSubscriber: no such subscriber.
            UsageError: the range begins or ends where no bundle can be.
        """
        first, stop = message.from_bundle_index, message.to_bundle_index
        if min(first, stop) < 0:
            raise UsageError(f"a range from bundle {first} of a segment to bundle {stop} of one: expected 0 or more")
        end = (message.to_segment_seq, min(stop, SEGMENT_BUNDLES_MAX)) if message.to_segment_seq >= 0 else None
        start = message.from_segment_seq, first
        counts = self._engine.owed.pending(message.subscriber, start, end)
        session.send(
            PendingInfo(
                message.tag,
                counts.pending,
                counts.claimed,
                counts.deferred,
                counts.blocked,
                counts.unsealed,
                counts.gaps,
                *(counts.oldest or (-1, 0)),
                counts.in_range,
                counts.drained,
                self.is_leaving,
            )
        )

    def list_all(self, session: Session, tag: int) -> Iterator[None]:
        """List the subscribers; another user hears only of those whose bundles it may take. In portions, as there may be a thousand
        subscribers, and each is counted through; some may be deleted between two portions."""
        found = []
        for subscriber in self._engine.registrations.names():
            with contextlib.suppress(UnknownSubscriber):
                if self._may_see(session, subscriber):
                    found.append(self._info(subscriber))
            yield
        session.send(SubscriberList(tag, found))

    def _may_see(self, session: Session, subscriber: str) -> bool:
        guest = session.guest
        if guest is None:
            return True
        caller = guest.caller(self._engine.settings, subscriber, self._engine.registrations.ownership_of(subscriber))
        return verdict("Pending", caller) is Verdict.YES

    def _info(self, subscriber: str) -> SubscriberInfo:
        counts, figures = self._engine.owed.pending(subscriber), self._engine.owed.figures_of(subscriber)
        return SubscriberInfo(
            subscriber,
            len(self._attachments.of(subscriber)),
            self._attachments.detached_since_unix_ns(subscriber),
            counts.pending,
            counts.claimed,
            counts.deferred,
            counts.blocked,
            counts.unsealed,
            counts.gaps,
            figures.delivered,
            figures.redelivered,
            figures.acked,
            figures.rejected,
            figures.dead_lettered,
            *(counts.oldest or (-1, 0)),
            figures.oldest_unix_ns,
            tuple(
                GapRange(each.segment_seq, each.bundle_index_first, each.bundle_count, each.row_count, each.reason)
                for each in self._engine.owed.first_gaps(subscriber, _GAPS_MAX)
            ),
        )
