"""Refuses a new subscriber that would begin in the archive: subscribers get what is on the disk and what comes, and would miss the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo
from quiver_actors.client.archived_reads import ArchivedReads
from quiver_actors.client.exchange import Flow
from quiver_actors.client.requests import Requests
from quiver_actors.client.segments import ReadableSegments
from quiver_actors.client.subscribe_request import SubscribeRequest, start_text
from quiver_actors.errors import NotAllowed, StorageUnavailable, UsageError, WorkerUnavailable

logger = logging.getLogger("quiver.client")

Found = Mapping[int, ReadableSegments]


def names_a_place(wanted: SubscribeRequest) -> bool:
    """Whether the start is a time or a bundle, which may lie before all that is on the disk."""
    return wanted.start not in ("latest", "earliest")


def looking(requests: Requests, wanted: SubscribeRequest) -> Flow[Found]:
    """Return what the disk has of the topic; nothing where the subscriber is known, and so has begun already."""
    subscribers: Mapping[int, Sequence[SubscriberInfo]] = yield from requests.subscribers(wanted.topic)
    if any(info.subscriber == wanted.subscriber for infos in subscribers.values() for info in infos):
        return {}
    return (yield from requests.readable(wanted.topic))


def check_start(reads: ArchivedReads, wanted: SubscribeRequest, found: Found) -> None:
    """Refuse a start that lies in the archive. Waits for the archiver; one that cannot tell is passed over with a warning.

    Raises:
        UsageError: bundles that the subscriber asks for have left the disk, and are in the archive.
    """
    for core, on_disk in found.items():
        try:
            gone = reads.gone(wanted.topic, core, on_disk.infos, on_disk.incarnation)
        except (NotAllowed, StorageUnavailable, WorkerUnavailable) as error:
            logger.warning(
                "quiver.subscription.archive_not_asked subscriber=%s topic=%s error=%s",
                wanted.subscriber,
                wanted.topic,
                error,
            )
            return
        if any(info.size_bytes and _is_wanted(wanted, core, info) for info in gone):
            raise UsageError(
                f"subscriber {wanted.subscriber!r} of topic {wanted.topic!r} would begin in the archive: bundles of core {core} that it "
                "asks for have left the disk. Subscribers get what is on the disk: begin with start='earliest', and read what is older "
                "with client.read or client.dataset(start=...)"
            )


def _is_wanted(wanted: SubscribeRequest, core: int, info: SegmentInfo) -> bool:
    start = wanted.start
    if isinstance(start, BundleId):
        return core == start.core and (start.segment_seq, start.bundle_index) < (info.segment_seq, info.bundle_count)
    return info.last_ingestion_ts_nanos >= int(start_text(start).removeprefix("time:"))
