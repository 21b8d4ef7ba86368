"""Bits rot: what was durable on a simulated disk is something else when the machine is started again."""

from __future__ import annotations

import re
from random import Random

from quiver_actors.disk.simulated import SimDisk
from tests.sim.scenes import put_file

_SEGMENT = re.compile(r"(?P<topic>[^/]+)/core_(?P<core>[0-9]+)/segments/(?P<segment_seq>[0-9]+)[.]qseg")
_SHARE = 0.5

Segment = tuple[str, int, int]
"""Topic, core, number."""


def rot(disk: SimDisk, random: Random) -> list[Segment]:
    """Flip one bit in each of about half of the sealed segments of a disk on which nothing waits for a sync. Returns which."""
    found = []
    for path, data in sorted(disk.contents().items()):
        named = _SEGMENT.fullmatch(path)
        if named is None or not data or random.random() >= _SHARE:
            continue
        offset = random.randrange(len(data))
        rotten = bytes([data[offset] ^ 1 << random.randrange(8)])
        disk.unlink(path)
        put_file(disk, path, data[:offset] + rotten + data[offset + 1 :])
        found.append((named["topic"], int(named["core"]), int(named["segment_seq"])))
    return found
