"""Collects the figures of one engine for the counters page."""

from __future__ import annotations

from quiver_actors.store.engine.condition import EngineState
from quiver_actors.store.engine.engine_figures import EngineFigures
from quiver_actors.store.engine.parts import Parts
from quiver_actors.store.retention.limits import ROOM


def _shown_state(parts: Parts) -> EngineState:
    """The state to show: it also says what the next push would meet and whether segments can be read, unlike the engine's own state."""
    state = parts.condition.state
    if state is EngineState.READY and parts.logs.spare.has_refused:
        return EngineState.THROTTLED
    return EngineState.DEGRADED if state is EngineState.READY and parts.repair.faults.fault else state


def figures_of(parts: Parts, disk_bytes: int) -> EngineFigures:
    """A snapshot of the engine's figures."""
    logs, sealed_segments, active = parts.logs, parts.sealed_segments, parts.logs.active
    met = logs.spare.limit_met if logs.spare.limit_met is not ROOM else parts.stages.table.limit_met
    is_checked = not sealed_segments.waiting and not parts.repair.damaged
    return EngineFigures(
        state=_shown_state(parts),
        bundles_in=parts.intake.bundles_in + parts.stage_jobs.published_bundles,
        rows_in=parts.intake.rows_in + parts.stage_jobs.published_rows,
        bytes_in=parts.intake.bytes_in + parts.stage_jobs.published_bytes,
        wal_bytes=logs.entry_bytes,
        open_segment_bytes=active.entry_bytes if active else 0,
        open_segment_bundles=active.builder.bundle_count if active else 0,
        segments=len(sealed_segments.segments),
        segment_bytes=sealed_segments.segments.size_bytes,
        segment_bundles=sealed_segments.segments.bundle_count,
        syncs=parts.group_commit.syncs,
        seals=logs.seals,
        sync_ns_last=parts.group_commit.sync_ns_last,
        seal_ns_last=logs.seal_ns_last,
        sequence_written=logs.sequence_written,
        sequence_durable=parts.group_commit.sequence_durable,
        refused=parts.intake.refused,
        disk_bytes=disk_bytes,
        segments_deleted=sealed_segments.deletions.count,
        quarantined=parts.quarantine.count,
        compactions=parts.upkeep.compactions,
        compacted_bytes_saved=parts.upkeep.saved_bytes,
        last_scrub_unix_ns=parts.upkeep.oldest_check_unix_ns if is_checked else 0,
        scrubbed_bytes=parts.upkeep.scrubbed_bytes,
        prepared_stages=len(parts.stages.table.prepared),
        staged_bytes=parts.stages.table.disk_bytes,
        oldest_prepared_unix_ns=min((stage.begun_unix_ns for stage in parts.stages.table.prepared), default=0),
        segments_deleted_by_others=parts.repair.deleted_count,
        stored_bundles=sealed_segments.segments.stored_count + sum(log.builder.bundle_count for log in logs),
        stored_rows=sealed_segments.segments.row_count + sum(log.builder.row_count for log in logs),
        limit=met.limit,
        limit_bytes=met.limit_bytes,
        limit_measured_bytes=met.measured_bytes,
        cold_bytes=sealed_segments.segments.cold_bytes,
        cold_work=2 * parts.cold.moved_count + bool(parts.cold.fault),
    )
