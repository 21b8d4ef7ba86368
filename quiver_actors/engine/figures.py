"""What one engine says about itself for the counters page."""

from __future__ import annotations

from quiver_actors.engine.parts import Parts
from quiver_actors.engine_figures import EngineFigures


def figures_of(parts: Parts, disk_bytes: int) -> EngineFigures:
    """A snapshot."""
    logs, shelf, active = parts.logs, parts.shelf, parts.logs.active
    is_checked = not shelf.waiting and not parts.mending.damaged
    return EngineFigures(
        state=parts.condition.state,
        bundles_in=parts.intake.bundles_in,
        rows_in=parts.intake.rows_in,
        bytes_in=parts.intake.bytes_in,
        wal_bytes=logs.entry_bytes,
        open_segment_bytes=active.entry_bytes if active else 0,
        open_segment_bundles=active.builder.bundle_count if active else 0,
        segments=len(shelf.segments),
        segment_bytes=shelf.segments.size_bytes,
        segment_bundles=shelf.segments.bundle_count,
        syncs=parts.group_commit.syncs,
        seals=logs.seals,
        sync_ns_last=parts.group_commit.sync_ns_last,
        seal_ns_last=logs.seal_ns_last,
        sequence_written=logs.sequence_written,
        sequence_durable=parts.group_commit.sequence_durable,
        refused=parts.intake.refused,
        disk_bytes=disk_bytes,
        segments_deleted=shelf.deleted,
        quarantined=parts.mending.quarantined,
        compactions=parts.upkeep.compactions,
        compacted_bytes_saved=parts.upkeep.saved_bytes,
        last_scrub_unix_ns=parts.upkeep.oldest_check_unix_ns if is_checked else 0,
        scrubbed_bytes=parts.upkeep.scrubbed_bytes,
        prepared_stages=len(parts.stages.prepared),
        staged_bytes=parts.stages.disk_bytes,
        oldest_prepared_unix_ns=min((stage.begun_unix_ns for stage in parts.stages.prepared), default=0),
    )
