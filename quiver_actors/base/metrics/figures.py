"""Names and order of the figures on the counters page: one enum a row kind, the value is the word's index.

Workers write them, `quiver status` reads them; the page itself (shm.counters) knows only kinds, labels and words.
New figures go at the end: the order is part of the page's version.
"""

from __future__ import annotations

import enum

FIGURES_VERSION = 2


class RowKind(enum.IntEnum):
    """Kinds of rows in a worker's region of the counters page; each kind has its own enum of figures."""

    WORKER = 1
    """One per worker region; label `core_<n>`."""
    ENGINE = 2
    """One per topic and core; label is the topic."""
    SUBSCRIBER = 3
    """One per subscriber, topic and core; label is `<topic>/<subscriber>`."""
    ERROR = 4
    """The last error of a worker; label is the message, UTF-8, cut to fit."""
    LATENCY = 5
    """One histogram (`base.metrics.latency`); label is `<topic>/<what>`."""
    RETENTION = 6
    """One per topic and core: what is on disk and what went; label is the topic."""


class WorkerFigure(enum.IntEnum):
    """Figures of a worker row; the value is the place in the row. New ones go to the end."""

    STATE = 0
    """A `WorkerState`."""
    CPU_NS = 1
    SESSIONS = 2
    ARENA_BYTES = 3
    ARENA_USED_BYTES = 4
    LOOP_GAP_NS_MAX = 5
    """Longest time between two turns of the loop in the last second."""
    PUSHES_WAITING = 6
    TURNS = 7
    INTAKE_STOPPED = 8
    """1: takes no more pushes. Written after all other figures of the region that show what was taken, so a reader that reads
    this row first and finds 1 finds nothing older in the others."""
    TOPICS_VERSION = 9
    """The version of the list of topics that the worker follows: it has nothing open that this version does not name."""
    SEGMENTS_PRUNED = 10
    """Sealed segments that readers did not open, by their statistics; counted since the worker started."""


class EngineFigure(enum.IntEnum):
    """Figures of an engine row, one topic on one core; the value is the place in the row. New ones go to the end."""

    STATE = 0
    """An `engine.EngineState`."""
    BUNDLES_IN = 1
    ROWS_IN = 2
    BYTES_IN = 3
    """Entry bytes ingested since the worker started, including transactions published since then, like the two figures above."""
    WAL_BYTES = 4
    """Entry bytes in log files that are not sealed segments yet, the open segment included."""
    OPEN_SEGMENT_BYTES = 5
    OPEN_SEGMENT_BUNDLES = 6
    SEGMENTS = 7
    SEGMENT_BYTES = 8
    SEGMENT_BUNDLES = 9
    SYNCS = 10
    SEALS = 11
    SYNC_NS_LAST = 12
    SEAL_NS_LAST = 13
    SEQUENCE_WRITTEN = 14
    SEQUENCE_DURABLE = 15
    REFUSED = 16
    DISK_BYTES = 17
    SEGMENTS_DELETED = 18
    QUARANTINED = 19
    COMPACTIONS = 20
    """Segments rewritten since the worker started."""
    COMPACTED_BYTES_SAVED = 21
    LAST_SCRUB_UNIX_NS = 22
    """When the segment that was checked longest ago was checked: all others since. 0: none, or not all were checked yet."""
    SCRUBBED_BYTES = 23
    PREPARED_STAGES = 24
    """Staged bundles of transactions that wait for their decision, by stage."""
    STAGED_BYTES = 25
    """Bytes that all staged bundles take on the disk."""
    OLDEST_PREPARED_UNIX_NS = 26
    """When the stage that waits longest was begun; 0: none waits."""
    SEGMENTS_DELETED_BY_OTHERS = 27
    """Segments whose files somebody else has deleted since the worker started; `SEGMENTS_DELETED` are those that nobody needed."""
    STORED_BUNDLES = 28
    """Bundles in sealed segments and in logs, now: whatever brought them, restarts and published transactions included."""
    STORED_ROWS = 29
    """Rows of all slots of those bundles."""
    LIMIT = 30
    """The `store.retention.limits.Limit` that refuses space to pushes; 0: none does."""
    LIMIT_BYTES = 31
    LIMIT_MEASURED_BYTES = 32
    COLD_BYTES = 33
    """Bytes of segments on the cold disk; `SEGMENT_BYTES` are those of both disks."""
    COLD_WORK = 34
    """Twice the count of segments that were moved to the cold disk since the worker started, and 1 more while it cannot be used."""


class SubscriberFigure(enum.IntEnum):
    """Figures of a subscriber row, one topic on one core; the value is the place in the row. New ones go to the end."""

    LAG_BUNDLES = 0
    """Sealed and open bundles not resolved yet."""
    OLDEST_UNIX_NS = 1
    """Ingestion time of the oldest unresolved bundle, 0 when there is none."""
    CLAIMED = 2
    ACKED = 3
    REJECTED = 4
    DEFERRED = 5
    CONNECTIONS = 6
    DELIVERED = 7
    PENDING = 8
    """Sealed bundles that can be claimed now."""
    WAITING = 9
    """Deferred bundles whose delay has not passed."""
    BLOCKED = 10
    """Delivered too often: kept, or on the way to the dead letter topic."""
    GAPS = 11
    """Notices that no consumer has acknowledged."""
    REDELIVERED = 12
    EXPIRED = 13
    """Bundles whose lease ran out."""
    DEAD_LETTERED = 14
    DROPPED = 15
    """Bundles lost and named in a gap notice."""
    WINDOW_FULL = 16
    """Connections that hold as much as their window allows."""
    DETACHED_SINCE_UNIX_NS = 17
    """Since when no connection is attached, from the worker's start at the earliest; 0 while one is: above 0 is an orphan."""


class RetentionFigure(enum.IntEnum):
    """Bytes of blocks by kind, then what was deleted and lost since the worker started, by reason."""

    LOG_BYTES = 0
    SEALING_BYTES = 1
    SEGMENT_BYTES = 2
    COMPACTION_BYTES = 3
    PROGRESS_BYTES = 4
    GAPS_BYTES = 5
    QUARANTINE_BYTES = 6
    BALLAST_BYTES = 7
    OTHER_BYTES = 8
    STAGED_BYTES = 9
    THROTTLED = 10
    """Pushes that waited for room under the size cap, or were refused for want of it."""
    EVICTIONS_PROCESSED = 11
    EVICTIONS_SIZE = 12
    EVICTIONS_EXPIRED = 13
    EVICTIONS_EVICTED = 14
    EVICTIONS_DROPPED = 15
    LOST_SEGMENTS_EVICTED = 16
    LOST_BUNDLES_EVICTED = 17
    LOST_ROWS_EVICTED = 18
    LOST_BYTES_EVICTED = 19
    LOST_SEGMENTS_EXPIRED = 20
    LOST_BUNDLES_EXPIRED = 21
    LOST_ROWS_EXPIRED = 22
    LOST_BYTES_EXPIRED = 23
    LOST_SEGMENTS_DROPPED = 24
    LOST_BUNDLES_DROPPED = 25
    LOST_ROWS_DROPPED = 26
    LOST_BYTES_DROPPED = 27
    LOST_SEGMENTS_DAMAGED = 28
    LOST_BUNDLES_DAMAGED = 29
    LOST_ROWS_DAMAGED = 30
    LOST_BYTES_DAMAGED = 31
    KEEP_FOR_BYTES = 32
    """Segments that nobody needs and `keep_for` keeps."""
    HEADROOM_BYTES = 33
    """Bytes of segments that only `steady_state_headroom` keeps."""
    HELD_BYTES = 34
    """Deleted segments that somebody still has open or mapped."""


class ErrorFigure(enum.IntEnum):
    """Figures of an error row: when the worker's last error was, and how many there were."""

    UNIX_NS = 0
    COUNT = 1


class WorkerState(enum.IntEnum):
    """State of a worker, as `WorkerFigure.STATE` shows it."""

    STARTING = 1
    RECOVERING = 2
    READY = 3
    DEGRADED = 4
    DRAINING = 5
    FAILED = 6
    STOPPED = 7
