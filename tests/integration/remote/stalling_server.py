"""A Flight server that stores what is pushed, says so on its standard output, and never answers: `python -m ... RUN_DIR PORT`."""

from __future__ import annotations

import sys
import threading
from typing import Any, cast

from quiver_actors.client import Client, Receipts, connect
from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer


class Stalling:
    """A client whose pushes do not return."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def push_many(self, *arguments: Any, **named: Any) -> Receipts:
        self._client.push_many(*arguments, **named)
        print("stored", flush=True)
        threading.Event().wait()
        raise AssertionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def main(run_dir: str, port: str) -> None:
    with connect(run_dir, timeout=60.0) as client:
        stalling = cast(Client, Stalling(client))
        with NodeServer(LocalNode("node-a", lambda: stalling), f"grpc://127.0.0.1:{port}") as server:
            print(server.port, flush=True)
            threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
