"""A worker that starts on a full disk waits for room.

If it ended instead, it would be restarted again and again and soon be abandoned, and nobody would serve its bundles once there is room.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from quiver_actors.errors import DiskError
from quiver_actors.node.worker.journal import Journal
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS
from quiver_actors.store.engine import Engine

RETRY_SECONDS = 0.5


def open_when_there_is_room(
    open_engine: Callable[[], Engine],
    journal: Journal,
    heartbeat: Callable[[], None],
    rest: Callable[[float], None] = time.sleep,
) -> Engine:
    """Open an engine, again and again for as long as only room is missing. Blocking; a signal handler may raise out of it.

    Raises:
        QuiverError: it cannot be opened for another reason.
    """
    told = False
    while True:
        try:
            return open_engine()
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            if not told:
                journal.error("worker.waits_for_room", f"{error}; it goes on by itself when space is freed")
                told = True
        heartbeat()
        rest(RETRY_SECONDS)
