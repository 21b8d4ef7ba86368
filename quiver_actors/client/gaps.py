"""Notices of bundles that a subscriber will never get."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from quiver_actors.base.protocol.archived_start import GAP_REASONS
from quiver_actors.base.protocol.messages import Gap, GapAck
from quiver_actors.client.calls import Call

NEVER_ARCHIVED = "never_archived"
"""The reason of a hole that the manifest does not have: what may have been there was gone before the archiver came to it."""
ARCHIVE_EXPIRED = "archive_expired"
"""The reason of what was archived and is deleted in the archive by age."""


class NoticeChannel(Protocol):
    """The connection by which a notice came and by which it is confirmed. `subscriber_channel` has the only implementation."""

    core: int
    generation: int
    gaps: GapNotices

    def confirm_gap(self, gap: WaitingGap) -> None:
        """Send the worker the acknowledgement of a gap notice."""


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

    def __init__(self, channel: NoticeChannel, message: Gap) -> None:
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
        """Whether the connection that brought the notice is still the same; otherwise the worker sends it again."""
        return self.generation == self.channel.generation

    def is_held(self, now_ns: int) -> bool:
        """Whether the notice is current and its lease is not over; otherwise the worker sends it again, perhaps to another consumer."""
        return self.is_current and self.channel.gaps.is_held(self.number, now_ns)


class GapNotices:
    """The notices that came by one connection, and their confirmations. Used under the lock of the consumer's exchange."""

    def __init__(self, topic: str, subscriber: str) -> None:
        self.under_way: list[Call] = []
        """Confirmations that were sent; those with an answer are dropped when others are sent."""
        self._topic = topic
        self._subscriber = subscriber
        self._unsent: list[int] = []
        self._is_told: dict[int, bool] = {}
        """Whether a notice was handed over, by its number."""
        self._leases: dict[int, int] = {}
        """End of the lease of each waiting notice, monotonic, by the number of the notice; 0: the end of the connection."""

    def is_new(self, number: int, lease_until_ns: int) -> bool:
        """Note that a notice came; False: it had come before, and if it still waits, it has the new lease."""
        if self.was_told(number):
            return False
        is_new = number not in self._is_told
        self._is_told[number] = False
        self._leases[number] = lease_until_ns
        return is_new

    def is_held(self, number: int, now_ns: int) -> bool:
        """Return whether a waiting notice is this connection's; forget it if its lease is over: another consumer may have it by now."""
        if not 0 < self._leases.get(number, 0) <= now_ns:
            return True
        del self._leases[number], self._is_told[number]
        return False

    def was_told(self, number: int) -> bool:
        """Return whether a notice was handed over."""
        return self._is_told.get(number, False)

    def confirm(self, number: int) -> None:
        """Note that a notice was handed over; the worker is told with the next resolutions. Repeating it changes nothing."""
        if self.was_told(number):
            return
        self._is_told[number] = True
        self._leases.pop(number, None)
        self._unsent.append(number)

    def confirmations(self) -> list[Call]:
        """Return the confirmations that are to be sent now."""
        if not self._unsent:
            return []
        self.under_way = [call for call in self.under_way if not call.is_done]
        unsent, self._unsent = self._unsent, []
        return [self.confirmation(number) for number in unsent]

    def confirmation(self, number: int) -> Call:
        """Return the confirmation of one notice, which is to be sent now."""
        call = Call(lambda tag: GapAck(tag, self._topic, self._subscriber, number))
        self.under_way.append(call)
        return call

    def lose(self) -> None:
        """Forget everything: the connection is lost, and the worker says again what was not confirmed."""
        self.under_way.clear()
        self._unsent.clear()
        self._is_told.clear()
        self._leases.clear()


def gap_reason(reason: str) -> str:
    """The reason of a gap notice for a hole in the archive."""
    if reason == ARCHIVE_EXPIRED:
        return "expired"
    return reason if reason in GAP_REASONS else "damaged"
