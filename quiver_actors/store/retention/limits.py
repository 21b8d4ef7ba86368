"""The limits by which an engine gets no room on the disk for what is pushed, and the sentence that tells an operator which one was met.

Pure. Owner of a `NoRoom`: the part of an engine whose job or wish found no room; it is forgotten when room was found.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.base.units import format_size


class Limit(enum.IntEnum):
    """Part of the counters page: numbers never change."""

    NONE = 0
    MIN_FREE = 1
    """The file system would have less free than `retention.min_free`."""
    DISK = 2
    """The file system has no blocks left."""
    SIZE_CAP = 3
    """The node would have more than `retention.size_cap`."""
    CAP_SHARE = 4
    """The topic would have more than `retention.cap_share` of the cap gives it."""


DISK_LIMITS = (Limit.MIN_FREE, Limit.DISK)
"""Limits of the file system. Those of caps have their own rule of sealing early (`retention.early_seal`)."""


_GIVEN_OUT = (Limit.SIZE_CAP, Limit.CAP_SHARE)
"""Limits whose room the supervisor gives out to the workers in parts."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A limit that was met.

    Attributes:
        limit_bytes: the limit's value; 0 for `DISK`.
        measured_bytes: what is free on the file system for `MIN_FREE` and `DISK`, what is used for the others.
    """

    limit: Limit = Limit.NONE
    limit_bytes: int = 0
    measured_bytes: int = 0

    def leaves(self, more_bytes: int) -> bool:
        """Whether so many bytes more keep to the limit: the room is there, and is being given out, or other workers give it back first."""
        return self.limit in _GIVEN_OUT and self.measured_bytes + more_bytes <= self.limit_bytes

    def __str__(self) -> str:
        limit, measured = format_size(self.limit_bytes), format_size(self.measured_bytes)
        match self.limit:
            case Limit.MIN_FREE:
                return f"the file system has {measured} free, and retention.min_free keeps {limit} of it free"
            case Limit.DISK:
                return f"the file system is full, or a quota or the file size limit (ulimit -f) is met: {measured} are free"
            case Limit.SIZE_CAP:
                return f"the node uses {measured} of retention.size_cap = {limit}"
            case Limit.CAP_SHARE:
                return f"the topic uses {measured} of the {limit} that retention.cap_share gives it"
        return "no limit was met"


ROOM = NoRoom()
"""No limit was met: there is room."""


@dataclass(slots=True)
class Allowance:
    """The disk that an engine's worker may still take. One object for all parts of an engine; the worker replaces both answers.

    Attributes:
        admits: says whether the worker may take so many bytes more.
        which_limit: names the limit by which `admits` has just said no.
    """

    admits: Callable[[int], bool] = lambda _: True
    which_limit: Callable[[], NoRoom] = lambda: ROOM


def below_min_free(free_bytes: int, wanted_bytes: int, min_free_bytes: int) -> NoRoom:
    """Whether a file that takes `wanted_bytes` would leave less than the low-water mark: the limit that is met, `ROOM` if none is."""
    if free_bytes >= wanted_bytes + min_free_bytes:
        return ROOM
    if not min_free_bytes:
        return NoRoom(Limit.DISK, 0, free_bytes)
    return NoRoom(Limit.MIN_FREE, min_free_bytes, free_bytes)
