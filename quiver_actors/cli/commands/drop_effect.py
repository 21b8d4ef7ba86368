"""The space that dropping a subscriber frees: the segments that only it still needs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from quiver_actors.base.units import format_size

if TYPE_CHECKING:
    from quiver_actors.base.protocol.messages import SegmentInfo, SubscriberInfo

_NEEDS_NOTHING = 1 << 63


def freed_bytes(
    subscriber: str,
    subscribers: Mapping[int, Sequence[SubscriberInfo]],
    segments: Mapping[int, Sequence[SegmentInfo]],
) -> int | None:
    """Bytes of the sealed segments below everything that other subscribers still need, by core: at least so much goes with this one.

    Segments above the oldest bundle that another subscriber needs may go too, where it has resolved all of theirs; they are not counted.

    Returns:
        None where there is no other subscriber: a topic without subscribers keeps everything.
    """
    if not any(each.subscriber != subscriber for infos in subscribers.values() for each in infos):
        return None
    return sum(_freed_on_core(subscriber, infos, segments.get(core, ())) for core, infos in subscribers.items())


def _freed_on_core(subscriber: str, infos: Sequence[SubscriberInfo], segments: Sequence[SegmentInfo]) -> int:
    oldest = {each.subscriber: each.oldest_segment_seq for each in infos}
    own = oldest.pop(subscriber, -1)
    if own < 0 or not oldest:
        return 0
    others = min(_NEEDS_NOTHING if seq < 0 else seq for seq in oldest.values())
    return sum(info.size_bytes for info in segments if own <= info.segment_seq < others)


def effect_text(freed: int | None) -> str:
    """The effect as the end of a sentence."""
    if freed is None:
        return "this frees nothing, because it is the topic's last subscriber and a topic without subscribers keeps everything"
    if not freed:
        return "this frees nothing now: other subscribers need the same segments"
    return f"this frees {format_size(freed)} or more"
