"""Pickling of clients: a client owns sockets and shared memory of its process, so it cannot travel to another one."""

from __future__ import annotations

from typing import NoReturn

from quiver_actors.errors import UsageError


def refuse_pickle(run_dir: str) -> NoReturn:
    """Raise UsageError, which says how another process gets a client of the node at `run_dir`."""
    raise UsageError(
        "a client cannot be pickled: it owns sockets and shared memory of this process. Connect in the other process instead, "
        f"with quiver_actors.connect({run_dir!r}); in Spark use format('quiver'), or connect inside of the function"
    )
