"""What a flush writes: the files of subscribers that have changed, in the order in which they must become durable. Pure."""

from __future__ import annotations

from collections.abc import Collection

from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.records import ProgressWrite
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.gaps import gaps_file_name
from quiver_actors.store.subscriber.progress import encode_progress, progress_file_name
from quiver_actors.store.subscriber.registry import SubscriberRegistry


def file_writes(
    paths: EnginePaths, registry: SubscriberRegistry, removed: Collection[str], oldest_unannounced: int
) -> list[ProgressWrite]:
    """Everything that is not in the files yet.

    Args:
        removed: subscribers that were unregistered; they may be there again.
        oldest_unannounced: the lowest segment number that subscribers have not been told of yet.
    """
    writes = []
    for name in sorted(name for name in removed if name not in registry):
        writes.append(ProgressWrite(paths.in_root(progress_file_name(name)), None, name, 0))
        writes.append(ProgressWrite(paths.in_root(gaps_file_name(name)), None, name, 0))
    # One that was unregistered and came back at once must not inherit the old notices.
    writes += [
        _gap_write(paths, state, with_withdrawn=True)
        for state in registry.flushes.changed()
        if state.gaps.changes.is_dirty or state.subscriber in removed
    ]
    writes += progress_writes(paths, registry, oldest_unannounced)
    # Withdrawn notices go only after the progress that owes their bundles again.
    withdrawing = [state for state in registry.flushes.changed() if state.gaps.has_withdrawn]
    return writes + [_gap_write(paths, state, with_withdrawn=False) for state in withdrawing]


def progress_writes(paths: EnginePaths, registry: SubscriberRegistry, oldest_unannounced: int) -> list[ProgressWrite]:
    """The progress that is not durable yet, as files; arguments as for `file_writes`."""
    return [
        ProgressWrite(
            paths.in_root(progress_file_name(subscriber)),
            encode_progress(progress),
            subscriber,
            version,
            ownership=progress.ownership,
        )
        for subscriber, version, progress in registry.flushes.dirty(oldest_unannounced)
    ]


def _gap_write(paths: EnginePaths, state: SubscriberState, *, with_withdrawn: bool) -> ProgressWrite:
    gaps, path = state.gaps, paths.in_root(gaps_file_name(state.subscriber))
    content = gaps.encode(state.progress.changes.filed_version, with_withdrawn=with_withdrawn)
    return ProgressWrite(path, content, state.subscriber, gaps.changes.version, is_gaps=True)
