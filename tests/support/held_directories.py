"""A data directory that another process seems to hold."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quiver_actors.shm.liveness import LifeLock


@contextmanager
def held_by_another(lock: Path) -> Iterator[None]:
    """Hold a life lock in the name of the parent process. Who has the caller's number is taken for one that is dead or in another
    container, and is waited for."""
    with LifeLock(lock):
        lock.write_text(f"{os.getppid()}\n")
        yield
