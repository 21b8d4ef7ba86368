"""The size cap of a simulated node and the limits of its topics: what is granted, and what is on the disks.

Owner of a `LimitCheck`: the run. The promise for a topic (docs/retention.md): workers make logs only within their grants, so logs and
segments exceed a limit by the tails of seals at most. Small files come on top until they are measured; the next log needs room beside them.
"""

from __future__ import annotations

from typing import NamedTuple

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.units import KIB
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.store.files.paths import SEGMENT_SUFFIX, SEGMENTS_NAME, STAGE_SUFFIX, STAGED_NAME, WAL_NAME
from quiver_actors.store.wal.layout import ACTIVE_NAME, CURSOR_NAME
from quiver_actors.supervisor.figures import GRANT_ROW, NO_LIMIT, SUPERVISOR_REGION, TOPIC_GRANT_ROW, GrantFigure
from tests.disks.simulated import SimDisk
from tests.sim.node.looking import measured_bytes
from tests.sim.node.machine import Machine
from tests.sim.node.model import Violation

SIDE = "side"
"""The topic that comes and goes."""
_OVERSHOOT_BYTES = 64 * KIB
"""Bytes that each core may exceed its grant by: the tail of a seal, and small files between two measurements."""
TAIL_BYTES = 8 * KIB
"""Bytes by which a segment may be longer than the log that it was made from."""


class TopicUse(NamedTuple):
    """What a worker has of a topic, the cores included that it has adopted."""

    known_bytes: int
    """Its logs, segments and stages, which are counted when they are made."""
    measured_bytes: int
    """Its small files, as they were measured last; 0 while there is nobody who has measured them."""
    grant_bytes: int
    cores: int
    process: object | None
    """The process that makes logs; what a power loss brings back was made by another one."""


class LimitCheck:
    """Compares what is on the disks with the limits, each time it is asked."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._seen: dict[str, list[TopicUse]] = {}
        """How it was the last time, by topic and worker."""

    def check(self) -> None:
        """Raise Violation if grants are more than a limit, or files more than that and what may exceed it."""
        machine = self._machine
        cap_bytes, limit_bytes = machine.room.cap_bytes, machine.room.topic_bytes
        if not cap_bytes:
            return
        _check_grants(machine, "", cap_bytes)
        used = [disk.used_bytes for disk in machine.disks]
        if sum(used) > cap_bytes + len(used) * _OVERSHOOT_BYTES:
            raise Violation(f"{used} bytes of the node are on the disks, the limit is {cap_bytes}")
        # A topic that is made at run time has a share only where there is room for one.
        topics = (DEFAULT_TOPIC, SIDE) if machine.room.is_wide else (DEFAULT_TOPIC,)
        for topic in topics if limit_bytes < cap_bytes else ():
            _check_grants(machine, topic, limit_bytes)
            self._check_topic(topic, limit_bytes)

    def _check_topic(self, topic: str, limit_bytes: int) -> None:
        uses = _uses(self._machine, topic)
        known = [use.known_bytes for use in uses]
        if sum(known) > limit_bytes + sum(use.cores for use in uses) * TAIL_BYTES:
            what = f"{known} bytes of logs, segments and stages of topic {topic}"
            raise Violation(f"{what} are on the disks, the limit is {limit_bytes}")
        before = self._seen.get(topic, [])
        if len(before) == len(uses):  # else the node has another number of workers since
            for core, (was, now) in enumerate(zip(before, uses, strict=True)):
                check_growth(f"worker {core} of topic {topic}", was, now)
        self._seen[topic] = uses
        self._machine.counts["at_topic_limits"] += sum(known) > limit_bytes // 2


def check_growth(whose: str, was: TopicUse, now: TopicUse) -> None:
    """Raise Violation if a worker has made logs beyond its grant, with the small files that it knew of when it did."""
    if now.process is None or now.process is not was.process:
        return
    # A smaller growth is that of seals, which ask nobody.
    has_made_logs = now.known_bytes > was.known_bytes + now.cores * TAIL_BYTES
    counted = now.known_bytes + min(was.measured_bytes, now.measured_bytes)
    if has_made_logs and counted > max(was.grant_bytes, now.grant_bytes) + now.cores * TAIL_BYTES:
        raise Violation(f"{whose} has gone from {was[:-1]} to {now[:-1]}: beyond its grant")


def _check_grants(machine: Machine, topic: str, limit_bytes: int) -> None:
    granted = granted_bytes(machine, topic)
    if sum(granted) > limit_bytes and NO_LIMIT not in granted:
        what = f"topic {topic}" if topic else "the node"
        raise Violation(f"grants of {granted} bytes are more than the limit of {what}, {limit_bytes}")


def granted_bytes(machine: Machine, topic: str = "") -> list[int]:
    """Return the bytes granted to each core, or to a topic with a limit there, as the words on the page stand now."""
    kind, labels = (TOPIC_GRANT_ROW, f"core_{{}}/{topic}") if topic else (GRANT_ROW, "core_{}")
    names = [labels.format(core) for core in range(machine.settings.cores)]
    return [LiveRow(machine.page, SUPERVISOR_REGION, kind, name).load(GrantFigure.GRANT_BYTES) for name in names]


def _uses(machine: Machine, topic: str) -> list[TopicUse]:
    uses = []
    for core, grant_bytes in enumerate(granted_bytes(machine, topic)):
        cores = machine.served_by(core)
        known = sum(_known_bytes(machine.disks[each], f"{topic}/core_{each}") for each in cores)
        uses.append(
            TopicUse(known, measured_bytes(machine, core, topic), grant_bytes, len(cores), machine.workers[core])
        )
    return uses


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
