"""Reads of cores that the node does not have any more: what is left of them is in its archive.

All of such a core was delivered before its directory was retired, so its disk has nothing; its incarnation says which segments of the
archive are of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.protocol.archive_messages import RetiredCore
from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.client.exchange import Flow
from quiver_actors.client.projection import Asked
from quiver_actors.client.requests import OnDisk, Requests
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import UnknownCore


def retired_or_raise(found: Sequence[RetiredCore], error: UnknownCore) -> RetiredCore:
    """Return the core that was looked for. Raises the error with which its worker was not found: nothing is left of it."""
    if not found:
        raise error
    return found[0]


def nothing_on_disk(requests: Requests, topic: str, core: RetiredCore, asked: Asked) -> Flow[OnDisk]:
    """What the disk has of a retired core, for those who read on in the archive: no segment. Raises UnknownTopic, UnknownSlot."""
    topics = yield from requests.topics()
    if topic not in topics:
        raise unknown_topic(topic, topics)
    slots = TopicSlots(topics[topic])
    return OnDisk([], core.incarnation, core.core, slots, asked.resolve(slots))
