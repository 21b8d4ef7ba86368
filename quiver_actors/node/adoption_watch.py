"""Beside the supervisor: sees adopted cores go, so that clients are no longer told of them. Holds nothing but what it saw last."""

from __future__ import annotations

from collections.abc import Callable

from quiver_actors.supervisor.spec import SECOND_NS, Steward

LOOK_INTERVAL_NS = SECOND_NS


class AdoptionWatch:
    """A steward that watches which cores are adopted, and passes all requests on to another steward."""

    def __init__(self, steward: Steward, look: Callable[[], list[int]], changed: Callable[[], None]) -> None:
        """
        Args:
            look: says which cores are adopted now.
            changed: called when these cores are others than before.
        """
        self._steward = steward
        self._look = look
        self._changed = changed
        self._seen = look()

    def answer(self, subject: str, body: bytes, uid: int) -> bytes:
        """Answer one control request of the user `uid`, as the steward does."""
        return self._steward.answer(subject, body, uid)

    def reload(self) -> None:
        """Read the configuration file again, as the steward does."""
        self._steward.reload()

    def step(self, now_ns: int) -> int | None:
        """Do what is due, look for changed adopted cores, and return the monotonic time of the next step; None: there is none."""
        due_ns = self._steward.step(now_ns)
        if not self._seen:
            return due_ns
        try:
            cores = self._look()
            if cores != self._seen:
                self._changed()
                self._seen = cores
        except OSError:
            # No descriptor is left, or no room in the run directory: no reason for the node to end, and looked at again soon.
            pass
        look_ns = now_ns + LOOK_INTERVAL_NS
        return look_ns if due_ns is None else min(due_ns, look_ns)
