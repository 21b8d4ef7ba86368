"""The client of the node that a Python worker process runs on, kept between tasks.

Spark reuses its Python workers, so a module-level client survives from task to task with its connections and arenas. The key holds
the process id: a forked child never uses the sockets of its parent. Workers run one task at a time: no locking.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from quiver_actors.base.default_run_dir import default_run_dir
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, connect
from quiver_actors.errors import ClosedError, NotRunning, WorkerUnavailable

T = TypeVar("T")

_RETRY_SECONDS = 0.2
_Key = tuple[int, str, int | None]
_clients: dict[_Key, Client] = {}
"""Clients by process, run directory and the user who is trusted beside this one."""


def node_client(
    run_dir: str | None = None,
    timeout_ns: int = 60 * SECOND_NS,
    *,
    patience_ns: int | None = None,
    trusted_uid: int | None = None,
) -> Client:
    """The client of this process for the node at `run_dir` (None: `$QUIVER_RUN_DIR`, else the user's default). Do not close it.

    Args:
        timeout_ns: how long its requests wait for an answer.
        patience_ns: how long a node that is not there is waited for; None: `timeout_ns`.
        trusted_uid: see `quiver_actors.client.connect`.

    Raises:
        NotRunning: no node came up there in that time.
        UntrustedNode: the run directory is of another user.
    """
    key = _key(run_dir, trusted_uid)
    client = _clients.get(key)
    if client is None:
        client = _clients[key] = _connect(key, timeout_ns, timeout_ns if patience_ns is None else patience_ns)
    return client


def with_node(
    run_dir: str | None, timeout_ns: int, action: Callable[[Client], T], *, trusted_uid: int | None = None
) -> T:
    """Return `action(client)`; if the kept connection turns out to be dead, connect anew and do it once more.

    An action that pushes may so push twice: at least once, as every push that is repeated.
    """
    client = node_client(run_dir, timeout_ns, trusted_uid=trusted_uid)
    try:
        return action(client)
    except (ClosedError, NotRunning, WorkerUnavailable):
        forget_client(run_dir, trusted_uid=trusted_uid)
        return action(node_client(run_dir, timeout_ns, trusted_uid=trusted_uid))


def forget_client(run_dir: str | None = None, *, trusted_uid: int | None = None) -> None:
    """Close the kept client, if there is one."""
    client = _clients.pop(_key(run_dir, trusted_uid), None)
    if client is not None:
        client.close()


def _key(run_dir: str | None, trusted_uid: int | None) -> _Key:
    return os.getpid(), run_dir or default_run_dir(), trusted_uid


def _connect(key: _Key, timeout_ns: int, patience_ns: int) -> Client:
    _, run_dir, trusted_uid = key
    deadline_ns = time.monotonic_ns() + patience_ns
    while True:
        try:
            return connect(run_dir, timeout=timeout_ns / SECOND_NS, trusted_uid=trusted_uid)
        except NotRunning:
            if time.monotonic_ns() >= deadline_ns:
                raise
            time.sleep(_RETRY_SECONDS)
