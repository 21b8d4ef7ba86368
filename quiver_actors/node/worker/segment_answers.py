"""What a worker answers to those who read segments without a claim: which there are, and the files of sealed and of open ones."""

from __future__ import annotations

from quiver_actors.base.protocol.messages import OpenSegment, SegmentList, SegmentOpened
from quiver_actors.base.protocol.places import PLACES_MAX
from quiver_actors.errors import StorageUnavailable, UsageError
from quiver_actors.node.worker.session import Session
from quiver_actors.store.engine.engine import Engine


def segment_list(engine: Engine, tag: int, acknowledged: int, obstacle: str = "") -> SegmentList:
    """Everything of a topic that can be read here.

    Args:
        acknowledged: pushes below that sequence had been acknowledged when the request came.
        obstacle: as of `SegmentList`.
    """
    open_segments = tuple(engine.readable_end.infos())
    return SegmentList(
        tag,
        engine.segments(),
        tuple(engine.unlisted_segments()),
        engine.next_segment_seq,
        engine.incarnation.hex(),
        open_segments,
        engine.readable_end.covers(acknowledged),
        obstacle,
        engine.readable_end.unsealed_from(),
    )


def send_segment(session: Session, engine: Engine, message: OpenSegment) -> None:
    """Send the descriptor of a segment's file, and of one that is not sealed the places of the bundles that were asked for.

    Raises:
        NotStored: there is no such segment (any more).
        StorageUnavailable: it cannot be read now.
        UsageError: the segment is not sealed, and has no such bundles.
    """
    is_guest, segment_seq = session.guest is not None, message.segment_seq
    named = message.tag, message.topic, segment_seq
    shown_count = _shown_count(engine, segment_seq)
    if not shown_count:
        descriptor, size_bytes = engine.open_segment(segment_seq, for_guest=is_guest)
        session.send_with_descriptor(SegmentOpened(*named, size_bytes), descriptor)
        return
    if not 0 <= message.first < message.stop <= min(shown_count, message.first + PLACES_MAX):
        raise UsageError(
            f"bundles {message.first} to {message.stop} of segment {segment_seq} of topic {message.topic!r} were asked for: it is not"
            f" sealed, {shown_count} bundles of it can be read, at most {PLACES_MAX} at once"
        )
    descriptor, size_bytes = engine.readable_end.open(segment_seq, for_guest=is_guest)
    places = engine.readable_end.places(segment_seq, range(message.first, message.stop))
    session.send_with_descriptor(SegmentOpened(*named, size_bytes, False, places), descriptor)


def _shown_count(engine: Engine, segment_seq: int) -> int:
    """How many bundles of a segment that is not sealed can be read; 0: it is sealed, or there is none."""
    shown_count = engine.readable_end.shown_count(segment_seq)
    if shown_count or segment_seq not in engine.unlisted_segments():
        return shown_count
    # Nobody has asked for what is open since the worker's start: a reader may know the segment from before.
    engine.readable_end.advance(is_wanted=True)
    shown_count = engine.readable_end.shown_count(segment_seq)
    if not shown_count:
        raise StorageUnavailable(
            f"segment {segment_seq} of topic {engine.topic!r} cannot be read yet: it is not durable, or it or one in front of it is being "
            "checked, published or rescued"
        )
    return shown_count
