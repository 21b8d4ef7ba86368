"""The stores that this process has open: closed at its exit, let go of in its forked children, each directory once."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable

from quiver_actors.base.locks import new_lock
from quiver_actors.client import later
from quiver_actors.embedded.node import EmbeddedNode
from quiver_actors.errors import AlreadyRunning


class _Doorway:
    """One thread opens or looks at a time."""

    lock = new_lock()


_open: dict[str, EmbeddedNode] = {}
"""The stores by the real paths of their directories."""


def opened_node(data_dir: str, make: Callable[[], EmbeddedNode]) -> EmbeddedNode:
    """Open a store that this process does not have open yet.

    Raises:
        AlreadyRunning: it has.
        And as `make`.
    """
    path = os.path.realpath(data_dir)
    with _Doorway.lock:
        found = _open.get(path)
        if found is not None and not found.is_closed:
            raise AlreadyRunning(
                f"data directory is in use: process {os.getpid()}, which is this one, has {data_dir} open; use the store that is open, "
                "or close it first"
            )
        node = _open[path] = make()
    return node


@atexit.register
def close_all() -> None:
    """Close what the program has left open. Acknowledgements that wait to be sent go before: nobody could take them afterwards."""
    later.send_at_exit()
    for node in list(_open.values()):
        node.close()
    _open.clear()


def _let_go_in_child() -> None:
    _Doorway.lock = new_lock()
    for node in _open.values():
        node.let_go_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
