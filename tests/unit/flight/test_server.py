"""A server of a node ends with its block: its thread, and what remote clients hold there."""

from __future__ import annotations

import threading

from quiver_actors.client import Client
from quiver_actors.errors import WorkerUnavailable
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer


def no_client() -> Client:
    raise WorkerUnavailable("there is no node here")


def test_a_server_leaves_no_thread_behind_its_block() -> None:
    before = set(threading.enumerate())
    with NodeServer(LocalNode("node-a", no_client), "grpc://127.0.0.1:0"):
        (tending,) = set(threading.enumerate()) - before
    tending.join(30)
    assert not tending.is_alive()
