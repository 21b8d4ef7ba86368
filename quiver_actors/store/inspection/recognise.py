"""Finds out what kind of file a file is, by its content; by its name only where the content does not say."""

from __future__ import annotations

import enum

from quiver_actors.store.files.cold_directory import IDENTITY_NAME, IDENTITY_TABLE
from quiver_actors.store.files.cold_list import COLD_NAME, COLD_TABLE
from quiver_actors.store.files.cold_owner import OWNER_NAME, OWNER_TABLE
from quiver_actors.store.files.core_count import CORES_FILE, CORES_NAME
from quiver_actors.store.files.core_file import CORE_NAME, CORE_TABLE
from quiver_actors.store.files.foreign_record import FOREIGN_NAME, FOREIGN_TABLE
from quiver_actors.store.files.paths import (
    ARCHIVE_NAME,
    PREPARED_SUFFIX,
    PRODUCERS_NAME,
    STAGE_SUFFIX,
    TRANSACTIONS_NAME,
    segment_seq_of,
)
from quiver_actors.store.files.summaries import SUMMARIES_NAME, SUMMARIES_TABLE
from quiver_actors.store.files.topic_list import CATALOGUE_MAGIC, CATALOGUE_NAME, PREVIOUS_NAME
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.segment.arrow_file import ARROW_MAGIC, FILE_START
from quiver_actors.store.segment.layout import TRAILER, TRAILER_TABLE
from quiver_actors.store.staged.keys import PRODUCERS_MAGIC
from quiver_actors.store.staged.records import JOURNAL_MAGIC, STAGE_MAGIC
from quiver_actors.store.subscriber.gaps import GAPS_TABLE, gaps_subscriber_of
from quiver_actors.store.subscriber.progress import PROGRESS_TABLE, subscriber_of
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME, JOURNAL_TABLE
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.reader import LogReader

_VERSION_TEXT = b"quiver-data "
_DECISION_TEXT = b'{"txn_id":'
_ARCHIVE_TEXT = b'{"version":1,"directory":"'
_HEAD_BYTES = 64


class FileKind(enum.StrEnum):
    """Kind of a stored file, as `quiver inspect` shows it."""

    LOG = "log"
    SEGMENT = "segment"
    PROGRESS = "progress"
    PROGRESS_JOURNAL = "journal of progress"
    GAPS = "gap notices"
    CURSOR = "cursor"
    CORE = "core file"
    VERSION = "version file"
    CORES = "number of cores"
    ARCHIVE = "identity to the archive"
    TOPICS = "list of topics"
    DECISION = "decision about a transaction"
    """The claim of a process that wants to make the decision has the same content."""
    STAGE = "prepared stage"
    TRANSACTIONS = "transaction journal"
    PRODUCERS = "idempotent producers"
    FOREIGN = "record of other writers"
    SUMMARIES = "summaries of segments"
    COLD = "list of cold segments"
    COLD_IDENTITY = "identity of a cold directory"
    COLD_OWNER = "owner of a cold directory"
    ARROW = "arrow file"
    """A plain Arrow file, or streams of a segment that has lost its end."""
    ZEROES = "zeroes"
    """The file was preallocated and never written."""
    EMPTY = "empty"
    UNKNOWN = "unknown"


_MAGICS = (
    (layout.WAL_MAGIC, FileKind.LOG),
    (PROGRESS_TABLE.magic, FileKind.PROGRESS),
    (JOURNAL_TABLE.magic, FileKind.PROGRESS_JOURNAL),
    (GAPS_TABLE.magic, FileKind.GAPS),
    (layout.CURSOR_TABLE.magic, FileKind.CURSOR),
    (CORE_TABLE.magic, FileKind.CORE),
    (_VERSION_TEXT, FileKind.VERSION),
    (CORES_NAME.encode(), FileKind.CORES),
    (CATALOGUE_MAGIC, FileKind.TOPICS),
    (_DECISION_TEXT, FileKind.DECISION),
    (_ARCHIVE_TEXT, FileKind.ARCHIVE),
    (STAGE_MAGIC, FileKind.STAGE),
    (JOURNAL_MAGIC, FileKind.TRANSACTIONS),
    (PRODUCERS_MAGIC, FileKind.PRODUCERS),
    (FOREIGN_TABLE.magic, FileKind.FOREIGN),
    (SUMMARIES_TABLE.magic, FileKind.SUMMARIES),
    (COLD_TABLE.magic, FileKind.COLD),
    (IDENTITY_TABLE.magic, FileKind.COLD_IDENTITY),
    (OWNER_TABLE.magic, FileKind.COLD_OWNER),
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
    if TRAILER_TABLE.has_magic(tail):
        return FileKind.SEGMENT
    head = source.read(_HEAD_BYTES, 0)
    return next((kind for magic, kind in _MAGICS if head.startswith(magic)), None)


def _by_search(source: Source) -> tuple[FileKind, str]:
    """The kind of a file without a known magic: any valid entry makes it a log that has lost its header."""
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
    return reader.scan(layout.HEADER_BYTES_V1, stride=1).entry_count > 0


def _by_name(name: str) -> FileKind | None:
    if name == layout.ACTIVE_NAME or layout.rotation_number(name) is not None:
        return FileKind.LOG
    if segment_seq_of(name) is not None:
        return FileKind.SEGMENT
    if subscriber_of(name) is not None:
        return FileKind.PROGRESS
    if gaps_subscriber_of(name) is not None:
        return FileKind.GAPS
    if name.endswith(PREPARED_SUFFIX):
        return FileKind.STAGE
    if name.endswith(STAGE_SUFFIX):
        return FileKind.LOG
    return {
        layout.CURSOR_NAME: FileKind.CURSOR,
        CORE_NAME: FileKind.CORE,
        JOURNAL_NAME: FileKind.PROGRESS_JOURNAL,
        TRANSACTIONS_NAME: FileKind.TRANSACTIONS,
        PRODUCERS_NAME: FileKind.PRODUCERS,
        FOREIGN_NAME: FileKind.FOREIGN,
        SUMMARIES_NAME: FileKind.SUMMARIES,
        COLD_NAME: FileKind.COLD,
        IDENTITY_NAME: FileKind.COLD_IDENTITY,
        OWNER_NAME: FileKind.COLD_OWNER,
        CORES_FILE: FileKind.CORES,
        ARCHIVE_NAME: FileKind.ARCHIVE,
        CATALOGUE_NAME: FileKind.TOPICS,
        PREVIOUS_NAME: FileKind.TOPICS,
    }.get(name)


def is_plain_arrow(source: Source) -> bool:
    """Whether an Arrow file also ends as one."""
    return source.read(len(ARROW_MAGIC), max(0, source.size_bytes - len(ARROW_MAGIC))) == ARROW_MAGIC
