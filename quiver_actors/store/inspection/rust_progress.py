"""A subscriber's progress in the form that the Rust implementation reads, so that it can go on in a directory of ours.

It goes by the entries of a progress file alone. So segments that are there and lie below our watermark get an entry that says that they are
complete: without one it would deliver them again. Entries that lie in logs are sealed first, as a start does: that implementation would
give their segment a number of its own choice, and the progress would speak of another one.
"""

from __future__ import annotations

from quiver_actors.errors import AlreadyRunning, DataLost, FormatError
from quiver_actors.store.disk.protocol import DirectoryLock
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.inspection import directory as directories
from quiver_actors.store.inspection.findings import Severity
from quiver_actors.store.inspection.next_start import next_start, recovery_of
from quiver_actors.store.inspection.preview import quiet_log
from quiver_actors.store.inspection.recognise import has_entries
from quiver_actors.store.inspection.source import Tree
from quiver_actors.store.segment.reader import read_footer
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber.progress import (
    SegmentProgress,
    SubscriberProgress,
    decode_progress,
    encode_for_rust,
    progress_file_name,
)
from quiver_actors.store.subscriber.progress_journal import JournalRecord, current_content, decode_progress_journal

_BYTES_MAX = 64 << 20


def seal_logs(tree: Tree, directory: str) -> None:
    """Make segments of the entries that lie in the logs of a stopped engine. Without such entries nothing is changed.

    Args:
        directory: that of one engine, on the tree.

    Raises:
        AlreadyRunning: an engine has the directory open.
        DataLost: a start would find something lost or damaged, of which it has to tell subscribers.
        DiskError: a file cannot be read or written.
    """
    paths = EnginePaths(directory)
    _locked(tree, paths).release()
    if not any(_has_entries(tree, f"{paths.wal}/{name}") for name in directories.log_names(tree.disk, paths)):
        return
    for finding in next_start(tree, directory, ()):
        if finding.severity is Severity.DAMAGE:
            raise DataLost(
                f"{finding.path}: {finding.message}. Bundles that are in no segment are sealed before progress is exported, and "
                "subscribers have to be told of losses before: start the node, stop it, and export again"
            )
    lock = _locked(tree, paths)
    try:
        with quiet_log():
            recovery_of(tree, tree.disk, directory).run()
    finally:
        lock.release()


def _locked(tree: Tree, paths: EnginePaths) -> DirectoryLock:
    lock = tree.disk.lock(paths.lock)
    if lock is None:
        raise AlreadyRunning(f"{tree.named(paths.root)} is open in another process: stop it first")
    return lock


def _has_entries(tree: Tree, path: str) -> bool:
    with tree.open(path) as source:
        return has_entries(source)


def progress_for_rust(tree: Tree, directory: str, subscriber: str) -> bytes | None:
    """The content of `quiver.sub.<id>` for that implementation; None where the engine does not know the subscriber.

    Args:
        directory: that of one engine, on the tree.

    Raises:
        FormatError: the progress file is damaged, or of a newer version.
        InvalidId: there is no such subscriber id.
        DiskError: a file cannot be read.
    """
    name = progress_file_name(subscriber)
    if name not in directories.list_names(tree.disk, directory):
        return None
    with tree.open(directories.join(directory, name)) as source:
        content = source.read(_BYTES_MAX, 0)
    progress = decode_progress(current_content(content, _journaled(tree, directory, subscriber)))
    entries = dict(progress.entries)
    for segment_seq, path in directories.segment_names(tree.disk, EnginePaths(directory)).items():
        if segment_seq < progress.watermark:
            count = _bundle_count(tree, f"{EnginePaths(directory).segments}/{path}")
            entries[segment_seq] = SegmentProgress(count, bitmaps.full(count))
    oldest = min((seq for seq, entry in entries.items() if not entry.is_complete), default=0)
    return encode_for_rust(SubscriberProgress(oldest_incomplete_seg=oldest, entries=entries, trusted_watermark=False))


def _journaled(tree: Tree, directory: str, subscriber: str) -> JournalRecord | None:
    """What the journal says of a subscriber; nothing where it is damaged, as at a start."""
    path = EnginePaths(directory).progress_journal
    if not tree.disk.exists(path):
        return None
    with tree.open(path) as source:
        try:
            return decode_progress_journal(source.read(_BYTES_MAX, 0)).latest.get(subscriber)
        except DAMAGE:
            return None


def _bundle_count(tree: Tree, path: str) -> int:
    with tree.open(path) as source:
        try:
            return read_footer(source.read, source.size_bytes).bundle_count
        except FormatError:
            return 0  # it cannot be delivered either
