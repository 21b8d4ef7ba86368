"""What the archiver, a subscriber that needs nothing itself, means for the deletion of segments, and for who is still owed them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from quiver_actors.base.config import ArchiveSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ONLOOKER_PREFIX
from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.base.ranges import Runs
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.claims import SubscriberState


def is_consumer(subscriber: str) -> bool:
    """Whether a subscriber is there to process bundles: neither one that only watches nor the archiver."""
    return subscriber != ARCHIVE_SUBSCRIBER and not subscriber.startswith(ONLOOKER_PREFIX)


def has_consumers(states: Iterable[SubscriberState]) -> bool:
    """Whether anybody is there to process bundles."""
    return any(is_consumer(state.subscriber) for state in states)


def may_be_done(states: Iterable[SubscriberState], archive: ArchiveSettings) -> bool:
    """Whether any segment of a topic can be done with.

    What nobody but onlookers has seen was delivered to nobody yet. In a topic that is archived nothing is done with either before the
    archiver has come for the first time, as while its object store is away.
    """
    names = [state.subscriber for state in states]
    if archive.enabled and ARCHIVE_SUBSCRIBER not in names:
        return False
    return archive.lets_go or any(map(is_consumer, names))


def counting(states: Iterable[SubscriberState], archive: ArchiveSettings) -> Iterator[SubscriberState]:
    """The subscribers that keep what they have not resolved: the archiver only where the topic is archived."""
    return (state for state in states if archive.enabled or state.subscriber != ARCHIVE_SUBSCRIBER)


def is_archived(states: Iterable[SubscriberState], archive: ArchiveSettings, segment_seq: int) -> bool:
    """Whether the manifest of the archive names a segment, or says why it never will."""
    archiver = next((state for state in states if state.subscriber == ARCHIVE_SUBSCRIBER), None)
    # It names what the archiver is done with, but for what the archiver has lost: that all subscribers have lost at the same time.
    return archive.enabled and archiver is not None and archiver.progress.is_complete(segment_seq)


def follow(
    states: Iterable[SubscriberState], archive: ArchiveSettings, info: SegmentInfo, lost: Runs | None = None
) -> list[str]:
    """A segment leaves the disk, or bundles of it are lost there. If it is in the archive, subscribers whose consumers read the archive get
    it there from now on: that is to be durable before the file goes.

    Args:
        lost: only those get it there that have not resolved one of these bundles, as (first index, count); None: all.

    Returns:
        The subscribers that do, and were to get it from the disk until now.
    """
    states = list(states)
    if not is_archived(states, archive, info.segment_seq):
        return []
    size = info.bundle_count, info.size_bytes
    return [state.subscriber for state in states if follow_to_archive(state, info.segment_seq, *size, lost)]


def follow_to_archive(
    state: SubscriberState, segment_seq: int, bundle_count: int, size_bytes: int, lost: Runs | None = None
) -> bool:
    """Let one subscriber get an archived segment from the archive; see `follow`. Returns whether it does, and did not before."""
    progress = state.progress
    states = progress.segments.get(segment_seq)
    if states is None or segment_seq in progress.archived:
        return False
    if lost is not None:
        resolved = states.bitmap()
        if not any(bitmaps.unresolved_in(resolved, first, min(first + count, bundle_count)) for first, count in lost):
            return False
    if not progress.archived.follow(segment_seq, bundle_count, size_bytes, progress.segments):
        return False
    progress.changes.note()
    return True


def unarchived(states: Iterable[SubscriberState], archive: ArchiveSettings, segment_seqs: Iterable[int]) -> set[int]:
    """The segments among these that must not be lost because they are not in the archive; none where it is not required."""
    if not (archive.enabled and archive.require):
        return set()
    wanted = list(segment_seqs)
    archiver = next((state for state in states if state.subscriber == ARCHIVE_SUBSCRIBER), None)
    return set(wanted).difference(() if archiver is None else archiver.progress.completed.durable(wanted))
