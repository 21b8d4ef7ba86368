"""What a run directory says about its node: `node.json`, written by the supervisor.

Read again before each connect, so that clients find a node that was restarted with other workers. It is a hint: a supervisor that
was killed leaves its file behind, and only a connection proves that a worker is there.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from quiver_actors.default_run_dir import default_run_dir
from quiver_actors.errors import NotRunning, WorkerUnavailable

NODE_FILE = "node.json"
NODE_VERSION = 1


class CoreEntry(msgspec.Struct, frozen=True):
    core: int
    socket: str
    """File name in the run directory."""
    adopted: bool = False
    """The node has no such worker any more: another one delivers what is left of it, and takes nothing for it."""


class NodeView(msgspec.Struct, frozen=True):
    """The parts of `node.json` that clients use."""

    version: int
    pid: int
    data_dir: str
    started_unix_ns: int
    cores: tuple[CoreEntry, ...]
    node: str = ""
    """What the node is called where there are several."""


class NodeDirectory:
    """Finds the sockets of the workers below one run directory. Keeps the newest view that it has read."""

    __slots__ = ("_sockets", "push_cores", "run_dir", "view")

    def __init__(self, run_dir: str | None = None) -> None:
        """Read the run directory's `node.json`.

        Raises:
            NotRunning: it is not there or not readable.
        """
        self.run_dir = os.path.abspath(run_dir or default_run_dir())
        self._take(read_node_view(self.run_dir))

    @property
    def cores(self) -> tuple[int, ...]:
        """The numbers of the workers, rising."""
        return tuple(self._sockets)

    def refresh(self) -> None:
        """Read `node.json` again.

        Raises:
            NotRunning: it is gone; the last view stays.
        """
        self._take(read_node_view(self.run_dir))

    def socket_of(self, core: int) -> str:
        """The path of a worker's socket, by a fresh look.

        Raises:
            NotRunning: the node was stopped.
            WorkerUnavailable: the node has no such worker (any more).
        """
        self.refresh()
        name = self._sockets.get(core)
        if name is None:
            raise WorkerUnavailable(
                f"the node in {self.run_dir} has no worker {core}: its workers are {list(self.cores)}"
            )
        return os.path.join(self.run_dir, name)

    def _take(self, view: NodeView) -> None:
        self.view = view
        self.push_cores = tuple(sorted(entry.core for entry in view.cores if not entry.adopted))
        """Those of `cores` that take bundles, rising."""
        self._sockets: Mapping[int, str] = {entry.core: entry.socket for entry in sorted(view.cores, key=_core_of)}


def read_node_view(run_dir: str) -> NodeView:
    """Read and check `<run_dir>/node.json`.

    Raises:
        NotRunning: the file is missing, unreadable, or not what a supervisor writes.
    """
    path = os.path.join(run_dir, NODE_FILE)
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError as error:
        raise NotRunning(
            f"no node is running in {run_dir}: {path} cannot be read ({error.strerror}); start one with "
            f"`quiver up --run-dir {run_dir}`, or name another run directory"
        ) from error
    try:
        view = msgspec.json.decode(content, type=NodeView)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotRunning(f"{path} is not what `quiver up` writes: {error}") from error
    if view.version != NODE_VERSION or not view.cores:
        raise NotRunning(
            f"{path} has version {view.version} and {len(view.cores)} workers: expected version {NODE_VERSION} and at "
            "least one worker; the client and the node need the same version of quiver-actors"
        )
    return view


def _core_of(entry: CoreEntry) -> Any:
    return entry.core
