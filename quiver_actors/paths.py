"""Where things are in one engine's directory. FORMATS section 1. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.core_file import CORE_NAME
from quiver_actors.wal.layout import ACTIVE_NAME, CURSOR_NAME, rotated_name

SEGMENT_SUFFIX = ".qseg"
TEMPORARY_SUFFIX = ".tmp"
RESCUED_SUFFIX = ".rescued"
"""Behind a segment's name: what was rebuilt of a damaged one, complete, until the damaged file is out of the way."""
BALLAST_NAME = "quiver.ballast"
WAL_NAME = "wal"
SEGMENTS_NAME = "segments"
QUARANTINE_NAME = "quarantine"
STAGED_NAME = "staged"
"""Directory of staged bundles; there only once a transaction was."""
TRANSACTIONS_NAME = "quiver.transactions"
PRODUCERS_NAME = "quiver.producers"
PREPARED_SUFFIX = ".prepared"
STAGE_SUFFIX = ".stage"


@dataclass(frozen=True, slots=True)
class EnginePaths:
    """The names below `root`, the directory of one topic on one core; relative to the data directory."""

    root: str

    @property
    def lock(self) -> str:
        return f"{self.root}/quiver.lock"

    @property
    def core(self) -> str:
        return f"{self.root}/{CORE_NAME}"

    @property
    def ballast(self) -> str:
        return f"{self.root}/{BALLAST_NAME}"

    @property
    def wal(self) -> str:
        return f"{self.root}/{WAL_NAME}"

    @property
    def segments(self) -> str:
        return f"{self.root}/{SEGMENTS_NAME}"

    @property
    def quarantine(self) -> str:
        return f"{self.root}/{QUARANTINE_NAME}"

    @property
    def active(self) -> str:
        return f"{self.wal}/{ACTIVE_NAME}"

    @property
    def cursor(self) -> str:
        return f"{self.wal}/{CURSOR_NAME}"

    def rotated(self, number: int) -> str:
        return f"{self.wal}/{rotated_name(number)}"

    def spare(self, number: int) -> str:
        return f"{self.wal}/{ACTIVE_NAME}.spare-{number}{TEMPORARY_SUFFIX}"

    def segment(self, segment_seq: int) -> str:
        return f"{self.segments}/{segment_name(segment_seq)}"

    def rescued(self, segment_seq: int) -> str:
        return self.segment(segment_seq) + RESCUED_SUFFIX

    @property
    def staged(self) -> str:
        return f"{self.root}/{STAGED_NAME}"

    @property
    def transactions(self) -> str:
        return f"{self.root}/{TRANSACTIONS_NAME}"

    @property
    def producers(self) -> str:
        return f"{self.root}/{PRODUCERS_NAME}"

    def prepared(self, number: int) -> str:
        return f"{self.staged}/{number:016}{PREPARED_SUFFIX}"

    def stage_part(self, number: int, part: int) -> str:
        return f"{self.staged}/{number:016}.{part:04}{STAGE_SUFFIX}"

    def in_root(self, name: str) -> str:
        return f"{self.root}/{name}"


def segment_name(segment_seq: int) -> str:
    """Of its file."""
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
