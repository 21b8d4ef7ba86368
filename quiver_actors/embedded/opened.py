"""The stores that this process has open: closed at its exit, let go of in its forked children, each directory once."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable

from quiver_actors.base.locks import new_lock
from quiver_actors.client import later
from quiver_actors.embedded.node import EmbeddedNode, let_go_of_disks_in_child
from quiver_actors.errors import AlreadyRunning


class _Doorway:
    """One thread opens or looks at a time."""

    lock = new_lock()


_open: dict[str, EmbeddedNode] = {}
"""The stores by the real paths of their directories."""


class Opening:
    """A store that is being opened, in a thread of its own: an interrupt of who waits for it leaves no directory half open."""

    def __init__(self, data_dir: str, make: Callable[[], EmbeddedNode]) -> None:
        """Nothing is begun yet; `wait` does that."""
        self._data_dir = data_dir
        self._make = make
        self._node: EmbeddedNode | None = None
        self._error: BaseException | None = None
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="quiver-open", daemon=True)

    def wait(self) -> EmbeddedNode:
        """Open the store, unless this process has it open. Blocking.

        Raises:
            AlreadyRunning: it has.
            And as `make`.
        """
        self._thread.start()
        self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame, and would keep everything in memory
        assert self._node is not None, "it was opened, or an error says why not"
        return self._node

    def give_up(self) -> None:
        """Have the store closed, now or as soon as it is open: nobody will use it."""
        self._is_given_up = True
        if self._node is not None:
            self._node.abandon()

    def _run(self) -> None:
        try:
            self._node = self._opened()
        except BaseException as error:  # noqa: BLE001 - raised by who waits
            self._error = error
        if self._is_given_up and self._node is not None:
            self._node.abandon()

    def _opened(self) -> EmbeddedNode:
        path = os.path.realpath(self._data_dir)
        with _Doorway.lock:
            for closed in [each for each, node in _open.items() if node.has_let_go]:
                del _open[closed]
            found = _open.get(path) or _open_elsewhere(path)
            if found is not None and not found.is_ending:
                raise AlreadyRunning(
                    f"data directory is in use: process {os.getpid()}, which is this one, has {self._data_dir} open; use the store that is "
                    "open, or close it first"
                )
            if found is not None:
                found.close()  # somebody has begun to: wait for it
            node = _open[path] = self._make()
        return node


def _open_elsewhere(path: str) -> EmbeddedNode | None:
    """The store that has the same directory open under another path, as by a bind mount."""
    for other, node in _open.items():
        with contextlib.suppress(OSError):  # one of them does not exist
            if os.path.samefile(path, other):
                return node
    return None


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
    let_go_of_disks_in_child()
    _open.clear()


os.register_at_fork(after_in_child=_let_go_in_child)
