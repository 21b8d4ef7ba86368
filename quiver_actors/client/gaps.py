"""Notices of bundles that a subscriber will never get."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.protocol.messages import Gap

if TYPE_CHECKING:
    from quiver_actors.client.subscriber_channel import SubscriberChannel


class GapNotice(NamedTuple):
    """Consecutive bundles of one segment that a subscriber will never get, and why: `damaged`, `evicted`, `expired` or `dropped`.

    A notice comes once to one of the consumers of a subscriber. It is confirmed with the acknowledgements that leave after it was handed
    over (or `on_gap` returned): a consumer that dies in between leaves it to the next one, which then sees it again.
    """

    topic: str
    core: int
    segment_seq: int
    bundle_index_first: int
    bundle_index_last: int
    bundle_count: int | None
    """None: nobody knows how many; the whole segment is gone."""
    row_count: int | None
    """Rows of all slots, None where nobody knows."""
    reason: str


class WaitingGap:
    """A notice that has not been handed over, and the connection that it came by."""

    __slots__ = ("channel", "generation", "notice", "number")

    def __init__(self, channel: SubscriberChannel, message: Gap) -> None:
        self.channel = channel
        self.generation = channel.generation
        self.number = message.notice
        self.notice = GapNotice(
            message.topic,
            channel.core,
            message.segment_seq,
            message.bundle_index_first,
            message.bundle_index_last,
            message.bundle_count or None,
            None if message.row_count < 0 else message.row_count,
            message.reason,
        )

    @property
    def is_current(self) -> bool:
        return self.generation == self.channel.generation
