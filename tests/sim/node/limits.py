"""The size cap of a simulated node and the limits of its topics: what is granted, and what is on the disks."""

from __future__ import annotations

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.base.units import KIB
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.supervisor.figures import GRANT_ROW, NO_LIMIT, SUPERVISOR_REGION, TOPIC_GRANT_ROW, GrantFigure
from tests.sim.node.cores import bytes_below
from tests.sim.node.machine import Machine
from tests.sim.node.model import Violation

SIDE = "side"
"""The topic that comes and goes."""
_OVERSHOOT_BYTES = 64 * KIB
"""Bytes that each core may exceed its grant by: the tail of a seal, and small files between two measurements."""
_TOPIC_OVERSHOOT_BYTES = 16 * KIB
"""The same of a topic, of which only files that have a name are counted."""


def check_limits(machine: Machine) -> None:
    """Raise Violation if grants are more than a limit, or files more than that and what each core may have beyond its grant."""
    cap_bytes = machine.room.cap_bytes
    if not cap_bytes:
        return
    _check_limit(machine, "", cap_bytes, [disk.used_bytes for disk in machine.disks], _OVERSHOOT_BYTES)
    limit_bytes = machine.room.topic_bytes
    for topic in (DEFAULT_TOPIC, SIDE) if limit_bytes < cap_bytes else ():
        used = topic_bytes(machine, topic)
        _check_limit(machine, topic, limit_bytes, used, _TOPIC_OVERSHOOT_BYTES)
        machine.counts["at_topic_limits"] += sum(used) > limit_bytes // 2


def _check_limit(machine: Machine, topic: str, limit_bytes: int, used: list[int], overshoot_bytes: int) -> None:
    granted, what = granted_bytes(machine, topic), f"topic {topic}" if topic else "the node"
    if sum(granted) > limit_bytes and NO_LIMIT not in granted:
        raise Violation(f"grants of {granted} bytes are more than the limit of {what}, {limit_bytes}")
    if sum(used) > limit_bytes + len(used) * overshoot_bytes:
        raise Violation(f"{used} bytes of {what} are on the disks, the limit is {limit_bytes}")


def granted_bytes(machine: Machine, topic: str = "") -> list[int]:
    """Return the bytes granted to each core, or to a topic with a limit there, as the words on the page stand now."""
    kind, labels = (TOPIC_GRANT_ROW, f"core_{{}}/{topic}") if topic else (GRANT_ROW, "core_{}")
    names = [labels.format(core) for core in range(machine.settings.cores)]
    return [LiveRow(machine.page, SUPERVISOR_REGION, kind, name).load(GrantFigure.GRANT_BYTES) for name in names]


def topic_bytes(machine: Machine, topic: str) -> list[int]:
    """Return the blocks of a topic's files, by core."""
    return [bytes_below(disk, f"{topic}/core_{core}") for core, disk in enumerate(machine.disks)]
