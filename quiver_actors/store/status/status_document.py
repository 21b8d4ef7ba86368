"""The document of `quiver status --json`, as structs; fields are only ever added."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver_actors.store.status.archive_view import ArchiveStreamView, ArchiveView
from quiver_actors.store.status.status_storage import CoreStorageView, LossView, RetentionView, ShareView, StorageView

SCHEMA_VERSION = 1

WORST_FIRST = (
    "dead",
    "failed",
    "hung",
    "silent",
    "stopped",
    "restarting",
    "full",
    "throttled",
    "degraded",
    "closed",
    "ended",
    "draining",
    "killing",
    "starting",
    "recovering",
    "unknown",
    "ready",
)
"""All states that a node, a worker or an engine is shown in."""


class NodeView(msgspec.Struct, kw_only=True):
    """The node as a whole in `quiver status --json`."""

    state: str
    running: bool
    """Whether the supervisor of the node is alive."""
    ready: bool
    """Running, was ready once all workers were, and at least one serves."""
    healthy: bool
    """Running and `problems` is empty."""
    problems: list[str]
    pid: int
    data_dir: str
    run_dir: str
    topics: list[str]
    started_unix_ns: int
    uptime_ns: int | None
    figures_age_ns: int | None
    warnings: list[str] = []
    """Warnings about a healthy node whose pushes wait: the size cap, and the subscribers that keep the data."""
    advice: list[str] = []
    """Advice about problems and warnings, one line for each kind of them."""


class WorkerView(msgspec.Struct, kw_only=True):
    """One worker in `quiver status --json`: its process, and its figures, which are None while the worker has written none."""

    core: int
    state: str
    process_state: str | None
    """The kernel's letter; None where there is no such process."""
    pid: int | None
    cpu: int | None
    """The core that it is pinned to."""
    cpu_ns: int = 0
    cpu_percent: float | None = None
    """CPU use in percent of one core, over the worker's whole life; with --watch since the last look."""
    restarts: int = 0
    last_exit: str | None = None
    started_unix_ns: int | None = None
    uptime_ns: int | None = None
    figures_age_ns: int | None = None
    """Age of its heartbeat, and so of all figures that it publishes."""
    sessions: int = 0
    pushes_waiting: int = 0
    arena_bytes: int = 0
    arena_used_bytes: int = 0
    loop_gap_ns_max: int = 0
    intake_stopped: bool = False
    """`quiver drain` is under way: takes no more pushes, serves subscribers; shown as draining."""
    topics_version: int = 0
    """The version of the list of topics that it follows."""
    segments_pruned: int = 0
    """Sealed segments that readers did not open, by their statistics."""


class EngineView(msgspec.Struct, kw_only=True):
    """One topic on one core in `quiver status --json`."""

    topic: str
    core: int
    state: str
    figures_age_ns: int | None
    bundles_in: int
    rows_in: int
    bytes_in: int
    wal_bytes: int
    open_segment_bytes: int
    open_segment_bundles: int
    segments: int
    segment_bytes: int
    segment_bundles: int
    disk_bytes: int
    syncs: int
    seals: int
    sync_ns_last: int
    seal_ns_last: int
    sequence_written: int
    sequence_durable: int
    refused: int
    segments_deleted: int
    quarantined: int
    compactions: int
    compacted_bytes_saved: int
    last_scrub_unix_ns: int
    """When the segment that was checked longest ago was checked."""
    last_scrub_age_ns: int | None
    """None where there is no segment, or where not all were checked since the worker started."""
    scrubbed_bytes: int
    prepared_stages: int
    """Staged bundles of transactions that wait for their decision, by stage."""
    staged_bytes: int
    oldest_prepared_unix_ns: int
    oldest_prepared_age_ns: int | None
    """None where none waits."""
    segments_deleted_by_others: int
    """Segments whose files somebody else has deleted since the worker started."""
    stored_bundles: int = 0
    """Bundles in sealed segments and logs now, whatever brought them."""
    stored_rows: int = 0
    stored_bytes: int = 0
    """Sealed segments and entries in logs."""
    in_since_unix_ns: int = 0
    """The start of the worker, from which `bundles_in`, `rows_in` and `bytes_in` count; 0: not known."""
    limit: int = 0
    """The number of `limit_name` in `store.retention.limits.Limit`."""
    limit_name: str = ""
    """The limit for which pushes get no room: `retention.min_free`, `disk`, `retention.size_cap` or `retention.cap_share`; empty: none."""
    limit_bytes: int = 0
    limit_measured_bytes: int = 0
    """Free bytes of the file system for `retention.min_free` and `disk`; used bytes for the other limits."""
    cold_bytes: int = 0
    """Bytes of segments on the cold disk."""
    cold_moved: int = 0
    """Segments that were moved there since the worker started."""
    cold_away: int = 0
    """1: the cold disk cannot be used now."""


class SubscriberView(msgspec.Struct, kw_only=True):
    """One durable subscriber on one core in `quiver status --json`."""

    topic: str
    subscriber: str
    core: int
    figures_age_ns: int | None
    lag_bundles: int
    oldest_unix_ns: int
    oldest_age_ns: int | None
    """None where nothing is waiting."""
    claimed: int
    acked: int
    rejected: int
    deferred: int
    delivered: int
    connections: int
    pending: int = 0
    waiting: int = 0
    blocked: int = 0
    gaps: int = 0
    """Notices of bundles that will never come, not yet taken by a consumer."""
    redelivered: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dropped: int = 0
    window_full: int = 0
    detached_since_unix_ns: int = 0
    detached_ns: int | None = None
    """Time since the last consumer left this core; None while one is connected."""


class ErrorView(msgspec.Struct, kw_only=True):
    """The last error of a worker in `quiver status --json`."""

    core: int
    message: str
    count: int
    unix_ns: int
    age_ns: int


class LatencyView(msgspec.Struct, kw_only=True):
    """A histogram; its limits are `base.metrics.latency.BUCKET_LIMITS_NS`, the last count is above all of them."""

    topic: str
    core: int
    of: str
    """`push`, `sync`, `seal` or `deliver`."""
    counts: list[int]
    sum_ns: int


class SharedMemoryView(msgspec.Struct, kw_only=True):
    """Shared memory of the node in `quiver status --json`, in bytes."""

    arena_bytes: int
    arena_used_bytes: int
    counters_bytes: int
    total_bytes: int


class StatusView(msgspec.Struct, kw_only=True):
    """The whole document; lists are sorted worst first."""

    schema_version: int = SCHEMA_VERSION
    taken_unix_ns: int
    node: NodeView
    workers: list[WorkerView]
    engines: list[EngineView]
    subscribers: list[SubscriberView]
    errors: list[ErrorView]
    shared_memory: SharedMemoryView
    latencies: list[LatencyView] = []
    storage: StorageView = StorageView()
    cores: list[CoreStorageView] = []
    retention: list[RetentionView] = []
    losses: list[LossView] = []
    shares: list[ShareView] = []
    archives: list[ArchiveView] = []
    """The archiver; empty where the node has none."""
    archive_streams: list[ArchiveStreamView] = []


def worst(states: Iterable[str]) -> str:
    """The worst of some states; `ready` of none."""
    return min(states, key=severity, default="ready")


def severity(state: str) -> int:
    """Place in `WORST_FIRST`: lower is worse."""
    return WORST_FIRST.index(state)
