"""Requests that wait for an answer, and the errors that workers refuse them with."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import TypeAlias

from quiver_actors.base.error_codes import error_classes
from quiver_actors.base.protocol.framing import check_request
from quiver_actors.base.protocol.messages import (
    ArenaAttached,
    Decided,
    Done,
    Extended,
    Message,
    PendingInfo,
    Refused,
    SchemaList,
    SegmentList,
    SegmentOpened,
    Sought,
    StageList,
    StageReady,
    StatisticsList,
    SubscriberList,
    TopicList,
    WorkerMessage,
)
from quiver_actors.errors import (
    ProtocolError,
    QuiverError,
)

ANSWERS = (
    Done,
    Refused,
    SchemaList,
    SegmentList,
    SegmentOpened,
    ArenaAttached,
    Extended,
    PendingInfo,
    SubscriberList,
    Sought,
    StageReady,
    StatisticsList,
    StageList,
    Decided,
    TopicList,
)
"""What may answer a call as it stands. A Deliver is for subclasses: they hand it to `_answer`."""


def refusal_error(refused: Refused) -> QuiverError:
    """The exception that a refusal stands for."""
    kind = _REFUSALS.get(refused.code)
    if kind is None:
        return ProtocolError(f"the worker refused with the unknown code {refused.code!r}: {refused.message}")
    # Not kind(message): a class may build its message from parts that do not travel.
    error = kind.__new__(kind, refused.message)
    error.retry_after_ns = refused.retry_after_ns
    return error


class Call:
    """One request and its answer. Sent again on the next connection as long as it is not done."""

    __slots__ = ("answer", "descriptor", "error", "is_forgotten", "make", "request", "tag", "undo")

    def __init__(self, make: Callable[[int], Message], undo: Undo | None = None) -> None:
        """
        Args:
            make: builds the request for a tag.
            undo: builds the message that gives back what an answer granted, for a tag; None if it granted nothing. Sent when an
                answer arrives that no call waits for any more.
        """
        self.make = make
        self.undo = undo
        self.is_forgotten = False
        self.tag = 0
        """0 while it is not under way."""
        self.request: Message | None = None
        """The request that was sent last; None before the first."""
        self.answer: WorkerMessage | None = None
        self.descriptor: int | None = None
        """Descriptor that the answer carried; the caller owns it."""
        self.error: QuiverError | None = None

    @property
    def is_done(self) -> bool:
        """Whether the call has an answer or an error; neither changes afterwards."""
        return self.answer is not None or self.error is not None

    def undoing(self, tag: int) -> Message | None:
        """Return the message that gives back what the answer granted; None: it granted nothing."""
        return self.undo(self.answer, tag) if self.undo is not None and self.answer is not None else None


class PendingCalls:
    """The calls that are under way on a connection. Used under the lock of the channel's exchange.

    Attributes:
        next_tag: returns a tag that no message of this channel has had, on any connection.
    """

    def __init__(self) -> None:
        self.next_tag = itertools.count(1).__next__
        self._calls: dict[int, Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def begin(self, call: Call) -> Message:
        """Enter a call, and return its request. Raises UsageError: the caller gave something that no request can carry."""
        tag = self.next_tag()
        request = call.make(tag)
        if call.request is None:
            check_request(request)
        call.tag, call.request = tag, request
        self._calls[tag] = call
        return request

    def take(self, tag: int) -> Call | None:
        """Take out the call that an answer belongs to; None: no call waits for it."""
        return self._calls.pop(tag, None)

    def forget(self, call: Call) -> None:
        """Stop waiting for the answer of a call; whatever a late answer grants will be given back. A descriptor that has arrived and
        was not taken is closed."""
        if call.descriptor is not None:
            os.close(call.descriptor)
            call.descriptor = None
        if call.undo is None:
            self._calls.pop(call.tag, None)
        else:
            call.is_forgotten = not call.is_done

    def lose(self) -> None:
        """Mark all calls as unsent: their connection is lost."""
        for call in self._calls.values():
            call.tag = 0
        self._calls.clear()


_REFUSALS = error_classes()


Undo: TypeAlias = Callable[["WorkerMessage", int], "Message | None"]
