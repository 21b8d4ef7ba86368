"""The size cap of a simulated node and the limits of its topics: what may be used, and what is on the disks.

Owner of a `LimitCheck`: the run. The promise for a topic (docs/retention.md): workers make logs only within their quotas, so logs and
segments exceed a limit by the tails of seals at most. Small files come on top until they are measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.units import KIB
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.store.files.paths import SEGMENT_SUFFIX, SEGMENTS_NAME, STAGE_SUFFIX, STAGED_NAME, WAL_NAME
from quiver_actors.store.wal.layout import ACTIVE_NAME, CURSOR_NAME
from quiver_actors.supervisor.figures import NO_LIMIT, QUOTA_ROW, SUPERVISOR_REGION, TOPIC_QUOTA_ROW, QuotaFigure
from tests.disks.simulated import SimDisk
from tests.sim.node.machine import Machine
from tests.sim.node.model import Violation

SIDE = "side"
"""The topic that comes and goes."""
_OVERSHOOT_BYTES = 64 * KIB
"""Bytes that each core may exceed its quota by: the tail of a seal, and small files between two measurements."""
TAIL_BYTES = 8 * KIB
"""Bytes by which a segment may be longer than the log that it was made from."""


class LimitCheck:
    """Compares what is on the disks with the limits, each time it is asked."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._rows: dict[str, LiveRow] = {}

    def check(self) -> None:
        """Raise Violation if quotas are more than a limit, or files more than that and what may exceed it."""
        machine = self._machine
        cap_bytes, limit_bytes = machine.room.cap_bytes, machine.room.topic_bytes
        if not cap_bytes:
            return
        self._check_quotas("", cap_bytes)
        used = [disk.used_bytes for disk in machine.disks]
        if sum(used) > cap_bytes + len(used) * _OVERSHOOT_BYTES:
            raise Violation(f"{used} bytes of the node are on the disks, the limit is {cap_bytes}")
        # A topic that is made at run time has a share only where there is room for one.
        topics = (DEFAULT_TOPIC, SIDE) if machine.room.is_wide else (DEFAULT_TOPIC,)
        for topic in topics if limit_bytes < cap_bytes else ():
            self._check_quotas(topic, limit_bytes)
            known = [_known_bytes(disk, f"{topic}/core_{core}") for core, disk in enumerate(machine.disks)]
            check_known(topic, known, limit_bytes)
            machine.counts["at_topic_limits"] += sum(known) > limit_bytes // 2

    def _check_quotas(self, topic: str, limit_bytes: int) -> None:
        quotas = [self._quota_bytes(core, topic) for core in range(self._machine.settings.cores)]
        if sum(quotas) > limit_bytes and NO_LIMIT not in quotas:
            what = f"topic {topic}" if topic else "the node"
            raise Violation(f"quotas of {quotas} bytes are more than the limit of {what}, {limit_bytes}")

    def _quota_bytes(self, core: int, topic: str) -> int:
        """Return the quota of a core, or of a topic with a limit there, as its word on the page stands now."""
        kind, label = (TOPIC_QUOTA_ROW, f"core_{core}/{topic}") if topic else (QUOTA_ROW, f"core_{core}")
        if label not in self._rows:
            self._rows[label] = LiveRow(self._machine.page, SUPERVISOR_REGION, kind, label)
        return self._rows[label].load(QuotaFigure.QUOTA_BYTES)


def check_known(topic: str, known_bytes: Sequence[int], limit_bytes: int) -> None:
    """Raise Violation if logs, segments and stages are more than the limit and the tails of seals.

    A worker may have more than its own quota for a moment: the supervisor may lower the quota while the worker makes a log.

    Args:
        known_bytes: of each core.
    """
    if sum(known_bytes) > limit_bytes + len(known_bytes) * TAIL_BYTES:
        what = f"{known_bytes} bytes of logs, segments and stages of topic {topic}"
        raise Violation(f"{what} are on the disks, the limit is {limit_bytes}")


def _known_bytes(disk: SimDisk, directory: str) -> int:
    """Return the blocks of the logs, segments and stages of a topic and core that have a name."""
    paths = [
        f"{directory}/{room}/{name}"
        for room in (WAL_NAME, SEGMENTS_NAME, STAGED_NAME)
        for name in disk.list_directory(f"{directory}/{room}")
        if _is_known(name)
    ]
    return sum(disk.allocated_bytes(path) for path in paths)


def _is_known(name: str) -> bool:
    is_log = name.startswith(ACTIVE_NAME) and not name.startswith(CURSOR_NAME)
    return is_log or name.endswith((SEGMENT_SUFFIX, STAGE_SUFFIX))
