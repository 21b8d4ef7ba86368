"""Seeing adopted cores go, with a look that fails now and then."""

from __future__ import annotations

import errno

from quiver_actors.node.adoption_watch import AdoptionWatch
from quiver_actors.supervisor.spec import Steward


class Nothing(Steward):
    """A steward that has nothing to do."""

    def answer(self, subject: str, body: bytes, uid: int) -> bytes:
        return body

    def reload(self) -> None: ...

    def step(self, now_ns: int) -> int | None:
        return None


def test_a_look_or_a_record_that_fails_is_made_again() -> None:
    """The supervisor ended for want of a descriptor, or of room in the run directory, and the node with it."""
    found: list[list[int] | OSError] = [[2, 3], OSError(errno.EMFILE, "no descriptor left"), [3], [3], [3]]
    told: list[bool] = []

    def look() -> list[int]:
        each = found.pop(0)
        if isinstance(each, OSError):
            raise each
        return each

    def changed() -> None:
        told.append(True)
        if len(told) == 1:
            raise OSError(errno.ENOSPC, "no room")

    watch = AdoptionWatch(Nothing(), look, changed)
    for _ in range(4):
        assert watch.step(0)
    assert told == [True, True]
    assert not found
