"""Every metric that a node exports: name, meaning, unit, and the field of the status document that it comes from.

The dashboard, the alert rules and docs/metrics.md use these names; a test compares them. Names follow Prometheus: base units (seconds,
bytes), counters end in `_total`. Counters begin at 0 with each life of a worker, as Prometheus expects.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from quiver_actors.store.status.archive_view import ArchiveStreamView, ArchiveView
from quiver_actors.store.status.status_document import EngineView, SubscriberView, WorkerView
from quiver_actors.store.status.status_storage import CoreStorageView, LossView, RetentionView, ShareView


class Kind(enum.Enum):
    """Kind of a metric family, in Prometheus' words."""

    COUNTER = "counter"
    GAUGE = "gauge"


class Metric(NamedTuple):
    """One metric family, fed by one field of a view."""

    name: str
    field: str
    kind: Kind
    help: str
    scale: float = 1.0
    """Factor from the unit of the field to the unit of the metric."""


_SECONDS = 1e-9

WORKER_LABELS = ("core",)
WORKER: tuple[Metric, ...] = (
    Metric("quiver_worker_restarts_total", "restarts", Kind.COUNTER, "Restarts of the worker"),
    Metric("quiver_worker_cpu_seconds_total", "cpu_ns", Kind.COUNTER, "Processor time of the worker", _SECONDS),
    Metric(
        "quiver_worker_uptime_seconds", "uptime_ns", Kind.GAUGE, "Time since the worker's process started", _SECONDS
    ),
    Metric(
        "quiver_worker_figures_age_seconds",
        "figures_age_ns",
        Kind.GAUGE,
        "Age of the worker's last heartbeat",
        _SECONDS,
    ),
    Metric("quiver_worker_sessions", "sessions", Kind.GAUGE, "Connections of producers and subscribers"),
    Metric("quiver_worker_pushes_waiting", "pushes_waiting", Kind.GAUGE, "Pushes that wait for room"),
    Metric(
        "quiver_worker_topics_version",
        "topics_version",
        Kind.GAUGE,
        "Version of the list of topics that the worker uses",
    ),
    Metric(
        "quiver_worker_segments_pruned_total",
        "segments_pruned",
        Kind.COUNTER,
        "Sealed segments that readers did not open, by their statistics",
    ),
    Metric("quiver_worker_arena_bytes", "arena_bytes", Kind.GAUGE, "Shared memory of the worker's producers"),
    Metric(
        "quiver_worker_arena_used_bytes", "arena_used_bytes", Kind.GAUGE, "Shared memory of producers that is in use"
    ),
    Metric(
        "quiver_worker_loop_gap_seconds",
        "loop_gap_ns_max",
        Kind.GAUGE,
        "Longest recent pause of the worker's loop",
        _SECONDS,
    ),
)

ENGINE_LABELS = ("topic", "core")
ENGINE: tuple[Metric, ...] = (
    Metric("quiver_stored_bundles", "stored_bundles", Kind.GAUGE, "Bundles that are stored now"),
    Metric("quiver_stored_rows", "stored_rows", Kind.GAUGE, "Rows that are stored now, of all slots"),
    Metric("quiver_stored_bytes", "stored_bytes", Kind.GAUGE, "Sealed segments and log entries that are stored now"),
    Metric(
        "quiver_room_limit",
        "limit",
        Kind.GAUGE,
        "Limit for which pushes get no room: 1 min_free, 2 the disk, 3 size_cap, 4 cap_share; 0: no limit",
    ),
    Metric("quiver_room_limit_bytes", "limit_bytes", Kind.GAUGE, "The value of that limit"),
    Metric(
        "quiver_room_measured_bytes",
        "limit_measured_bytes",
        Kind.GAUGE,
        "Free bytes (limits 1, 2) or used bytes (3, 4) when the limit was reached",
    ),
    Metric("quiver_ingest_bundles_total", "bundles_in", Kind.COUNTER, "Bundles taken in since the worker started"),
    Metric("quiver_ingest_rows_total", "rows_in", Kind.COUNTER, "Rows taken in since the worker started, of all slots"),
    Metric("quiver_ingest_bytes_total", "bytes_in", Kind.COUNTER, "Bytes taken in since the worker started"),
    Metric("quiver_ingest_refused_total", "refused", Kind.COUNTER, "Pushes refused"),
    Metric("quiver_wal_bytes", "wal_bytes", Kind.GAUGE, "Log entries that are not in a sealed segment yet"),
    Metric("quiver_wal_syncs_total", "syncs", Kind.COUNTER, "Syncs of log files"),
    Metric("quiver_wal_sync_last_seconds", "sync_ns_last", Kind.GAUGE, "Duration of the last sync", _SECONDS),
    Metric("quiver_wal_sequence_written", "sequence_written", Kind.GAUGE, "Sequence after the last written bundle"),
    Metric("quiver_wal_sequence_durable", "sequence_durable", Kind.GAUGE, "Sequence after the last synced bundle"),
    Metric("quiver_segment_open_bytes", "open_segment_bytes", Kind.GAUGE, "Size of the open segment"),
    Metric("quiver_segment_open_bundles", "open_segment_bundles", Kind.GAUGE, "Bundles in the open segment"),
    Metric("quiver_segment_count", "segments", Kind.GAUGE, "Sealed segments on disk"),
    Metric("quiver_segment_bytes", "segment_bytes", Kind.GAUGE, "Size of the sealed segments"),
    Metric("quiver_segment_bundles", "segment_bundles", Kind.GAUGE, "Bundles in sealed segments"),
    Metric("quiver_segment_seals_total", "seals", Kind.COUNTER, "Segments sealed"),
    Metric("quiver_segment_seal_last_seconds", "seal_ns_last", Kind.GAUGE, "Duration of the last seal", _SECONDS),
    Metric("quiver_segment_deleted_total", "segments_deleted", Kind.COUNTER, "Segments removed"),
    Metric(
        "quiver_segment_deleted_by_others_total",
        "segments_deleted_by_others",
        Kind.COUNTER,
        "Segments whose files another program deleted while the node was running",
    ),
    Metric("quiver_cold_bytes", "cold_bytes", Kind.GAUGE, "Bytes of segments on the cold disk"),
    Metric("quiver_cold_moved_total", "cold_moved", Kind.COUNTER, "Segments moved to the cold disk"),
    Metric("quiver_cold_away", "cold_away", Kind.GAUGE, "1: the cold disk cannot be used now"),
    Metric("quiver_segment_quarantined_total", "quarantined", Kind.COUNTER, "Files moved to quarantine"),
    Metric("quiver_segment_compactions_total", "compactions", Kind.COUNTER, "Segments rewritten"),
    Metric("quiver_segment_compacted_bytes_total", "compacted_bytes_saved", Kind.COUNTER, "Bytes saved by rewriting"),
    Metric("quiver_segment_scrubbed_bytes_total", "scrubbed_bytes", Kind.COUNTER, "Bytes checked in the background"),
    Metric(
        "quiver_segment_scrub_age_seconds",
        "last_scrub_age_ns",
        Kind.GAUGE,
        "Time since the oldest background check began",
        _SECONDS,
    ),
    Metric("quiver_staged_prepared", "prepared_stages", Kind.GAUGE, "Prepared stages that wait for a decision"),
    Metric("quiver_staged_bytes", "staged_bytes", Kind.GAUGE, "Staged bundles on disk"),
    Metric(
        "quiver_staged_oldest_age_seconds",
        "oldest_prepared_age_ns",
        Kind.GAUGE,
        "Age of the oldest prepared stage",
        _SECONDS,
    ),
    Metric("quiver_core_bytes", "disk_bytes", Kind.GAUGE, "Bytes of this topic and core on disk"),
)

SUBSCRIBER_LABELS = ("topic", "subscriber", "core")
SUBSCRIBER: tuple[Metric, ...] = (
    Metric("quiver_subscriber_lag_bundles", "lag_bundles", Kind.GAUGE, "Bundles that the subscriber has not resolved"),
    Metric(
        "quiver_subscriber_oldest_age_seconds",
        "oldest_age_ns",
        Kind.GAUGE,
        "Age of the oldest bundle that is not resolved",
        _SECONDS,
    ),
    Metric("quiver_subscriber_connections", "connections", Kind.GAUGE, "Consumers connected"),
    Metric("quiver_subscriber_claimed_bundles", "claimed", Kind.GAUGE, "Bundles that consumers hold"),
    Metric("quiver_subscriber_pending_bundles", "pending", Kind.GAUGE, "Bundles that can be claimed now"),
    Metric("quiver_subscriber_waiting_bundles", "waiting", Kind.GAUGE, "Deferred bundles whose delay has not passed"),
    Metric("quiver_subscriber_blocked_bundles", "blocked", Kind.GAUGE, "Bundles that were delivered too often"),
    Metric("quiver_subscriber_gaps", "gaps", Kind.GAUGE, "Gap notices that nobody has acknowledged"),
    Metric("quiver_subscriber_windows_full", "window_full", Kind.GAUGE, "Consumers whose window is full"),
    Metric("quiver_subscriber_delivered_bundles_total", "delivered", Kind.COUNTER, "Bundles delivered"),
    Metric("quiver_subscriber_acked_bundles_total", "acked", Kind.COUNTER, "Bundles acknowledged"),
    Metric("quiver_subscriber_rejected_bundles_total", "rejected", Kind.COUNTER, "Bundles rejected"),
    Metric("quiver_subscriber_deferred_bundles_total", "deferred", Kind.COUNTER, "Bundles deferred"),
    Metric("quiver_subscriber_redelivered_bundles_total", "redelivered", Kind.COUNTER, "Bundles delivered again"),
    Metric("quiver_subscriber_expired_leases_total", "expired", Kind.COUNTER, "Bundles whose lease ran out"),
    Metric("quiver_subscriber_dead_lettered_bundles_total", "dead_lettered", Kind.COUNTER, "Dead letters written"),
    Metric(
        "quiver_subscriber_dropped_bundles_total", "dropped", Kind.COUNTER, "Bundles that the subscriber will never get"
    ),
    Metric("quiver_subscriber_detached_seconds", "detached_ns", Kind.GAUGE, "Time without a consumer", _SECONDS),
)

CORE_LABELS = ("core",)
CORE: tuple[Metric, ...] = (
    Metric("quiver_core_storage_bytes", "used_bytes", Kind.GAUGE, "Bytes on disk in the worker's directories"),
    Metric("quiver_core_cap_fraction", "cap_fraction", Kind.GAUGE, "Bytes on disk divided by the size cap"),
    Metric("quiver_core_grant_bytes", "grant_bytes", Kind.GAUGE, "Bytes that the worker may use on disk"),
    Metric("quiver_core_wanted_bytes", "wanted_bytes", Kind.GAUGE, "Bytes that the worker could use beyond its quota"),
    Metric("quiver_pressure", "pressure", Kind.GAUGE, "Pressure on the worker, 0 to 1"),
)

RETENTION_LABELS = ("topic", "core")
RETENTION: tuple[Metric, ...] = (
    Metric(
        "quiver_ingest_throttle_total",
        "throttled",
        Kind.COUNTER,
        "Pushes that waited or were refused because there was no room",
    ),
)
RETENTION += tuple(
    Metric(f"quiver_disk_{kind}_bytes", f"{kind}_bytes", Kind.GAUGE, meaning)
    for kind, meaning in (
        ("log", "Logs that take entries, and spare logs, as reserved"),
        ("sealing", "Logs that are becoming segments"),
        ("segment", "Segments, in blocks"),
        ("compaction", "Output of compactions and rescues that are running"),
        ("staged", "Bundles of transactions that are not published"),
        ("progress", "Progress of subscribers"),
        ("gaps", "Gap notices"),
        ("quarantine", "Damaged files that are kept"),
        ("ballast", "Space reserved for deletions on a full disk"),
        ("other", "Numbers, cursors, locks, directories"),
        ("keep_for", "Part of the segments: no subscriber needs them, `retention.keep_for` keeps them"),
        ("headroom", "Part of the segments: kept only by `retention.steady_state_headroom`"),
        ("held", "Deleted segments that readers still have open or mapped"),
    )
)

SHARE_LABELS = ("topic",)
SHARE: tuple[Metric, ...] = (
    Metric(
        "quiver_topic_cap_bytes", "limit_bytes", Kind.GAUGE, "Bytes that a topic with a cap_share may use on all cores"
    ),
    Metric("quiver_topic_used_bytes", "used_bytes", Kind.GAUGE, "Bytes of a topic with a cap_share on all cores"),
    Metric("quiver_topic_wanted_bytes", "wanted_bytes", Kind.GAUGE, "Bytes that pushes of such a topic wait for"),
)

LOSS_LABELS = ("topic", "core", "reason")
LOSS: tuple[Metric, ...] = (
    Metric("quiver_gc_evictions_total", "evictions", Kind.COUNTER, "Segment files deleted"),
    Metric(
        "quiver_segment_dropped_total", "segments", Kind.COUNTER, "Segments that lost bundles which a subscriber needed"
    ),
    Metric("quiver_retention_lost_bundles_total", "bundles", Kind.COUNTER, "Lost bundles that a subscriber needed"),
    Metric("quiver_retention_lost_rows_total", "rows", Kind.COUNTER, "Rows of these bundles"),
    Metric("quiver_retention_lost_bytes_total", "size_bytes", Kind.COUNTER, "Bytes of these bundles"),
)

ARCHIVE_LABELS = ("url",)
ARCHIVE: tuple[Metric, ...] = (
    Metric("quiver_archive_working", "working", Kind.GAUGE, "1 while the archiver can do its work, 0 while it fails"),
    Metric("quiver_archive_epoch", "epoch", Kind.GAUGE, "Number of the archiver's start; it rises with each"),
    Metric("quiver_archive_uploaded_segments_total", "uploaded_segments", Kind.COUNTER, "Segments archived"),
    Metric("quiver_archive_uploaded_bytes_total", "uploaded_bytes", Kind.COUNTER, "Bytes of these segments"),
    Metric(
        "quiver_archive_merged_segments_total",
        "merged_segments",
        Kind.COUNTER,
        "Archived segments that were merged into larger objects",
    ),
    Metric("quiver_archive_errors_total", "error_count", Kind.COUNTER, "Attempts of the archiver that failed"),
    Metric(
        "quiver_archive_cached_bytes",
        "cached_bytes",
        Kind.GAUGE,
        "Archived blocks that are kept on the disk for readers",
    ),
    Metric("quiver_archive_figures_age_seconds", "age_ns", Kind.GAUGE, "Age of the archiver's figures", _SECONDS),
)

ARCHIVE_STREAM_LABELS = ("topic", "core")
ARCHIVE_STREAM: tuple[Metric, ...] = (
    Metric(
        "quiver_archive_segment_through",
        "archived_through",
        Kind.GAUGE,
        "Highest segment number up to which everything is archived, or never will be; -1: none",
    ),
    Metric("quiver_archive_lag_segments", "lag_segments", Kind.GAUGE, "Sealed segments that are not archived yet"),
    Metric("quiver_archive_lag_bytes", "lag_bytes", Kind.GAUGE, "Bytes of these segments"),
    Metric(
        "quiver_archive_lag_seconds",
        "lag_age_ns",
        Kind.GAUGE,
        "Age of the oldest bundle that is not archived yet, sealed or not",
        _SECONDS,
    ),
)

TABLES: tuple[tuple[str, type, tuple[str, ...], tuple[Metric, ...]], ...] = (
    ("workers", WorkerView, WORKER_LABELS, WORKER),
    ("engines", EngineView, ENGINE_LABELS, ENGINE),
    ("subscribers", SubscriberView, SUBSCRIBER_LABELS, SUBSCRIBER),
    ("cores", CoreStorageView, CORE_LABELS, CORE),
    ("retention", RetentionView, RETENTION_LABELS, RETENTION),
    ("shares", ShareView, SHARE_LABELS, SHARE),
    ("losses", LossView, LOSS_LABELS, LOSS),
    ("archives", ArchiveView, ARCHIVE_LABELS, ARCHIVE),
    ("archive_streams", ArchiveStreamView, ARCHIVE_STREAM_LABELS, ARCHIVE_STREAM),
)
"""Field of the status document with the views, their type, what labels them, their metrics."""
