"""The view of a node in its run directory: `node.json`, written by the supervisor.

Read again before each connect, so that clients find a node that was restarted with other workers. It is a hint: a supervisor that
was killed leaves its file behind, and only a connection proves that a worker is there.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol, Self

import msgspec

from quiver_actors.base.default_run_dir import default_run_dir
from quiver_actors.base.protocol.archive_messages import ARCHIVE_SOCKET
from quiver_actors.base.trust import check_peer, named_users, trusted_directory
from quiver_actors.client.connection import Connection, WorkerConnection
from quiver_actors.errors import NotRunning, UnknownCore
from quiver_actors.store.files.data_version import VERSION_FILE

NODE_FILE = "node.json"
NODE_VERSION = 1


class CoreEntry(msgspec.Struct, frozen=True):
    """One core of the node's view: its number, and the socket of the worker that serves it."""

    core: int
    socket: str
    """File name in the run directory."""
    adopted: bool = False
    """Whether the node has no worker for this core any more: another worker delivers the core's bundles and takes no pushes for it."""


class NodeView(msgspec.Struct, frozen=True):
    """The parts of `node.json` that clients use."""

    version: int
    pid: int
    data_dir: str
    started_unix_ns: int
    cores: tuple[CoreEntry, ...]
    node: str = ""
    """Name of the node among several nodes."""
    has_archiver: bool = False
    """Whether the node keeps an archiver running, which listens on `ARCHIVE_SOCKET`."""
    retired: tuple[int, ...] = ()
    """Cores that the node has had, and of which the directory of a topic is left that nobody serves. An older node names none."""


class WorkerDirectory(Protocol):
    """Says which workers there are, and connects to them. Owned by one exchange."""

    @property
    def run_dir(self) -> str:
        """How errors and `repr` name the place."""

    @property
    def push_cores(self) -> tuple[int, ...]:
        """The cores that take bundles, in rising order."""

    @property
    def trusted_uid(self) -> int | None:
        """A user whose node is trusted too."""

    @property
    def node_name(self) -> str:
        """Name of the node among several; empty: it has none of its own."""

    @property
    def data_dir(self) -> str:
        """Path of the data directory."""

    @property
    def cores(self) -> tuple[int, ...]:
        """The numbers of the cores that are served, rising."""

    @property
    def retired_cores(self) -> tuple[int, ...]:
        """The numbers of cores that the node has had: of some topic nothing of them is served any more."""

    def refresh(self) -> None:
        """Look again which workers there are. Raises NotRunning: there is no node."""

    def check_core(self, core: int) -> None:
        """Raise UnknownCore if a core is not served (any more), by a fresh look; NotRunning if nothing is."""

    def connect(self, core: int) -> WorkerConnection:
        """Connect to a worker, by a fresh look.

        Raises:
            NotRunning, UnknownCore, UntrustedNode: it will not do.
            OSError, WorkerUnavailable: nobody is there now.
        """

    def connect_to_archiver(self) -> socket.socket | None:
        """A socket to the node's archiver; None where there is none.

        Raises:
            NotRunning, UntrustedNode: it will not do.
            OSError: nobody is there now.
        """

    def another(self) -> Self:
        """A directory of the same node for another exchange."""


class NodeDirectory:
    """Finds the sockets of the workers below one run directory, if that is trusted (`trust`). Keeps the newest view that it has read."""

    __slots__ = ("_named", "_peers", "_sockets", "_trusted_uid", "push_cores", "run_dir", "view")

    def __init__(self, run_dir: str | None = None, trusted_uid: int | None = None) -> None:
        """Read the run directory's `node.json`.

        Args:
            trusted_uid: a user whose node is trusted too.

        Raises:
            NotRunning: it is not there or not readable.
            UntrustedNode: the directory is another user's.
            ConfigError: `trusted_uid` is no user id.
        """
        self.run_dir = os.path.abspath(run_dir or default_run_dir())
        self._trusted_uid = trusted_uid
        self._named = named_users(trusted_uid)
        self.refresh()

    @property
    def trusted_uid(self) -> int | None:
        """A user whose node is trusted too."""
        return self._trusted_uid

    @property
    def node_name(self) -> str:
        """Name of the node among several nodes, as its view says it."""
        return self.view.node

    @property
    def data_dir(self) -> str:
        """Path of the node's data directory, as its view says it."""
        return self.view.data_dir

    @property
    def cores(self) -> tuple[int, ...]:
        """The numbers of the workers, rising."""
        return tuple(self._sockets)

    @property
    def retired_cores(self) -> tuple[int, ...]:
        """The numbers of cores that the node has had, as its view says them."""
        return self.view.retired

    def another(self) -> NodeDirectory:
        """A directory of the same node for another exchange. Raises as the constructor."""
        return NodeDirectory(self.run_dir, self._trusted_uid)

    def refresh(self) -> None:
        """Read `node.json` again.

        Raises:
            NotRunning: it is gone; the last view stays.
            UntrustedNode: the directory is another user's now.
        """
        view, self._peers = read_node_view(self.run_dir, self._named)
        self._take(view)

    def connect(self, core: int) -> Connection:
        """A connection to a worker, whose user is trusted; by a fresh look.

        Raises:
            NotRunning: the node was stopped.
            UnknownCore: the node has no such worker (any more).
            UntrustedNode: the directory, or who listens on the socket, is another user's.
            OSError: nobody listens there, or not now.
        """
        path = self._socket_of(core)
        return Connection(self._connected(path, socket.SOCK_NONBLOCK))

    def connect_to_archiver(self) -> socket.socket | None:
        """A blocking socket to the node's archiver, whose user is trusted; None where the node has none.

        Raises:
            OSError: it does not listen now: ConnectionRefusedError, FileNotFoundError where it has just begun or ended.
            And as `connect`.
        """
        self.refresh()
        if not self.view.has_archiver:
            return None
        return self._connected(os.path.join(self.run_dir, ARCHIVE_SOCKET), 0)

    def _connected(self, path: str, flags: int) -> socket.socket:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | flags)
        try:
            connected.connect(path)
            check_peer(connected, self._peers)
        except BaseException:
            connected.close()
            raise
        return connected

    def check_core(self, core: int) -> None:
        """Look whether the node has a worker, by a fresh look.

        Raises:
            NotRunning: the node was stopped.
            UnknownCore: the node has no such worker (any more).
            UntrustedNode: the directory is another user's.
        """
        self._socket_of(core)

    def _socket_of(self, core: int) -> str:
        self.refresh()
        name = self._sockets.get(core)
        if name is None:
            raise UnknownCore(
                f"the node in {self.run_dir} has no core {core}: its cores are {list(self.cores)}. The core's directory was drained and "
                "retired, or it was away when the node started: then bring it back and start the node again"
            )
        return os.path.join(self.run_dir, name)

    def _take(self, view: NodeView) -> None:
        self.view = view
        self.push_cores = tuple(sorted(entry.core for entry in view.cores if not entry.adopted))
        """The cores that take bundles, in rising order."""
        self._sockets: Mapping[int, str] = {entry.core: entry.socket for entry in sorted(view.cores, key=_core_of)}


def read_node_view(run_dir: str, named: frozenset[int]) -> tuple[NodeView, frozenset[int]]:
    """Read and check `<run_dir>/node.json`.

    Returns:
        The content of the file, and the users who may listen on the sockets.

    Raises:
        NotRunning: the file is missing, unreadable, or not what a supervisor writes.
        UntrustedNode: the directory is another user's.
    """
    path = os.path.join(run_dir, NODE_FILE)
    try:
        with trusted_directory(run_dir, named) as directory:
            descriptor = os.open(NODE_FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory.descriptor)
        with open(descriptor, "rb") as file:
            content = file.read()
    except OSError as error:
        raise NotRunning(
            f"no node is running in {run_dir}: {path} cannot be read ({error.strerror}); {_advice(run_dir)}"
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
    return view, directory.peers


def _advice(run_dir: str) -> str:
    """What to do where no node is found, by what the place is instead of a run directory."""
    if ":/" in run_dir:  # a URL as an absolute path
        return "a node on another host is reached with quiver_actors.connect_remote(url)"
    if os.path.exists(os.path.join(run_dir, VERSION_FILE)):
        return "it is a data directory: name the run directory of its node, or open it without a node by quiver_actors.open(path)"
    return f"start one with `quiver up --run-dir {run_dir}`, or name another run directory"


def _core_of(entry: CoreEntry) -> Any:
    return entry.core
