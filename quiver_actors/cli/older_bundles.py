"""Bundles of a topic that have left the disk, for commands that begin at a time."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from quiver_actors.base.model import BundleId

if TYPE_CHECKING:
    from quiver_actors.base.protocol.messages import SegmentInfo
    from quiver_actors.client import Client
    from quiver_actors.client.bundle import StoredBundle


def older_segments(client: Client, topic: str, since_unix_ns: int) -> dict[int, list[SegmentInfo]]:
    """The archived segments that have left the disk and have bundles of that time or later, oldest first, by core. Raises as
    `Client.archived`."""
    found = {
        core: list(itertools.dropwhile(lambda info: info.last_ingestion_ts_nanos < since_unix_ns, infos))
        for core, infos in client.archived(topic).items()
    }
    return {core: infos for core, infos in found.items() if infos}


def runs_between(infos: Iterable[SegmentInfo], on_disk: Iterable[SegmentInfo]) -> Iterator[list[SegmentInfo]]:
    """Yield runs of archived segments with none between them that is on the disk: what was lost there lies between what is read there."""
    numbers = sorted(info.segment_seq for info in on_disk)
    for _, group in itertools.groupby(infos, key=lambda info: bisect.bisect(numbers, info.segment_seq)):
        yield list(group)


def older_bundles(client: Client, topic: str, since_unix_ns: int, slots: Any) -> Iterator[StoredBundle]:
    """Yield the bundles of that time or later that have left the disk, core by core. A lost one raises when it is asked for anything."""
    on_disk = client.readable(topic)
    for core, infos in older_segments(client, topic, since_unix_ns).items():
        for run in runs_between(infos, on_disk[core].infos if core in on_disk else ()):
            start = BundleId(topic, core, run[0].segment_seq, 0)
            end = BundleId(topic, core, run[-1].segment_seq, run[-1].bundle_count)
            yield from client.read(topic, core, start, end, slots=slots)
