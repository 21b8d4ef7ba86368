"""What kind of file it is, by its content; by its name only where the content does not say."""

from __future__ import annotations

import enum

from quiver_actors.core_file import CORE_MAGIC, CORE_NAME
from quiver_actors.inspection.source import Source
from quiver_actors.inspection.structures import PROGRESS_MAGIC
from quiver_actors.paths import PREPARED_SUFFIX, PRODUCERS_NAME, STAGE_SUFFIX, TRANSACTIONS_NAME, segment_seq_of
from quiver_actors.segment.arrow_file import ARROW_MAGIC, FILE_START
from quiver_actors.segment.layout import SEGMENT_MAGIC, TRAILER
from quiver_actors.subscriber.progress import subscriber_of
from quiver_actors.transactions.keys import PRODUCERS_MAGIC
from quiver_actors.transactions.records import JOURNAL_MAGIC, STAGE_MAGIC
from quiver_actors.wal import layout
from quiver_actors.wal.reader import LogReader

_VERSION_TEXT = b"quiver-data "
_HEAD_BYTES = 64


class FileKind(enum.StrEnum):
    LOG = "log"
    SEGMENT = "segment"
    PROGRESS = "progress"
    CURSOR = "cursor"
    CORE = "core file"
    VERSION = "version file"
    STAGE = "prepared stage"
    TRANSACTIONS = "transaction journal"
    PRODUCERS = "idempotent producers"
    ARROW = "arrow file"
    """A plain Arrow file, or streams of a segment that has lost its end."""
    ZEROES = "zeroes"
    """Preallocated, never written."""
    EMPTY = "empty"
    UNKNOWN = "unknown"


_MAGICS = (
    (layout.WAL_MAGIC, FileKind.LOG),
    (PROGRESS_MAGIC, FileKind.PROGRESS),
    (layout.CURSOR_MAGIC, FileKind.CURSOR),
    (CORE_MAGIC, FileKind.CORE),
    (_VERSION_TEXT, FileKind.VERSION),
    (STAGE_MAGIC, FileKind.STAGE),
    (JOURNAL_MAGIC, FileKind.TRANSACTIONS),
    (PRODUCERS_MAGIC, FileKind.PRODUCERS),
    (FILE_START, FileKind.ARROW),
)


def recognise(source: Source) -> tuple[FileKind, str]:
    """The kind of a file, and whether its `content` or its `name` told."""
    if source.size_bytes == 0:
        return FileKind.EMPTY, "content"
    kind = _by_magic(source)
    if kind is FileKind.LOG and segment_seq_of(source.name) is not None:
        # Sealed in place, and its trailer is damaged: the entries alone cannot tell it from a log.
        return FileKind.SEGMENT, "name"
    if kind is FileKind.ARROW and segment_seq_of(source.name) is not None:
        return FileKind.SEGMENT, "name"
    if kind is not None:
        return kind, "content"
    return _by_search(source)


def _by_magic(source: Source) -> FileKind | None:
    tail = source.read(TRAILER.size, max(0, source.size_bytes - TRAILER.size))
    if tail[4:12] == SEGMENT_MAGIC:
        return FileKind.SEGMENT
    head = source.read(_HEAD_BYTES, 0)
    return next((kind for magic, kind in _MAGICS if head.startswith(magic)), None)


def _by_search(source: Source) -> tuple[FileKind, str]:
    """No magic stands where one should: a log without its header is known by any valid entry."""
    named = _by_name(source.name)
    if named not in (None, FileKind.LOG):
        return named, "name"
    if source.is_zero(source.size_bytes):
        return FileKind.ZEROES, "content"
    if has_entries(source):
        return FileKind.LOG, "content"
    return (named, "name") if named is not None else (FileKind.UNKNOWN, "content")


def has_entries(source: Source) -> bool:
    """Whether any valid log entry stands in the file, wherever."""
    reader = LogReader(source.read, source.size_bytes)
    return any(reader.scan(start, stride=stride).entry_count for start, stride in SEARCHES)


SEARCHES = ((layout.HEADER_BYTES, layout.ALIGNMENT), (layout.HEADER_BYTES_V1, 1))
"""Where entries are looked for when the header does not say: (first offset, stride) of our files, then of any."""


def _by_name(name: str) -> FileKind | None:
    if name == layout.ACTIVE_NAME or layout.rotation_number(name) is not None:
        return FileKind.LOG
    if segment_seq_of(name) is not None:
        return FileKind.SEGMENT
    if subscriber_of(name) is not None:
        return FileKind.PROGRESS
    if name.endswith(PREPARED_SUFFIX):
        return FileKind.STAGE
    if name.endswith(STAGE_SUFFIX):
        return FileKind.LOG
    return {
        layout.CURSOR_NAME: FileKind.CURSOR,
        CORE_NAME: FileKind.CORE,
        TRANSACTIONS_NAME: FileKind.TRANSACTIONS,
        PRODUCERS_NAME: FileKind.PRODUCERS,
    }.get(name)


def is_plain_arrow(source: Source) -> bool:
    """Whether an Arrow file also ends as one."""
    return source.read(len(ARROW_MAGIC), max(0, source.size_bytes - len(ARROW_MAGIC))) == ARROW_MAGIC
