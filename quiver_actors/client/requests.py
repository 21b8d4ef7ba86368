"""The requests of a client to its node, without the waiting: the common part of threads (`client`) and asyncio (`aio`)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from quiver_actors.base.model import BundleId, check_id
from quiver_actors.base.protocol.messages import (
    COUNTS_PRUNED,
    SCHEMA_LISTS,
    AckThrough,
    CheckSegment,
    CountPruned,
    Flush,
    ListSchemas,
    ListSegments,
    ListStatistics,
    ListSubscribers,
    ListTopics,
    Message,
    OpenSegment,
    SchemaList,
    SegmentInfo,
    SegmentList,
    SegmentOpened,
    ShareSubscriber,
    StatisticsList,
    SubscriberInfo,
    SubscriberList,
    TopicList,
    Unregister,
)
from quiver_actors.base.protocol.places import PLACE, PLACES_MAX
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals
from quiver_actors.client.exchange import Flow
from quiver_actors.client.known_topics import TopicInfos
from quiver_actors.client.projection import EVERYTHING, Asked, Projection
from quiver_actors.client.questions import dropped_by, raise_known, seeking, starting
from quiver_actors.client.ranges import SegmentPart
from quiver_actors.client.schemas import HeldSchema, held_schema, of_slot, schemas_in
from quiver_actors.client.segments import BundleReader, MappedLog, MappedSegment, ReadableSegments
from quiver_actors.client.slots import TopicSlots
from quiver_actors.client.statistics import SegmentStatistics, statistics_in
from quiver_actors.client.subscribe_request import SeekReport, Start, StartPoints
from quiver_actors.errors import NotStored, StorageUnavailable, UsageError
from quiver_actors.query.snapshot import TellPruned

F = TypeVar("F")

_PATIENCE_SHARE = 0.9
"""Part of the timeout that a worker may take to make everything readable that was acknowledged; the rest is for its answer."""
_PASSING_NS = SECOND_NS
_PASSING_LOOK_NS = 10 * MILLISECOND_NS
REASON_MAX = 1000
"""Characters of what a worker is told of damage."""

logger = logging.getLogger("quiver.client")


class TellBoth(Protocol):
    """Tells a worker that the file of a segment is damaged, or one bundle of it."""

    def __call__(self, reason: str, bundle_index: int = -1) -> None: ...


class WantedRange(NamedTuple):
    """A stored and sealed range of bundles, and the slots and columns wanted of it."""

    parts: list[SegmentPart]
    core: int
    slots: TopicSlots
    projection: Projection


def check_obstacle(topic: str, core: int, obstacle: str) -> None:
    """Raise StorageUnavailable where something keeps bundles of a core from being read that were acknowledged."""
    if obstacle:
        raise StorageUnavailable(
            f"topic {topic!r} on core {core}: some bundles are acknowledged and cannot be read yet: {obstacle}; try again, or read up to an"
            " end that is older"
        )


class OnDisk(NamedTuple):
    """The segments of a topic that one core can be asked for now, and what is wanted of them."""

    segments: list[SegmentInfo]
    """Includes the log behind them (`ReadableSegments.bounded`)."""
    incarnation: str
    """Incarnation of the core's directory; empty: the worker does not say."""
    core: int
    slots: TopicSlots
    projection: Projection
    """The slots and columns that are asked for."""
    obstacle: str = ""
    """Why some of what was acknowledged is not among them; see `ReadableSegments`."""

    def check_end(self, end: BundleId | None) -> None:
        """Check that everything acknowledged is among `segments`, for a range without an end.

        Raises:
            StorageUnavailable: something keeps it from being read.
        """
        if end is None:
            check_obstacle(self.slots.topic, self.core, self.obstacle)


class Requests:
    """Flows over a client's channels. What they do and raise is said at the methods of `Client` that drive them."""

    def __init__(self, channels: ChannelSet[Any], timeout_seconds: float) -> None:
        self._channels = channels
        self._timeout_seconds = timeout_seconds
        self._patience_ms = int(1000 * _PATIENCE_SHARE * timeout_seconds)

    # --- the node --------------------------------------------------------------------------------------------------------

    def topics(self) -> Flow[TopicInfos]:
        """Ask for the topics again: they come and go while a connection stands."""
        call = Call(ListTopics)
        yield from self._channels.asking_any(call, self._timeout_seconds)
        raise_refusals([call])
        infos = call.answer.topics if isinstance(call.answer, TopicList) else []
        return TopicInfos({info.name: info for info in infos})

    def flush(self, topic: str) -> Flow[None]:
        """Seal the open segment of a topic on every worker."""
        yield from self.ask_all(lambda tag: Flush(tag, topic))

    # --- what is stored --------------------------------------------------------------------------------------------------

    def segments(self, topic: str) -> Flow[dict[int, list[SegmentInfo]]]:
        """Return the sealed segments of a topic by core, oldest first."""
        calls = yield from self.ask_all(lambda tag: ListSegments(tag, topic))
        return {core: _segments_in(call) for core, call in calls.items()}

    def readable(self, topic: str) -> Flow[dict[int, ReadableSegments]]:
        """Return what can be read of a topic by core, sealed or not: all that was acknowledged, but for what is synced at its seal."""
        calls = yield from self.ask_all(lambda tag: ListSegments(tag, topic, self._patience_ms))
        return {core: _readable_segments_in(call) for core, call in calls.items()}

    def opened_segment(self, core: int, topic: str, segment_seq: int) -> Flow[tuple[int, int]]:
        """A segment's descriptor, for the caller to close, and its size."""
        call = yield from self._ask(core, lambda tag: OpenSegment(tag, topic, segment_seq))
        assert isinstance(call.answer, SegmentOpened), "only this answers OpenSegment"
        assert call.descriptor is not None, "the connection checks that this message carries a descriptor"
        return call.descriptor, call.answer.size_bytes

    def schema(self, topic: str, slot: str | int | None) -> Flow[pa.Schema]:
        """Return the one schema of a slot."""
        slots = yield from self._channels.finding(self._channels.directory.cores[0], topic, self._timeout_seconds)
        return of_slot((yield from self.schemas(topic)), slots, slot)

    def schemas(self, topic: str) -> Flow[list[HeldSchema]]:
        """Return every distinct schema that a topic has on each core, sealed or not."""
        found: list[HeldSchema] = []
        for core in self._channels.directory.cores:
            yield from self._channels.finding(core, topic, self._timeout_seconds)
            unknown: Collection[int] | None = None
            if self._channels.channel(core).features & SCHEMA_LISTS:
                call = yield from self._ask(core, lambda tag: ListSchemas(tag, topic))
                assert isinstance(call.answer, SchemaList), "only this answers ListSchemas"
                found += (held_schema(core, info) for info in call.answer.schemas)
                unknown = call.answer.unknown
            if unknown is None or unknown:
                found += yield from self._looked_at(core, topic, unknown)
        return found

    def statistics(self, topic: str) -> Flow[dict[int, dict[int, SegmentStatistics]]]:
        """Return what is known of the columns of sealed segments, by core and segment; nothing of those of an older worker."""
        found: dict[int, dict[int, SegmentStatistics]] = {}
        for core in self._channels.directory.cores:
            yield from self._channels.finding(core, topic, self._timeout_seconds)
            found[core] = {}
            first = 0 if self._channels.channel(core).features & SCHEMA_LISTS else -1
            while first >= 0:
                call = yield from self._ask(core, partial(ListStatistics, topic=topic, first=first))
                assert isinstance(call.answer, StatisticsList), "only this answers ListStatistics"
                found[core] |= statistics_in(call.answer)
                first = call.answer.next_segment_seq
        return found

    def _looked_at(self, core: int, topic: str, wanted: Collection[int] | None) -> Flow[list[HeldSchema]]:
        """The schemas of these segments, by a look at each; None: of all. One that is gone by now has none."""
        readable = _readable_segments_in((yield from self._ask(core, lambda tag: ListSegments(tag, topic))))
        found: dict[tuple[int, bytes], HeldSchema] = {}
        for info in [*readable.sealed, *readable.unsealed]:
            if wanted is not None and info.segment_seq not in wanted:
                continue
            try:
                part = SegmentPart(info.segment_seq, 0, info.bundle_count)
                reader = yield from self.part_reader(core, topic, part, verifies_checksums=False)
            except NotStored:
                continue
            for held in schemas_in(core, info.segment_seq, reader):
                found.setdefault((held.slot_id, held.message), held)
        return list(found.values())

    def on_disk(self, topic: str, core: int, asked: Asked) -> Flow[OnDisk]:
        """Find out what one core has of a topic that can be read; waits as `readable`."""
        slots = yield from self._channels.finding(core, topic, self._timeout_seconds)
        projection = asked.resolve(slots)
        call = yield from self._ask(core, lambda tag: ListSegments(tag, topic, self._patience_ms))
        found = _readable_segments_in(call)
        return OnDisk(found.bounded, found.incarnation, core, slots, projection, found.obstacle)

    def part_reader(self, core: int, topic: str, part: SegmentPart, *, verifies_checksums: bool) -> Flow[BundleReader]:
        """Open and map the segment of a part, sealed or not."""
        slots = yield from self._channels.finding(core, topic, self._timeout_seconds)
        wanted = WantedRange([part], core, slots, EVERYTHING)
        return (yield from self.mapped_part(wanted, part, verifies_checksums=verifies_checksums)).reader

    def mapped_part(
        self,
        wanted: WantedRange,
        part: SegmentPart,
        *,
        verifies_checksums: bool = True,
        patience_ns: int = _PASSING_NS,
    ) -> Flow[MappedSegment]:
        """Open and map the segment of one part of a range; the caller closes it.

        Args:
            patience_ns: how long to wait for a file that cannot be opened now: a rescue replaces it, or a start has yet to look at it.
        """
        topic, segment_seq = wanted.slots.topic, part.segment_seq
        opened, descriptor, places = yield from _passing(
            lambda: self._opened_part(wanted.core, topic, part), patience_ns
        )
        map_file = MappedSegment.sealed if opened.is_sealed else MappedLog
        mapped = map_file(
            descriptor,
            opened.size_bytes,
            segment_seq,
            wanted.slots,
            wanted.core,
            wanted.projection,
            verifies_checksums=verifies_checksums,
            tell_damage=self.teller_of_damage(wanted.core, topic, segment_seq),
        )
        return mapped if isinstance(mapped, MappedSegment) else mapped.part(range(part.first, part.end), places)

    def _opened_part(self, core: int, topic: str, part: SegmentPart) -> Flow[tuple[SegmentOpened, int, bytes]]:
        """The answer of the worker, the file's descriptor, and the places of all bundles of the part if it is not sealed."""
        places = b""
        while True:
            first = part.first + len(places) // PLACE.size
            stop = min(part.end, first + PLACES_MAX)
            call = yield from self._ask(
                core, partial(OpenSegment, topic=topic, segment_seq=part.segment_seq, first=first, stop=stop)
            )
            opened = call.answer
            assert isinstance(opened, SegmentOpened), "only this answers OpenSegment"
            assert call.descriptor is not None, "the connection checks that this message carries a descriptor"
            places += opened.places
            if opened.is_sealed or stop == part.end:
                return opened, call.descriptor, places
            os.close(call.descriptor)

    def teller_of_damage(self, core: int, topic: str, segment_seq: int) -> TellBoth:
        """Return a function that tells the worker that a file is damaged, and waits for no answer. The function takes the lock.

        If the worker cannot be reached now it is not told: it checks its files when it starts.
        """

        def tell(reason: str, bundle_index: int = -1) -> None:
            logger.warning(
                "quiver.client.damaged topic=%s core=%d segment=%d error=%s", topic, core, segment_seq, reason
            )
            call = Call(lambda tag: CheckSegment(tag, topic, segment_seq, reason[:REASON_MAX], bundle_index))
            with self._channels.exchange.lock:
                self._channels.telling(core, call)

        return tell

    def teller_of_pruned(self, topic: str) -> TellPruned:
        """Return a function that tells workers, by core, how many segments a reader left out. It waits for no answer, and takes the lock.

        A worker that cannot be reached now, or that is older, is not told.
        """

        def tell(counts: Mapping[int, int]) -> None:
            with self._channels.exchange.lock:
                for core, count in counts.items():
                    self._channels.telling(
                        core, Call(partial(CountPruned, topic=topic, segment_count=count)), COUNTS_PRUNED
                    )

        return tell

    # --- subscribers -----------------------------------------------------------------------------------------------------

    def starting(self, topic: str, start: Start) -> Flow[StartPoints]:
        """Resolve the start of a new subscriber into a start point for each core."""
        return (yield from starting(self._channels, topic, start, self._timeout_seconds))

    def subscribers(self, topic: str) -> Flow[dict[int, list[SubscriberInfo]]]:
        """Return the durable subscribers of a topic and their progress, by core."""
        calls = yield from self.ask_all(lambda tag: ListSubscribers(tag, topic))
        answers = {core: call.answer for core, call in calls.items()}
        return {core: list(each.subscribers) for core, each in answers.items() if isinstance(each, SubscriberList)}

    def unregister(self, subscriber: str, topic: str, *, only_orphan: bool = False) -> Flow[int]:
        """Delete a subscriber on every worker and return how many bundles it had not resolved."""
        check_id("subscriber", subscriber)
        calls = yield from self._channels.asking_all(
            lambda core: Call(lambda tag: Unregister(tag, topic, subscriber, only_orphan)), self._timeout_seconds
        )
        return dropped_by(calls.values())

    def drop_orphan(self, subscriber: str, topic: str) -> Flow[int]:
        """Delete a subscriber as `unregister` does, but raise UsageError if a consumer is attached to it."""
        infos = yield from self.subscribers(topic)
        if any(info.subscriber == subscriber and info.connections for each in infos.values() for info in each):
            raise UsageError(f"subscriber {subscriber!r} of topic {topic!r} is no orphan: a consumer is attached to it")
        return (yield from self.unregister(subscriber, topic, only_orphan=True))

    def seek(self, subscriber: str, start: Start, topic: str, *, is_dry: bool) -> Flow[SeekReport]:
        """Move a subscriber to another position on every worker; `is_dry` only reports what the move would do."""
        return (yield from seeking(self._channels, topic, subscriber, start, self._timeout_seconds, is_dry=is_dry))

    def share_subscriber(self, subscriber: str, uids: Iterable[int], topic: str) -> Flow[None]:
        """Replace the users who may join a subscriber by these user ids; durable on return."""
        check_id("subscriber", subscriber)
        named = sorted(set(uids))
        calls = yield from self._channels.asking_all(
            lambda core: Call(lambda tag: ShareSubscriber(tag, topic, subscriber, named)), self._timeout_seconds
        )
        raise_known(calls.values())

    def ack_through(self, bundle_id: BundleId, subscriber: str) -> Flow[None]:
        """Resolve every bundle of the core up to and including this one for the subscriber; durable on return."""
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


def _passing(attempt: Callable[[], Flow[F]], patience_ns: int) -> Flow[F]:
    """Make the attempt again while it meets StorageUnavailable, for so long at most."""
    deadline_ns = time.monotonic_ns() + patience_ns
    while True:
        try:
            return (yield from attempt())
        except StorageUnavailable:
            now_ns = time.monotonic_ns()
            if now_ns > deadline_ns:
                raise
        yield now_ns + _PASSING_LOOK_NS


def _readable_segments_in(call: Call) -> ReadableSegments:
    listed = call.answer
    assert isinstance(listed, SegmentList), "only this answers ListSegments"
    opened, complete = list(listed.open_segments), listed.is_complete
    return ReadableSegments(
        listed.segments,
        opened,
        complete,
        listed.incarnation,
        listed.next_segment_seq,
        listed.obstacle,
        listed.unlisted,
        listed.unsealed_from,
    )


def _segments_in(call: Call) -> list[SegmentInfo]:
    assert isinstance(call.answer, SegmentList), "only this answers ListSegments"
    return call.answer.segments
