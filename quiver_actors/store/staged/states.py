"""The life of a stage: a literal table, and nothing else. Who may move it is said beside each state.

OPEN        takes bundles; ends with its connection
PREPARING   its files and its record are being synced
PREPARED    durable and invisible; ends by a decision only
PUBLISHING  its segment numbers are taken; nothing but a failed disk keeps it from becoming visible, no crash does
PUBLISHED   it is segments now, the stage is forgotten
DROPPING    its files are being deleted, its number has been recorded if it was prepared
DROPPED     the stage is forgotten
"""

from __future__ import annotations

import enum
from collections.abc import Mapping


class StageState(enum.Enum):
    """Where a stage is between its begin and its end."""

    OPEN = "open"
    PREPARING = "preparing"
    PREPARED = "prepared"
    PUBLISHING = "publishing"
    PUBLISHED = "published"
    DROPPING = "dropping"
    DROPPED = "dropped"


STAGE_TRANSITIONS: Mapping[StageState, frozenset[StageState]] = {
    StageState.OPEN: frozenset([StageState.PREPARING, StageState.DROPPING]),
    StageState.PREPARING: frozenset([StageState.PREPARED, StageState.DROPPING]),
    StageState.PREPARED: frozenset([StageState.PUBLISHING, StageState.DROPPING]),
    StageState.PUBLISHING: frozenset([StageState.PUBLISHED]),
    StageState.PUBLISHED: frozenset(),
    StageState.DROPPING: frozenset([StageState.DROPPED]),
    StageState.DROPPED: frozenset(),
}
