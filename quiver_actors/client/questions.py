"""Requests to workers about a subscriber, and what their answers mean. Nothing here waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from quiver_actors.base.model import BundleId, check_id
from quiver_actors.base.protocol.messages import BundleTime, Done, Message, Pending, PendingInfo, Seek, Sought
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import ChannelSet, raise_refusals, unavailable_error
from quiver_actors.client.exchange import Flow, deadline_after
from quiver_actors.client.grants import ClaimChannel
from quiver_actors.client.subscribe_request import SeekReport, Start, StartPoints, start_text
from quiver_actors.client.subscriber_channel import SubscriberChannel
from quiver_actors.client.unconfirmed import Place, ranges_of
from quiver_actors.errors import UnknownSubscriber, UsageError, WorkerUnavailable

_RANGES_MAX = 1_000
"""Ranges that one request to a worker names at most."""


class Request(NamedTuple):
    """A request to one worker, with the connection that it was sent over."""

    channel: ClaimChannel
    generation: int
    call: Call


def starting(channels: ChannelSet[Any], topic: str, start: Start, timeout_seconds: float) -> Flow[StartPoints]:
    """Where a subscriber starts on each worker. To start at a bundle, its worker says when it came: so others know where to begin.

    Raises:
        UsageError: the bundle is of another topic or node.
        WorkerUnavailable: its worker did not answer.
    """
    text = start_text(start)
    if not isinstance(start, BundleId):
        return StartPoints(text)
    if start.topic != topic or start.core not in channels.directory.cores:
        raise UsageError(f"{start} is not of topic {topic!r} and one of the cores {list(channels.directory.cores)}")
    call = Call(lambda tag: BundleTime(tag, topic, start.segment_seq, start.bundle_index))
    yield from channels.completing({start.core: call}, timeout_seconds)
    raise_refusals([call])
    unix_ns = call.answer.value if isinstance(call.answer, Done) else 0
    return StartPoints(f"time:{unix_ns}" if unix_ns else "earliest", start.core, text)


def seeking(
    channels: ChannelSet[Any], topic: str, subscriber: str, start: Start, timeout_seconds: float, *, is_dry: bool
) -> Flow[SeekReport]:
    """Move a subscriber on all workers; see `Client.seek`."""
    check_id("subscriber", subscriber)
    points = yield from starting(channels, topic, start, timeout_seconds)

    def asked(core: int) -> Call:
        return Call(lambda tag: Seek(tag, topic, subscriber, points.on(core), is_dry))

    calls = yield from channels.asking_all(asked, timeout_seconds)
    known = raise_known(calls.values())
    answers = [call.answer for call in known if isinstance(call.answer, Sought)]
    return SeekReport(sum(each.skipped for each in answers), sum(each.again for each in answers))


def dropped_by(calls: Collection[Call]) -> int:
    """The bundles that answered Unregister requests dropped.

    Raises:
        UnknownSubscriber: no worker knew the subscriber.
        QuiverError: a worker refused for another reason.
    """
    known = raise_known(calls)
    return sum(call.answer.value for call in known if isinstance(call.answer, Done))


def raise_known(calls: Collection[Call]) -> list[Call]:
    """Return the answers of the workers that know the subscriber. A worker that has lost it, or was added later, causes no error.

    Raises:
        UnknownSubscriber: no worker knew it.
        QuiverError: a worker refused for another reason.
    """
    known = [call for call in calls if not isinstance(call.error, UnknownSubscriber)]
    raise_refusals(known or calls)
    return known


def oldest_of(infos: dict[int, PendingInfo], topic: str) -> dict[int, BundleId]:
    """The oldest unresolved sealed bundle of each core that has one."""
    return {
        core: BundleId(topic, core, info.oldest_segment_seq, info.oldest_bundle_index)
        for core, info in infos.items()
        if info.oldest_segment_seq >= 0
    }


def pending_of(infos: dict[int, PendingInfo]) -> int:
    """Unresolved bundles in any state."""
    return sum(info.pending + info.claimed + info.deferred + info.blocked + info.unsealed for info in infos.values())


def counting_unresolved(
    places: Mapping[SubscriberChannel, Sequence[Place]], topic: str, subscriber: str, timeout_seconds: float | None
) -> Flow[int]:
    """Count how many of these bundles are owed to the subscriber. Asks for everything between them first, then for each of their ranges.

    Raises:
        WorkerUnavailable: a worker is not there, was lost, or did not answer.
    """

    def asked(channel: SubscriberChannel, start: Place, end: Place) -> Request:
        if not channel.is_registered:
            raise unavailable_error(channel, timeout_seconds)
        return sent(channel, lambda tag: Pending(tag, topic, subscriber, *start, *end))

    count = 0
    for ranges_max in (1, _RANGES_MAX):
        requests = [asked(channel, *each) for channel, known in places.items() for each in ranges_of(known, ranges_max)]
        yield from answering(requests, timeout_seconds)
        calls = [request.call for request in requests]
        raise_refusals(calls)
        count = sum(call.answer.in_range for call in calls if isinstance(call.answer, PendingInfo))
        if not count:
            break
    return count


def sent(channel: SubscriberChannel, make: Callable[[int], Message]) -> Request:
    """Send a request on an open channel and return it, so that its answer can be waited for."""
    request = Request(channel, channel.generation, Call(make))
    channel.call(request.call)
    return request


def answering(
    requests: Sequence[Request], timeout_seconds: float | None, *, is_loss_an_error: bool = True
) -> Flow[None]:
    """Wait until all requests, which were sent and are not to be repeated, are answered."""
    deadline_ns = deadline_after(timeout_seconds)
    try:
        for channel, generation, call in requests:
            while not call.is_done:
                if channel.generation != generation:
                    if not is_loss_an_error:
                        break
                    raise WorkerUnavailable(
                        f"worker {channel.core} was lost before it had confirmed what was resolved: "
                        "some of its bundles may be delivered again"
                    )
                if time.monotonic_ns() >= deadline_ns:
                    raise unavailable_error(channel, timeout_seconds)
                yield deadline_ns
    finally:
        for channel, _, call in requests:
            channel.forget(call)
