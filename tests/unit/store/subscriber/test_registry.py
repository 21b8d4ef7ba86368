"""All subscribers of one engine."""

from __future__ import annotations

import numpy as np
import pytest

from quiver_actors.base.config import ArchiveSettings
from quiver_actors.base.model import ARCHIVE_SUBSCRIBER, ONLOOKER_PREFIX
from quiver_actors.errors import InvalidId, UnknownSubscriber, UsageError
from quiver_actors.store.subscriber import archiving, terms
from quiver_actors.store.subscriber.archived_part import ArchivedPart
from quiver_actors.store.subscriber.bitmap import full
from quiver_actors.store.subscriber.claim_order import SizesOf
from quiver_actors.store.subscriber.claims import NOTICE_LEASE_NS_MIN, SubscriberState
from quiver_actors.store.subscriber.progress import (
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_progress,
)
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.subscriber.seek import before_position, plan_seek
from quiver_actors.store.subscriber.sizes import BundleSizes
from tests.unit.store.subscriber.test_progress import GOLDEN

OWNER = object()


def registry_with(*segments: tuple[int, int], sizes_of: SizesOf = lambda _: None) -> SubscriberRegistry:
    registry = SubscriberRegistry(sizes_of)
    for segment_seq, bundle_count in segments:
        registry.add_segment(segment_seq, bundle_count)
    return registry


def finish(registry: SubscriberRegistry, subscriber: str, bundles: int = 1_000_000) -> None:
    state = registry.get(subscriber)
    for segment_seq, indexes, token, *_ in state.claim(OWNER, bundles):
        assert state.resolve(OWNER, segment_seq, token, "ack", indexes, 0, 0) == []


def claimed(state: SubscriberState, bundles: int) -> list[tuple[int, list[int]]]:
    return [(segment_seq, list(indexes)) for segment_seq, indexes, *_ in state.claim(OWNER, bundles)]


def flush(registry: SubscriberRegistry, next_segment_seq: int) -> dict[str, bytes]:
    """Write the files of all dirty subscribers, as the engine would."""
    files = {}
    for subscriber, version, progress in registry.flushes.dirty(next_segment_seq):
        files[subscriber] = encode_progress(progress)
        registry.flushes.mark_flushed(subscriber, version)
    return files


def test_golden_subscriber_is_owed_what_its_readme_says() -> None:
    registry = registry_with()
    registry.load("sub-a", decode_progress(GOLDEN))
    assert registry.highest_segment_seq_seen() == 1
    registry.add_segment(0, 3)
    registry.add_segment(1, 2)
    # The four bundles of the log are sealed as the next segment.
    registry.add_segment(2, 4)
    assert claimed(registry.get("sub-a"), 100) == [(0, [1]), (1, [1]), (2, [0, 1, 2, 3])]


def test_register_latest_owes_nothing_older() -> None:
    registry = registry_with((0, 5), (1, 5))
    state = registry.register("sub", (2, 3))
    assert state.claimable_count == 0
    registry.add_segment(2, 4)
    assert claimed(state, 100) == [(2, [3])]


def test_register_earliest_owes_everything_there_is() -> None:
    registry = registry_with((3, 2), (4, 1))
    state = registry.register("sub", (0, 0))
    registry.add_segment(5, 3)
    assert claimed(state, 100) == [(3, [0, 1]), (4, [0]), (5, [0, 1, 2])]


def test_register_is_durable_with_the_next_flush() -> None:
    registry = registry_with((0, 5))
    registry.register("sub", (1, 2))
    [(subscriber, version, progress)] = registry.flushes.dirty(1)
    assert (subscriber, progress.oldest_incomplete_seg) == ("sub", 1)
    registry.flushes.mark_flushed("sub", version)
    assert registry.flushes.dirty(1) == []
    after = registry_with((0, 5))
    after.load("sub", decode_progress(encode_progress(progress)))
    after.add_segment(1, 5)
    assert claimed(after.get("sub"), 100) == [(1, [2, 3, 4])]


def test_register_with_what_is_resolved_owes_the_rest_also_after_a_restart() -> None:
    """A subscriber that begins at a time has older bundles resolved in several segments."""
    registry = registry_with((0, 3), (1, 4))
    state = registry.register("sub", {0: SegmentProgress(3, bytes([0b101]) + bytes(7)), 1: SegmentProgress(2, full(2))})
    assert state.progress.changes.is_dirty
    files = flush(registry, 2)
    assert claimed(state, 100) == [(0, [1]), (1, [2, 3])]
    after = registry_with((0, 3), (1, 4))
    assert claimed(after.load("sub", decode_progress(files["sub"])), 100) == [(0, [1]), (1, [2, 3])]
    with pytest.raises(InvalidId):
        registry.register("../x", {})


def test_windows_in_bytes_go_by_the_sizes_that_the_engine_knows() -> None:
    sizes = BundleSizes(1, np.array([10, 500, 10], dtype=np.int64))
    registry = registry_with((0, 3), sizes_of=lambda _: sizes)
    state = registry.register("sub", (0, 0))
    assert [list(grant.indexes) for grant in state.claim(OWNER, 9, size_limit_bytes=509)] == [[0]]


def test_bundles_that_are_lost_are_announced_to_whoever_was_still_owed_them() -> None:
    registry = registry_with((0, 5))
    state = registry.register("sub", (0, 0))
    (grant,) = state.claim(OWNER, 5)
    assert state.resolve(OWNER, 0, grant.token, "ack", [2, 3, 4], 0, 0) == []
    noted = registry.give_up(0, 5, "damaged", lambda first, count: 10 * count, lost=[(0, 2), (2, 3)])
    assert [(name, gap.bundle_index_first, gap.bundle_count, gap.row_count) for name, gap in noted] == [
        ("sub", 0, 2, 20)
    ]
    assert (state.progress.is_complete(0), state.counts.dropped) == (True, 2)


def test_a_notice_that_is_with_a_consumer_is_taken_back_in_time_also_behind_a_seek() -> None:
    registry = registry_with((0, 3))
    state = registry.register("sub", (0, 0))
    terms.set_terms(state, lease_ns=100, max_deliveries=0, exhausted="drop", now_ns=0)
    notice = state.gaps.add(7, 0, 1, -1, "evicted", state.progress.changes.version)
    state.give_gap(notice, OWNER, 0)
    registry.seek("sub", plan_seek(state, {0: 3}, before_position((0, 1), {0: 3}), 1))
    assert registry.attention.next_due_ns() == NOTICE_LEASE_NS_MIN
    assert registry.due(NOTICE_LEASE_NS_MIN - 1) == []
    assert registry.due(NOTICE_LEASE_NS_MIN) == ["sub"]
    assert notice.owner is None


@pytest.mark.parametrize("is_seek", [False, True])
def test_bundles_that_are_lost_on_the_disk_are_not_announced_to_whoever_gets_them_from_the_archive(
    is_seek: bool,
) -> None:
    """The unlink of an archived segment was not durable: after a restart its file is there again, with damage."""
    registry = registry_with((1, 2), (2, 4))
    registry.give_up(2, 4, "damaged", lambda first, count: -1, [(1, 2)])
    archived = ArchivedPart({2: SegmentProgress(4, b"")}, 10)
    state = registry.register("sub", (2, 0), archived=archived)
    if is_seek:
        stored = {1: 2, 2: 4}
        registry.seek("sub", plan_seek(state, stored, before_position((2, 1), stored), 3))
    state = registry.get("sub")
    assert not [gap for gap in state.gaps if gap.reason == "damaged"]
    assert claimed(state, 99) == [(2, [1, 2, 3] if is_seek else [0, 1, 2, 3])]
    registry.register("disk", (2, 0))
    assert claimed(registry.get("disk"), 99) == [(2, [0, 3])]
    assert [(gap.bundle_index_first, gap.bundle_count) for gap in registry.get("disk").gaps] == [(1, 2)]


def test_register_with_an_invalid_id_is_refused() -> None:
    with pytest.raises(InvalidId):
        registry_with().register("../x", (0, 0))


def test_load_twice_is_refused() -> None:
    registry = registry_with()
    registry.load("sub", decode_progress(GOLDEN))
    with pytest.raises(UsageError):
        registry.load("sub", decode_progress(GOLDEN))


def test_unknown_subscriber_is_a_typed_error() -> None:
    registry = registry_with()
    registry.register("there", (0, 0))
    for call in (registry.get, registry.unregister):
        with pytest.raises(UnknownSubscriber, match="there"):
            call("gone")
    for mark in (registry.flushes.mark_flushed, registry.flushes.mark_journaled, registry.flushes.mark_gaps_flushed):
        mark("gone", 1)
    assert registry.flushes.is_dirty, "what was flushed of one that is gone says nothing of the other"


def test_unregister_frees_what_only_it_needed() -> None:
    registry = registry_with((0, 2), (1, 3))
    registry.register("slow", (0, 0))
    registry.register("fast", (0, 0))
    finish(registry, "fast")
    flush(registry, 2)
    assert registry.deletable([0, 1]) == []
    assert registry.unregister("slow") == 5
    assert registry.deletable([0, 1]) == [0, 1]
    assert (len(registry), "slow" in registry, [state.subscriber for state in registry]) == (1, False, ["fast"])


def test_flush_of_an_unregistered_subscriber_does_not_pass_for_its_successor() -> None:
    registry = registry_with((0, 2))
    registry.register("sub", (0, 0))
    finish(registry, "sub")
    [(_, version, _)] = registry.flushes.dirty(1)
    registry.unregister("sub")
    registry.register("sub", (0, 0))
    registry.flushes.mark_flushed("sub", version)
    assert [name for name, _, _ in registry.flushes.dirty(1)] == ["sub"]


def test_nothing_is_deletable_without_a_subscriber() -> None:
    assert registry_with((0, 1)).deletable([0]) == []


def test_nothing_is_deletable_that_only_an_onlooker_has_seen() -> None:
    """Regression: looking at a topic without subscribers deleted what was in it."""
    registry = registry_with((0, 1), (1, 1))
    registry.register(f"{ONLOOKER_PREFIX}1", (2, 0))
    flush(registry, 2)
    assert registry.deletable([0, 1]) == []
    registry.register("sub", (0, 0))
    finish(registry, "sub")
    flush(registry, 2)
    assert registry.deletable([0, 1]) == [0, 1], "beside a consumer it is as any other"


def with_archive(registry: SubscriberRegistry, settings: ArchiveSettings, done: int) -> SubscriberRegistry:
    """The registry with an archiver that has archived so many bundles, durably."""
    registry.archive = settings
    registry.register(ARCHIVE_SUBSCRIBER, (0, 0))
    if done:
        finish(registry, ARCHIVE_SUBSCRIBER, done)
    flush(registry, 9)
    return registry


def test_what_only_the_archiver_has_seen_goes_where_the_topic_says_so() -> None:
    two = ((1, 4), (2, 4))
    plain, local = ArchiveSettings(enabled=True), ArchiveSettings(enabled=True, keep_local_size_bytes=1)
    assert with_archive(registry_with(*two), plain, 4).deletable([1, 2]) == []
    assert with_archive(registry_with(*two), local, 4).deletable([1, 2]) == [1]
    assert not archiving.has_consumers(with_archive(registry_with(*two), local, 4))


def test_what_is_not_archived_is_not_deletable_unless_the_topic_is_not_archived_any_more() -> None:
    registry = registry_with((1, 4), (2, 4))
    registry.register("reader", (0, 0))
    finish(registry, "reader")
    flush(registry, 9)
    registry.archive = ArchiveSettings(enabled=True)
    assert registry.deletable([1, 2]) == [], "the archiver has not come yet"
    with_archive(registry, ArchiveSettings(enabled=True), 4)
    assert registry.deletable([1, 2]) == [1]
    registry.archive = ArchiveSettings()
    assert registry.deletable([1, 2]) == [1, 2]


def test_a_topic_that_requires_its_archive_keeps_all_before_the_archiver_has_come() -> None:
    registry = registry_with((1, 4), (2, 4))
    registry.register("reader", (0, 0))
    finish(registry, "reader")
    flush(registry, 9)
    registry.archive = ArchiveSettings(enabled=True, require=True)
    assert (registry.deletable([1, 2]), archiving.unarchived(registry, registry.archive, [1, 2])) == ([], {1, 2})
    with_archive(registry, registry.archive, 4)
    assert (registry.deletable([1, 2]), archiving.unarchived(registry, registry.archive, [1, 2])) == ([1], {2})


def test_deletable_needs_every_subscriber_also_one_that_nobody_attends() -> None:
    registry = registry_with((0, 2), (1, 2))
    stale = SubscriberProgress(
        oldest_incomplete_seg=1, entries={1: SegmentProgress(2, bytes([1]) + bytes(7))}, trusted_watermark=True
    )
    registry.load("orphan", stale)
    registry.register("live", (0, 0))
    finish(registry, "live")
    flush(registry, 2)
    assert registry.deletable([0, 1]) == [0]


def test_deletable_waits_for_durable_progress() -> None:
    """A file deleted before the progress that allows it is durable would look lost after a crash."""
    registry = registry_with((0, 2))
    registry.register("sub", (0, 0))
    flush(registry, 1)
    finish(registry, "sub")
    assert registry.deletable([0]) == []
    flush(registry, 1)
    assert registry.deletable([0]) == [0]
    assert registry.deletable([1]) == [], "a segment that nobody has seen is not complete"


def test_deleted_segment_is_not_owed_to_later_subscribers() -> None:
    registry = registry_with((0, 2), (1, 2))
    registry.register("a", (0, 0))
    finish(registry, "a", 2)
    flush(registry, 2)
    assert registry.deletable([0, 1]) == [0]
    assert registry.forget_segment(0, file_is_gone=True) == [], "nobody loses anything"
    assert claimed(registry.register("b", (0, 0)), 100) == [(1, [0, 1])]


def test_damaged_segment_names_each_subscribers_losses() -> None:
    registry = registry_with((0, 4))
    for subscriber in ("done", "half", "fresh"):
        registry.register(subscriber, (0, 0))
    finish(registry, "done")
    finish(registry, "half", 2)
    assert registry.forget_segment(0) == [("half", [(2, 2)]), ("fresh", [(0, 4)])]
    assert registry.completed_since() == [("done", 0), ("half", 0), ("fresh", 0)]
    assert registry.completed_since() == []
    assert sorted(flush(registry, 1)) == ["done", "fresh", "half"]


def test_awaited_segments_are_those_without_a_file() -> None:
    registry = registry_with()
    registry.load("sub-a", decode_progress(GOLDEN))
    registry.add_segment(1, 2)
    assert registry.awaited_segments() == [0]
    assert registry.forget_segment(0) == [("sub-a", [(1, 1)])]
    assert registry.awaited_segments() == []


def test_highest_segment_seen_counts_progress_of_files_that_are_gone() -> None:
    """Rust starts again at 0 when the directory is empty, and then skips and deletes new data as completed (its issue 4024)."""
    registry = registry_with()
    assert registry.highest_segment_seq_seen() == -1
    registry.load("a", SubscriberProgress(oldest_incomplete_seg=12, entries={}, trusted_watermark=True))
    registry.load("sub-a", decode_progress(GOLDEN))
    assert registry.highest_segment_seq_seen() == 11


def test_release_and_due_go_over_all_subscribers() -> None:
    registry = registry_with((0, 3))
    for subscriber in ("a", "b", "c"):
        registry.register(subscriber, (0, 0))
    for subscriber, delay_ns in (("a", 30), ("b", 20)):
        ((segment_seq, _, token, *_),) = registry.get(subscriber).claim(OWNER, 2)
        registry.get(subscriber).resolve(OWNER, segment_seq, token, "defer", [0], delay_ns, 1000)
    assert registry.attention.next_due_ns() == 1020
    assert registry.release(OWNER) == ["a", "b"]
    assert registry.release(OWNER) == []
    assert registry.due(1025) == ["b"]
    assert registry.attention.next_due_ns() == 1030
    assert registry.due(1030) == ["a"]
    assert (registry.attention.next_due_ns(), registry.due(2000)) == (None, [])


def test_dirty_lists_only_what_changed() -> None:
    registry = registry_with((0, 3))
    registry.register("a", (0, 0))
    registry.register("b", (0, 0))
    assert sorted(flush(registry, 1)) == ["a", "b"]
    finish(registry, "b", 1)
    [(subscriber, version, progress)] = registry.flushes.dirty(1)
    assert (subscriber, progress.entries) == ("b", {0: SegmentProgress(3, bytes([1]) + bytes(7))})
    finish(registry, "b", 1)
    registry.flushes.mark_flushed("b", version)
    assert [name for name, _, _ in registry.flushes.dirty(1)] == ["b"], (
        "what came after the snapshot is still to be written"
    )
