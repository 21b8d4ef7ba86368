"""Bits rot: what was durable on a simulated disk is something else when the machine is started again, or under a running one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from tests.disks.simulated import SimDisk
from tests.sim.damages import put_file

_SEGMENT = re.compile(r"(?P<topic>[^/]+)/core_(?P<core>[0-9]+)/segments/(?P<segment_seq>[0-9]+)[.]qseg")
_SHARE = 0.5

Segment = tuple[str, int, int]
"""Topic, core, number."""


def rot(disk: SimDisk, random: Random) -> list[Segment]:
    """Flip one bit in each of about half of the sealed segments of a disk on which nothing waits for a sync. Returns which."""
    found = []
    for path, data, segment in _about_half(disk, random):
        offset = random.randrange(len(data))
        rotten = bytes([data[offset] ^ 1 << random.randrange(8)])
        disk.take_back(path)
        disk.unlink(path)
        put_file(disk, path, data[:offset] + rotten + data[offset + 1 :])
        found.append(segment)
    return found


def rot_live(disk: SimDisk, random: Random) -> list[Segment]:
    """Flip one bit in each of about half of the segments in place, also in open and mapped files; unsynced files are spared."""
    return [
        segment
        for path, data, segment in _about_half(disk, random)
        if disk.flip_bit(path, random.randrange(len(data)), random.randrange(8))
    ]


def _about_half(disk: SimDisk, random: Random) -> Iterator[tuple[str, bytes, Segment]]:
    for path, data in sorted(disk.contents().items()):
        named = _SEGMENT.fullmatch(path)
        if named is not None and data and random.random() < _SHARE:
            yield path, data, (named["topic"], int(named["core"]), int(named["segment_seq"]))
