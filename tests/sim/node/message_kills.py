"""A worker or client that ends right before or right after one of the calls by which it talks to others.

Owner: one life of one simulated worker, or an actor. `sys.setprofile` sees the calls, as in `tests.crash.points`, so nothing in the product
knows of this; only who is to be killed is slowed down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tests.crash.points import MESSAGE_CALLS
from tests.disks.faulty import SimulatedCrash

_CALLS = {
    "c_call": frozenset(MESSAGE_CALLS),
    # The others may have made a descriptor, which only the end of a real process would close.
    "c_return": frozenset(name for name in MESSAGE_CALLS if name.startswith("send") or name == "recv_into"),
}


class MessageKills:
    def __init__(self, die: Callable[[], None]) -> None:
        self._die = die
        """Lets nothing that is done on the way out have an effect."""
        self._left = 0
        self._event = "c_call"

    def arm(self, calls: int, *, after: bool) -> None:
        """Kill at the call that is number `calls` from now; 0: never."""
        self._left, self._event = calls, "c_return" if after else "c_call"

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raises SimulatedCrash out of what is done meanwhile, if it comes to that call."""
        if not self._left:
            yield
            return
        sys.setprofile(self._look)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _look(self, _frame: FrameType, event: str, function: Any) -> None:
        if event != self._event or function.__name__ not in _CALLS[event]:
            return
        self._left -= 1
        if not self._left:
            self._die()
            raise SimulatedCrash(f"{'after' if event == 'c_return' else 'before'} {function.__name__}")
