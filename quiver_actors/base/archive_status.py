"""The archiver's account of itself: a file in the run directory that the archiver writes and everybody else reads.

The file is replaced as a whole. It says what is in the archive already, so that a client can wait for its bundles without asking the
object store; it never says more than the manifest.
"""

from __future__ import annotations

import os

import msgspec

ARCHIVE_STATUS_FILE = "archive.json"
STATUS_VERSION = 1


class ArchivedStream(msgspec.Struct, frozen=True, kw_only=True):
    """One topic on one core."""

    topic: str
    core: int
    incarnation: str
    """Incarnation of the directory that the segments lie in."""
    archived_through: int = -1
    """The highest segment number up to which everything is archived, or is told never to be; -1: nothing yet."""
    known_from: int = 0
    """The lowest segment number of which this file tells whether it is archived."""
    runs: tuple[tuple[int, int], ...] = ()
    """First and last number of archived segments that follow each other."""
    holes: tuple[tuple[int, int, int, str], ...] = ()
    """Bundles of these numbers that never will be archived: segment, first bundle, count (0: all from there on), reason."""
    stages: tuple[int, ...] = ()
    """The numbers of prepared stages whose bundles are archived, and that a restore would prepare again."""
    lag_segments: int = 0
    """Sealed segments that are not archived yet."""
    lag_bytes: int = 0
    oldest_unix_ns: int = 0
    """Ingestion time of the oldest bundle that is not archived yet, sealed or not; 0: there is none."""

    def is_archived(self, segment_seq: int) -> bool:
        """Whether the segment of this number is in the archive."""
        return any(first <= segment_seq <= last for first, last in self.runs)

    def hole(self, segment_seq: int, bundle_first: int, bundle_stop: int) -> str:
        """The reason for which one of the bundles of a range never will be in the archive; empty if none is known."""
        for number, first, count, reason in self.holes:
            if number == segment_seq and first < bundle_stop and (not count or bundle_first < first + count):
                return reason
        return ""


class ArchiveStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the archiver does, what it has done since it was started, and what it has of each topic."""

    version: int = STATUS_VERSION
    url: str
    state: str
    """`starting`, `archiving`, `waiting` (the store does not answer), `refused` (an operator must act) or `fenced`."""
    error: str = ""
    """The last error, while it lasts."""
    error_unix_ns: int = 0
    updated_unix_ns: int = 0
    epoch: int = 0
    uploaded_segments: int = 0
    merged_segments: int = 0
    """Segments that were merged into larger objects since the archiver's start."""
    uploaded_bytes: int = 0
    error_count: int = 0
    cached_bytes: int = 0
    """Fetched blocks of archived segments that are kept in the data directory for clients."""
    streams: tuple[ArchivedStream, ...] = ()

    @property
    def lag_segments(self) -> int:
        """Sealed segments of all topics that are not archived yet."""
        return sum(each.lag_segments for each in self.streams)

    @property
    def lag_bytes(self) -> int:
        """Bytes of these segments."""
        return sum(each.lag_bytes for each in self.streams)

    @property
    def oldest_unix_ns(self) -> int:
        """Ingestion time of the oldest bundle of all topics that is not archived yet; 0: there is none."""
        return min((each.oldest_unix_ns for each in self.streams if each.oldest_unix_ns), default=0)


def read_archive_status(run_dir: str) -> ArchiveStatus | None:
    """What the archiver of that run directory has said last; None where none runs, or where a newer one does not say it in this form."""
    try:
        with open(os.path.join(run_dir, ARCHIVE_STATUS_FILE), "rb") as file:
            status = msgspec.json.decode(file.read(), type=ArchiveStatus)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return status if status.version == STATUS_VERSION else None
