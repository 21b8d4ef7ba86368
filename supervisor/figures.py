"""The supervisor's own rows on the counters page: region 0, one row a child. The word's index is the enum's value.

Child `index` writes region `index + 1`. New figures go at the end: the order is part of the page's version.
"""

from __future__ import annotations

import enum

SUPERVISOR_REGION = 0
CHILD_ROW = 100
"""Kind of a child's row; its label is the child's name (`core_<n>`)."""


class ChildFigure(enum.IntEnum):
    PID = 0
    """0 while there is no process."""
    STATE = 1
    """A `state.ChildState`."""
    RESTARTS = 2
    STARTED_UNIX_NS = 3
    """When its present process was forked, 0 while there is none."""
    LAST_EXIT = 4
    """Wait status of its last process + 1; 0 = none has ended yet."""
    CPU = 5
    """The core it is pinned to + 1; 0 = not pinned."""


class NodeState(enum.IntEnum):
    """State word of the supervisor's region. Numbers agree with the workers' states where the meaning does."""

    STARTING = 1
    """Not every worker has been ready yet."""
    READY = 3
    """Every worker is ready."""
    DEGRADED = 4
    """Was ready; at least one worker is failed or being restarted."""
    DRAINING = 5
    STOPPED = 7
    KILLING = 8
    """Workers were killed; waiting for the kernel to say so."""


def region_of(index: int) -> int:
    """The region that child `index` writes."""
    return index + 1
