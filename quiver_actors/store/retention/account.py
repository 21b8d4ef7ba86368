"""Everything that one engine has on disk, by kind, in bytes of blocks: what counts against the node's cap.

Logs, segments and what is being allocated are known at every moment; the small files are measured now and then. At rest the
sum is what `du` says of the directory.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

BLOCK_BYTES = 4096


def block_bytes(size_bytes: int) -> int:
    """Bytes of disk blocks that a file of that size takes."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Result of a measurement: everything in the directory that is neither a log nor a segment that the engine knows."""

    compaction_bytes: int = 0
    """Outputs of compactions and rescues that have not replaced their segment (yet)."""
    progress_bytes: int = 0
    gaps_bytes: int = 0
    quarantine_bytes: int = 0
    """Files in quarantine, and damaged segments that are still in their place."""
    ballast_bytes: int = 0
    other_bytes: int = 0
    """Numbers, cursor, lock, and the directories themselves."""

    @property
    def total_bytes(self) -> int:
        """Allocated bytes of all small files together."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Kept:
    """Segments that every subscriber is done with and that stay all the same, by the setting that keeps them."""

    keep_for_bytes: int
    headroom_bytes: int
    """Bytes of the segments that only `steady_state_headroom` keeps."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """Disk usage of one engine, in bytes of blocks."""

    log_bytes: int
    """Logs that take entries or are ready to, as preallocated, with what is being allocated."""
    sealing_bytes: int
    """Logs that are being turned into segments."""
    segment_bytes: int
    small: SmallFiles
    held_bytes: int = 0
    """Deleted segments that somebody has open or mapped."""

    @property
    def total_bytes(self) -> int:
        """Allocated bytes that count against the caps: logs, segments, small files, and deleted files that readers hold."""
        return self.log_bytes + self.sealing_bytes + self.segment_bytes + self.small.total_bytes + self.held_bytes
