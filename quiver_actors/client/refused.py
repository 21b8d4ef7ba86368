"""Resolutions that a worker has refused, as the claim was gone when they came."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from typing import NamedTuple

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import NotResolved, Refused
from quiver_actors.client.calls import refusal_error
from quiver_actors.errors import AlreadyResolved, Fenced, LeaseExpired, NotClaimed, QuiverError, StorageUnavailable

REFUSALS_KEPT = 65_536
"""Refused resolutions that a ticket can still ask about, per worker."""
_Place = tuple[int, int, int]
"""Segment, token and bundle index of a resolution."""

logger = logging.getLogger("quiver.client")

_MEANINGS = {
    LeaseExpired.code: "too late: its lease was over",
    Fenced.code: "given to another consumer",
    AlreadyResolved.code: "resolved in another way",
    NotClaimed.code: "given back",
}


class RefusedResolution(NamedTuple):
    """An acknowledgement, rejection or deferral that did not count: the bundle was not this consumer's any more."""

    bundle_id: BundleId
    token: int
    """Fencing token of the delivery."""
    error: QuiverError
    """`LeaseExpired`, `Fenced`, `AlreadyResolved` or `NotClaimed`."""


def refusal(what: str, code: str) -> QuiverError:
    """The error that a refused resolution is, in words."""
    return refusal_error(Refused(0, code, f"{what} is not held any more: it was {_MEANINGS.get(code, code)}"))


class Refusals:
    """What one worker has refused, over all connections: resolutions above all. Used under the lock of the consumer's exchange.

    Attributes:
        count: resolutions that were refused.
        registering: why the worker refused to register the subscriber when it answered last; None: it did not.
    """

    def __init__(self, core: int, topic: str, subscriber: str) -> None:
        self.count = 0
        self.registering: QuiverError | None = None
        self._core = core
        self._topic = topic
        self._subscriber = subscriber
        self._codes: dict[_Place, str] = {}
        """The newest ones."""
        self._untold: deque[tuple[_Place, str]] = deque(maxlen=REFUSALS_KEPT)
        """Refusals that `take` has not returned."""
        self._unreported: set[int] = set()
        """Tags of messages whose refusal is not reported: the claims that they return are not held in either case."""

    def unopened(self, failure: QuiverError | None) -> StorageUnavailable | None:
        """Return why the worker could not open the topic's directory, also while it is asked again; None: nothing is known of that.

        Args:
            failure: why the connection was lost last; None: it is being made.
        """
        reason = failure or self.registering
        return reason if isinstance(reason, StorageUnavailable) else None

    def ignore(self, tag: int) -> None:
        """Do not report what is refused of the message with this tag."""
        self._unreported.add(tag)

    def answered(self, tag: int) -> None:
        """Note that the worker has answered a question behind which no refusal of an earlier message comes."""
        self._unreported = {other for other in self._unreported if other > tag}

    def note(self, message: NotResolved) -> None:
        """Note the bundles that the worker names."""
        is_reported = message.tag not in self._unreported
        for each in message.refusals:
            indexes = array("I", each.bundle_indexes)
            places = [(message.segment_seq, message.token, index) for index in indexes]
            if is_reported:
                self._untold.extend((place, each.code) for place in places)
            self.count += len(places)
            self._codes.update(dict.fromkeys(places, each.code))
            logger.warning(
                "quiver.subscription.not_resolved subscriber=%s core=%d segment=%d bundles=%d reason=%s",
                self._subscriber,
                self._core,
                message.segment_seq,
                len(places),
                each.code,
            )
        while len(self._codes) > REFUSALS_KEPT:
            del self._codes[next(iter(self._codes))]

    def note_message(self, error: QuiverError) -> None:
        """Note that the worker refused a whole message."""
        self.count += 1
        logger.warning(
            "quiver.subscription.refused subscriber=%s core=%d error=%s", self._subscriber, self._core, error
        )

    def code_of(self, segment_seq: int, token: int, bundle_index: int) -> str | None:
        """Return why the resolution of a bundle was refused; None: it was not, or too long ago."""
        return self._codes.get((segment_seq, token, bundle_index))

    def take(self) -> list[RefusedResolution]:
        """Return the resolutions that were refused since the last call; the newest 65,536."""
        found = []
        while self._untold:
            (segment_seq, token, index), code = self._untold.popleft()
            bundle_id = BundleId(self._topic, self._core, segment_seq, index)
            found.append(RefusedResolution(bundle_id, token, refusal(str(bundle_id), code)))
        return found

    def lose(self) -> None:
        """Forget the messages that were under way: the connection is lost."""
        self._unreported.clear()
