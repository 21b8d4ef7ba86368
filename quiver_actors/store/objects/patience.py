"""Patience with a store: what may be done twice is tried again after errors that pass."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from quiver_actors.store.objects.errors import ArchiveUnavailable

T = TypeVar("T")


class Patience(NamedTuple):
    """How long a store that does not answer is tried."""

    total_seconds: float = 30.0
    """Time after which no further try begins."""
    first_pause_seconds: float = 0.1
    """The first pause, of which each doubles the one before, up to the longest; each is shortened at random."""
    pause_seconds_max: float = 4.0


PATIENCE = Patience()


def patiently(action: Callable[[], T], patience: Patience = PATIENCE) -> T:
    """Return what `action` returns; it is called again while it raises ArchiveUnavailable, and must mean the same each time.

    Raises:
        ArchiveUnavailable: the last one, when the time is over. Other errors come at once.
    """
    deadline, pause_seconds = time.monotonic() + patience.total_seconds, patience.first_pause_seconds
    while True:
        try:
            return action()
        except ArchiveUnavailable:
            if time.monotonic() + pause_seconds > deadline:
                raise
        time.sleep(pause_seconds * random.uniform(0.5, 1))
        pause_seconds = min(patience.pause_seconds_max, 2 * pause_seconds)
