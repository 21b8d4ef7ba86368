"""The paths in one engine's directory, from docs/formats.md section 1, "Files and their codecs". Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.store.files.cold_list import COLD_NAME
from quiver_actors.store.files.cold_owner import OWNER_NAME
from quiver_actors.store.files.core_file import CORE_NAME
from quiver_actors.store.files.foreign_record import FOREIGN_NAME
from quiver_actors.store.files.summaries import SUMMARIES_NAME
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME
from quiver_actors.store.wal.layout import ACTIVE_NAME, CURSOR_NAME, rotated_name

SEGMENT_SUFFIX = ".qseg"
TEMPORARY_SUFFIX = ".tmp"
RESCUED_SUFFIX = ".rescued"
"""Suffix after a segment's name: a complete file, rebuilt from a damaged segment, until the damaged file has been moved away."""
BALLAST_NAME = "quiver.ballast"
WITNESS_NAME = "quiver.witness"
"""An empty file: as long as it is there, `wal/` has a log at any time."""
WAL_NAME = "wal"
SEGMENTS_NAME = "segments"
QUARANTINE_NAME = "quarantine"
HELD_NAME = "held"
"""Directory of deleted segments that somebody still has open or mapped; it exists only after the first of them."""
STAGED_NAME = "staged"
"""Directory of staged bundles; it exists only after the first transaction."""
TRANSACTIONS_NAME = "quiver.transactions"
PRODUCERS_NAME = "quiver.producers"
ARCHIVE_NAME = "quiver.archive"
"""Identity of a data directory to its archive; see `archive.ownership`."""
PREPARED_SUFFIX = ".prepared"
STAGE_SUFFIX = ".stage"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The names below `root`, the directory of one topic on one core; relative to the data directory."""

    root: str

    @property
    def lock(self) -> str:
        """Path of the lock file; its owner alone may open the engine."""
        return f"{self.root}/quiver.lock"

    @property
    def core(self) -> str:
        """Path of the core file: reserved numbers and incarnation."""
        return f"{self.root}/{CORE_NAME}"

    @property
    def ballast(self) -> str:
        """Path of the ballast, which is deleted for room on a full disk."""
        return f"{self.root}/{BALLAST_NAME}"

    @property
    def witness(self) -> str:
        """Path of the empty file that says that `wal/` has a log at any time."""
        return f"{self.root}/{WITNESS_NAME}"

    @property
    def wal(self) -> str:
        """Directory of the logs."""
        return f"{self.root}/{WAL_NAME}"

    @property
    def segments(self) -> str:
        """Directory of the sealed segments."""
        return f"{self.root}/{SEGMENTS_NAME}"

    @property
    def quarantine(self) -> str:
        """Directory of damaged files; it exists only when there was one."""
        return f"{self.root}/{QUARANTINE_NAME}"

    @property
    def held(self) -> str:
        """Directory of the names of deleted segments that a process still has open or mapped."""
        return f"{self.root}/{HELD_NAME}"

    @property
    def active(self) -> str:
        """Path of the log that takes entries."""
        return f"{self.wal}/{ACTIVE_NAME}"

    @property
    def cursor(self) -> str:
        """Path of the cursor: the log position up to which everything is in segments."""
        return f"{self.wal}/{CURSOR_NAME}"

    def rotated(self, number: int) -> str:
        """Path of the retired log with this number."""
        return f"{self.wal}/{rotated_name(number)}"

    def spare(self, number: int) -> str:
        """Path of the spare log with this number, under a temporary name."""
        return f"{self.wal}/{ACTIVE_NAME}.spare-{number}{TEMPORARY_SUFFIX}"

    def segment(self, segment_seq: int) -> str:
        """Path of the segment with this number."""
        return f"{self.segments}/{segment_name(segment_seq)}"

    def rescued(self, segment_seq: int) -> str:
        """Path of a rebuilt segment while the damaged file still has the segment's name."""
        return self.segment(segment_seq) + RESCUED_SUFFIX

    @property
    def staged(self) -> str:
        """Directory of staged bundles."""
        return f"{self.root}/{STAGED_NAME}"

    @property
    def transactions(self) -> str:
        """Path of the record of publishes and drops."""
        return f"{self.root}/{TRANSACTIONS_NAME}"

    @property
    def producers(self) -> str:
        """Path of the windows of idempotent producers."""
        return f"{self.root}/{PRODUCERS_NAME}"

    @property
    def foreign(self) -> str:
        """Path of the record of other writers."""
        return f"{self.root}/{FOREIGN_NAME}"

    @property
    def cold(self) -> str:
        """Path of the list of cold segments; it exists only after the first of them."""
        return f"{self.root}/{COLD_NAME}"

    @property
    def cold_owner(self) -> str:
        """Path of the token under which this directory has its directory on the cold disk."""
        return f"{self.root}/{OWNER_NAME}"

    @property
    def summaries(self) -> str:
        """Path of the summaries of segments, a derived file."""
        return f"{self.root}/{SUMMARIES_NAME}"

    @property
    def progress_journal(self) -> str:
        """Path of the journal of the subscribers' progress; it exists while the journal is ahead of the progress files."""
        return f"{self.root}/{JOURNAL_NAME}"

    def prepared(self, number: int) -> str:
        """Path of the record of a prepared stage."""
        return f"{self.staged}/{number:016}{PREPARED_SUFFIX}"

    def stage_part(self, number: int, part: int) -> str:
        """Path of one part of a stage; parts count from 0."""
        return f"{self.staged}/{number:016}.{part:04}{STAGE_SUFFIX}"

    def in_root(self, name: str) -> str:
        """Path of a file directly in the engine's directory."""
        return f"{self.root}/{name}"


def segment_name(segment_seq: int) -> str:
    """The name of that segment's file."""
    return f"{segment_seq:016}{SEGMENT_SUFFIX}"


def names_beside(segment_seq: int) -> tuple[str, ...]:
    """Every name under which work on that segment may leave a file in its directory, the segment's own among them."""
    name = segment_name(segment_seq)
    rescued = name + RESCUED_SUFFIX
    return name, name + TEMPORARY_SUFFIX, rescued, rescued + TEMPORARY_SUFFIX


def segment_seq_of(name: str) -> int | None:
    """The number in a segment's file name, None for any other name."""
    stem = name.removesuffix(SEGMENT_SUFFIX)
    if not (stem.isascii() and stem.isdigit()):
        return None
    # A number that is written in another way is nobody's file: what looks for it by its number would not find it.
    return int(stem) if segment_name(int(stem)) == name else None
