"""Requests of a consumer that name bundles by their id, or ask what its subscriber is owed."""

from __future__ import annotations

import time
from typing import Any

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import AckThrough, ClaimRef, Message, Pending, PendingInfo
from quiver_actors.client.calls import Call
from quiver_actors.client.channels import raise_refusals
from quiver_actors.client.exchange import Flow
from quiver_actors.client.grants import Parcel
from quiver_actors.client.ranges import check_bundle_id
from quiver_actors.client.resolutions import Resolutions
from quiver_actors.client.subscribe_request import SubscribeRequest
from quiver_actors.client.subscriber_channels import SubscriberChannels
from quiver_actors.errors import UsageError, WorkerUnavailable


class SubscriberRequests:
    """Requests of a consumer to workers beside taking and resolving bundles. All methods are flows."""

    def __init__(self, channels: SubscriberChannels, resolutions: Resolutions[Any], wanted: SubscribeRequest) -> None:
        self._channels = channels.by_core
        self._resolutions = resolutions
        self._topic = wanted.topic
        self._subscriber = wanted.subscriber

    def claiming(self, bundle_id: BundleId, timeout_seconds: float) -> Flow[Parcel]:
        """Claim one bundle by its id; it is the only one of the parcel. What this consumer resolved or gave back before counts.

        Raises:
            AlreadyResolved, NotClaimed: it is done with; or somebody holds it, or it is not sealed yet.
        """
        segment_seq, bundle_index = self._checked(bundle_id)[2:]
        self._resolutions.send(time.monotonic_ns())
        call = Call(lambda tag: ClaimRef(tag, self._topic, self._subscriber, segment_seq, bundle_index))
        yield from self._completing(bundle_id.core, call, timeout_seconds)
        parcel = self._channels.channel(bundle_id.core).claimed.pop(call.tag, None)
        if parcel is None:
            raise WorkerUnavailable(f"worker {bundle_id.core} was lost while {bundle_id} was being claimed: try again")
        parcel.take(1)
        return parcel

    def acking_through(self, bundle_id: BundleId, timeout_seconds: float) -> Flow[None]:
        """Resolve everything of a core up to and including a bundle; durable at the end."""
        segment_seq, bundle_index = self._checked(bundle_id)[2:]
        self._resolutions.send(time.monotonic_ns())
        call = Call(lambda tag: AckThrough(tag, self._topic, self._subscriber, segment_seq, bundle_index))
        yield from self._completing(bundle_id.core, call, timeout_seconds)

    def asking(self, timeout_seconds: float) -> Flow[dict[int, PendingInfo]]:
        """Ask what the subscriber is owed, worker by worker. What this consumer resolved before counts as resolved."""
        self._resolutions.send(time.monotonic_ns())
        calls = yield from self._channels.asking_all(lambda core: Call(self._pending), timeout_seconds)
        return _infos_in(calls)

    def asking_range(self, start: BundleId, end: BundleId, timeout_seconds: float) -> Flow[int]:
        """Count unresolved bundles from `start` up to and not including `end`, on one core."""
        core, from_segment, from_bundle = self._checked(start)[1:]
        to_segment, to_bundle = self._checked(end)[2:]
        if end.core != core:
            raise UsageError(f"a range lies on one core: {start} and {end} do not")
        self._resolutions.send(time.monotonic_ns())
        call = Call(lambda tag: self._pending(tag, from_segment, from_bundle, to_segment, to_bundle))
        yield from self._completing(core, call, timeout_seconds)
        return _infos_in({core: call})[core].in_range

    def _pending(self, tag: int, *places: int) -> Message:
        return Pending(tag, self._topic, self._subscriber, *places)

    def _completing(self, core: int, call: Call, timeout_seconds: float) -> Flow[None]:
        yield from self._channels.completing({core: call}, timeout_seconds)
        raise_refusals([call])

    def _checked(self, bundle_id: BundleId) -> BundleId:
        cores = self._channels.directory.cores
        check_bundle_id(bundle_id)
        if bundle_id.topic != self._topic or bundle_id.core not in cores:
            raise UsageError(f"{bundle_id} is not of topic {self._topic!r} and one of the cores {list(cores)}")
        return bundle_id


def _infos_in(calls: dict[int, Call]) -> dict[int, PendingInfo]:
    raise_refusals(calls.values())
    return {core: call.answer for core, call in calls.items() if isinstance(call.answer, PendingInfo)}
