"""Compaction of one segment here and now, for a command that holds the engine's lock. Blocking."""

from __future__ import annotations

from dataclasses import dataclass

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.upkeep import CompactJob
from quiver_actors.store.segment.check import run_to_end


@dataclass(frozen=True, slots=True)
class CompactedSegment:
    """Outcome for a segment that was examined for compaction."""

    segment_seq: int
    size_bytes: int
    new_size_bytes: int | None
    """Size of the new file; None: the file was left alone."""
    pays: bool
    reason: str
    saving_bytes: int
    """How many bytes the new file is smaller; where there is none, an estimate of how many would go."""
    damage: str | None


def compact_segment(disk: Disk, paths: EnginePaths, segment_seq: int, *, dry_run: bool) -> CompactedSegment:
    """Compact a segment here and now, if that pays. The caller holds the engine's lock.

    Raises:
        DiskError: the disk has failed; the segment is as it was, or whole and compacted.
    """
    job = CompactJob(disk, paths, segment_seq)
    if dry_run:
        job.judge_only()
    else:
        run_to_end(job.steps())
    assert job.verdict is not None
    saving = job.verdict.saving_bytes if job.new_size_bytes is None else job.old_size_bytes - job.new_size_bytes
    verdict = job.verdict
    return CompactedSegment(
        segment_seq, job.old_size_bytes, job.new_size_bytes, verdict.pays, verdict.reason, saving, job.damage
    )
