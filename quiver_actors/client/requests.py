"""What a client asks its node, without the waiting: what threads (`client`) and asyncio (`aio`) have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from quiver_actors.client.channel import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals
from quiver_actors.client.exchange import Flow
from quiver_actors.client.projection import Asked, Projection
from quiver_actors.client.questions import dropped_by, seeking, starting
from quiver_actors.client.ranges import SegmentPart, parts_of
from quiver_actors.client.segments import MappedSegment
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.wanted import SeekReport, Start, StartPoints
from quiver_actors.errors import UsageError
from quiver_actors.model import BundleId, check_id
from quiver_actors.protocol.messages import (
    AckThrough,
    Flush,
    ListSegments,
    ListSubscribers,
    ListTopics,
    Message,
    OpenSegment,
    SegmentInfo,
    SegmentList,
    SegmentOpened,
    SubscriberInfo,
    SubscriberList,
    TopicInfo,
    TopicList,
    Unregister,
)


class WantedRange(NamedTuple):
    """A range that is stored and sealed, and what is asked for of it."""

    parts: list[SegmentPart]
    core: int
    slots: TopicSlots
    projection: Projection


class Requests:
    """Flows over a client's channels. What they do and raise is said at the methods of `Client` that drive them."""

    def __init__(self, channels: ChannelSet[Any], timeout_seconds: float) -> None:
        self._channels = channels
        self._timeout_seconds = timeout_seconds

    # --- the node --------------------------------------------------------------------------------------------------------

    def topics(self) -> Flow[dict[str, TopicInfo]]:
        """Asked for anew: topics come and go while a connection stands."""
        call = Call(ListTopics)
        yield from self._channels.asking_any(call, self._timeout_seconds)
        raise_refusals([call])
        return {info.name: info for info in call.answer.topics} if isinstance(call.answer, TopicList) else {}

    def flush(self, topic: str) -> Flow[None]:
        yield from self.ask_all(lambda tag: Flush(tag, topic))

    # --- what is stored --------------------------------------------------------------------------------------------------

    def segments(self, topic: str) -> Flow[dict[int, list[SegmentInfo]]]:
        calls = yield from self.ask_all(lambda tag: ListSegments(tag, topic))
        return {core: _segments_in(call) for core, call in calls.items()}

    def opened_segment(self, core: int, topic: str, segment_seq: int) -> Flow[tuple[int, int]]:
        """A segment's descriptor, for the caller to close, and its size."""
        call = yield from self._ask(core, lambda tag: OpenSegment(tag, topic, segment_seq))
        assert isinstance(call.answer, SegmentOpened), "only this answers OpenSegment"
        assert call.descriptor is not None, "the connection checks that this message carries a descriptor"
        return call.descriptor, call.answer.size_bytes

    def wanted_range(
        self, topic: str, core: int, start: BundleId | None, end: BundleId | None, asked: Asked
    ) -> Flow[WantedRange]:
        slots = yield from self._channels.finding(core, topic, self._timeout_seconds)
        projection = asked.resolve(slots)
        call = yield from self._ask(core, lambda tag: ListSegments(tag, topic))
        return WantedRange(parts_of(_segments_in(call), start, end, topic, core), core, slots, projection)

    def mapped_part(self, wanted: WantedRange, part: SegmentPart) -> Flow[MappedSegment]:
        descriptor, size_bytes = yield from self.opened_segment(wanted.core, wanted.slots.topic, part.segment_seq)
        return MappedSegment(descriptor, size_bytes, part.segment_seq, wanted.slots, wanted.core, wanted.projection)

    # --- subscribers -----------------------------------------------------------------------------------------------------

    def starting(self, topic: str, start: Start) -> Flow[StartPoints]:
        return (yield from starting(self._channels, topic, start, self._timeout_seconds))

    def subscribers(self, topic: str) -> Flow[dict[int, list[SubscriberInfo]]]:
        calls = yield from self.ask_all(lambda tag: ListSubscribers(tag, topic))
        answers = {core: call.answer for core, call in calls.items()}
        return {core: list(each.subscribers) for core, each in answers.items() if isinstance(each, SubscriberList)}

    def unregister(self, subscriber: str, topic: str) -> Flow[int]:
        return (yield from self._unregister(subscriber, topic, only_orphan=False))

    def drop_orphan(self, subscriber: str, topic: str) -> Flow[int]:
        infos = yield from self.subscribers(topic)
        if any(info.subscriber == subscriber and info.connections for each in infos.values() for info in each):
            raise UsageError(f"subscriber {subscriber!r} of topic {topic!r} is no orphan: a consumer is attached to it")
        return (yield from self._unregister(subscriber, topic, only_orphan=True))

    def _unregister(self, subscriber: str, topic: str, *, only_orphan: bool) -> Flow[int]:
        check_id("subscriber", subscriber)
        calls = yield from self._channels.asking_all(
            lambda core: Call(lambda tag: Unregister(tag, topic, subscriber, only_orphan)), self._timeout_seconds
        )
        return dropped_by(calls.values())

    def seek(self, subscriber: str, start: Start, topic: str, *, is_dry: bool) -> Flow[SeekReport]:
        return (yield from seeking(self._channels, topic, subscriber, start, self._timeout_seconds, is_dry=is_dry))

    def ack_through(self, bundle_id: BundleId, subscriber: str) -> Flow[None]:
        topic, core, segment_seq, bundle_index = bundle_id
        yield from self._ask(core, lambda tag: AckThrough(tag, topic, subscriber, segment_seq, bundle_index))

    # --- private ---------------------------------------------------------------------------------------------------------

    def ask_all(self, make: Callable[[int], Message]) -> Flow[dict[int, Call]]:
        """Ask every worker; raises the first refusal."""
        calls = yield from self._channels.asking_all(lambda core: Call(make), self._timeout_seconds)
        raise_refusals(calls.values())
        return calls

    def _ask(self, core: int, make: Callable[[int], Message]) -> Flow[Call]:
        call = Call(make)
        yield from self._channels.completing({core: call}, self._timeout_seconds)
        raise_refusals([call])
        return call


def _segments_in(call: Call) -> list[SegmentInfo]:
    assert isinstance(call.answer, SegmentList), "only this answers ListSegments"
    return call.answer.segments
