"""The supervisor's own rows on the counters page, and those that it reads from its children. The word's index is the enum's value.

Region 0 is the supervisor's: a row a child for its process, a row a child for its share of the disk, one for the node's disk, and rows of
the same two kinds for each topic with a limit of its own. Child `index` writes region `index + 1`. New figures go at the end: the order is
part of the page's version.
"""

from __future__ import annotations

import enum

SUPERVISOR_REGION = 0
CHILD_ROW = 100
"""Kind of a child's row; its label is the child's name (`core_<n>`)."""


STORAGE_ROW = 101
"""Kind of the row in which a child says what it has on disk; in the child's region, label is the child's name."""
QUOTA_ROW = 102
"""Kind of the row in which the supervisor says how much a child may have, and what it is to delete; label is the child's name."""
NODE_STORAGE_ROW = 103
"""Kind of the row that sums the node up."""
NODE_STORAGE_LABEL = "node"
RUN_DIRECTORY_ROW = 104
"""Kind of the row whose label is the node's run directory; it has no figures."""
TOPIC_STORAGE_ROW = 105
"""Kind of the row in which a child says what a topic with a limit of its own has on disk; a row of `StorageFigure`, label is the topic."""
TOPIC_QUOTA_ROW = 106
"""Kind of the row in which the supervisor says how much a topic may have on a child; a row of `QuotaFigure`, label is `<child>/<topic>`."""
TOPIC_SUM_ROW = 107
"""Kind of the row that sums a topic up over all children; a row of `NodeStorageFigure`, label is the topic."""
NO_LIMIT = (1 << 63) - 1
"""The value of a quota where there is no cap."""


class ChildFigure(enum.IntEnum):
    """Figures of a child's row; the value is the place in the row. New ones go to the end."""

    PID = 0
    """Process id; 0 while there is no process."""
    STATE = 1
    """A `state.ChildState`."""
    RESTARTS = 2
    STARTED_UNIX_NS = 3
    """When its present process was forked, 0 while there is none."""
    LAST_EXIT = 4
    """Wait status of its last process + 1; 0 = none has ended yet."""
    CPU = 5
    """The core it is pinned to + 1; 0 = not pinned."""


class StorageFigure(enum.IntEnum):
    """Written by a child: the used bytes first, then the quota that it lives within; read the other way round, in this order, so that
    nobody sees a lower quota with what was used under the one before."""

    REPORTED = 0
    """Set to 1 once the other words mean something."""
    QUOTA_SEEN_BYTES = 1
    """The quota that the child lives within."""
    USED_BYTES = 2
    """Everything on disk in the child's directories, with what is being allocated."""
    WANTED_BYTES = 3
    """How much more than it has the child could use now; 0 = enough."""
    WAITING_SINCE_NS = 4
    """Monotonic time since which pushes wait for the bytes wanted; 0 = none do."""
    STEP_BYTES = 5
    """The largest piece in which it allocates."""
    EVICTABLE_CLASS = 6
    """An `EvictionClass`: the first one in which it has something to delete; 0 = nothing."""
    EVICTABLE_OLDEST_UNIX_NS = 7
    """Ingestion time of the oldest of that class."""
    EVICTABLE_BYTES = 8
    DOOMED_BYTES = 9
    """Bytes that are being deleted and are still counted in `USED_BYTES`."""
    CLAIM_DONE = 10
    """The last eviction claim that was carried out as far as it could be."""
    BEAT_NS = 11
    """Monotonic time of the last look at the quota."""
    PRESSURE_PERMILLE = 12
    """How hard pressed the child is, 0 to 1000; `PRESSURE_STEPS` says what it does about it."""
    PRESSURE_STEPS = 13
    """Bits of `quiver_actors.store.retention.pressure.Step`."""
    CHANGE = 14
    """Number that changes with every change of a row of kind `TOPIC_STORAGE_ROW` of the child."""
    LIMIT_BYTES = 15
    """Bytes that the topic may have on all children together; only in a row of kind `TOPIC_STORAGE_ROW`."""


class QuotaFigure(enum.IntEnum):
    """Written by the supervisor. A claim's other words are in place while `CLAIM` is not 0 and does not change."""

    QUOTA_BYTES = 0
    CLAIM = 1
    """Number of the eviction claim, 0 = none."""
    CLAIM_CLASS = 2
    """The last `EvictionClass` that it covers."""
    CLAIM_THROUGH_UNIX_NS = 3
    """Delete nothing younger: another child's turn comes first."""
    CLAIM_BYTES = 4
    """Delete until so much has been freed."""
    CLAIM_EXPIRES_NS = 5
    """Monotonic time after which the claim must not be carried out, as another child may have been asked since."""
    CHANGE = 6
    """Number that changes when the child is to look at its words of a topic; in its own row, at those of any topic."""


class NodeStorageFigure(enum.IntEnum):
    """Figures of the node's storage row, in bytes; the value is the place in the row. New ones go to the end."""

    CAP_BYTES = 0
    """The node's size cap in bytes; 0 = none."""
    USED_BYTES = 1
    UNOWNED_BYTES = 2
    """The part of `USED_BYTES` that is in no child's directories."""
    SOFT_BYTES = 3
    """The limit above which the node begins to delete what it may."""
    IS_OVER = 4
    """Set to 1 from the soft limit on, until enough is free again."""
    CLAIMS = 5
    """Eviction claims so far."""
    CLAIMS_EXPIRED = 6
    """How many eviction claims a busy or stopped child has let pass."""
    QUOTAS_BYTES = 7
    """Sum of all quotas."""
    HAS_UNKEPT_TOPICS = 8
    """1: the supervisor's region has no row left for the limit of some topic; a topic without its row has no limit."""


class EvictionClass(enum.IntEnum):
    """Classes of data that may be deleted for space, in this order: nothing of a class while any child has something of a lower one."""

    PROCESSED = 1
    """Sealed segments that every subscriber is done with, kept for `steady_state_headroom`."""
    UNPROCESSED = 2
    """Sealed segments that somebody still needs and nobody holds; only of topics whose policy is `drop_oldest`, like what follows."""
    OPEN = 3
    """Logs that are not sealed yet: sealed first, so that every bundle of them is counted and announced."""
    CLAIMED = 4
    """Sealed segments of which consumers hold bundles at this moment."""


class NodeState(enum.IntEnum):
    """State word of the supervisor's region. Numbers agree with the workers' states where the meaning does."""

    STARTING = 1
    """The node starts: not every worker has been ready yet."""
    READY = 3
    """Every worker is ready."""
    DEGRADED = 4
    """The node was ready; now at least one worker is failed or being restarted."""
    DRAINING = 5
    STOPPED = 7
    KILLING = 8
    """Workers were killed, and the kernel has not reported their ends yet."""


def region_of(index: int) -> int:
    """The region that child `index` writes."""
    return index + 1
