"""A process that forwards to a lake table: `python -m tests.integration.lake_process RUN_DIR DIRECTORY KIND END`.

KIND: `delta` or `iceberg`. Says `ready` when it is subscribed. END: `idle`, when nothing is left to be resolved; `killed`, never; or by
SIGKILL at a step: `before-commit`, when all is prepared; `after-commit`, when nothing of it is acknowledged; `after-ack`, when nothing of
that is flushed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from quiver_actors.client import connect
from quiver_actors.forward import Backoff, Forwarder
from quiver_actors.forward.table_deliverer import TableDeliverer
from tests.unit.forward.lakes import LAKES

SUBSCRIBER = "lake"
STEPS = ("before-commit", "after-commit", "after-ack")
TARGET_BYTES = 720


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class DyingTable:
    """Passes calls on to a table, and dies at its second commit: so that there is one whose position counts."""

    def __init__(self, table: Any, end: str) -> None:
        self._table = table
        self._end = end
        self._commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def append(self, *arguments: Any) -> None:
        self._commits += 1
        if self._commits == 2 and self._end == "before-commit":
            die()
        self._table.append(*arguments)
        if self._commits == 2 and self._end == "after-commit":
            die()


def run(forwarder: Forwarder, deliverer: TableDeliverer, end: str) -> None:
    if end == "after-ack":
        decide = forwarder._decide

        def decided(outcome: Any) -> None:
            decide(outcome)
            if deliverer.statistics().commits == 2:
                die()

        forwarder._decide = decided  # type: ignore[method-assign]
    forwarder.run(idle_timeout=0.3 if end == "idle" else None)


def main(run_dir: str, directory: str, kind: str, end: str) -> None:
    with (
        connect(run_dir) as client,
        client.subscribe(SUBSCRIBER, start="earliest", prefetch=32) as subscription,
        LAKES[kind].deliverer(Path(directory), subscription, target_bytes=TARGET_BYTES, max_age=0.3) as deliverer,
    ):
        deliverer._table = DyingTable(deliverer._table, end)
        print("ready", flush=True)
        forwarder = Forwarder(subscription, deliverer, retry=Backoff(initial=0.05), max_in_flight=400)
        signal.signal(signal.SIGTERM, lambda *_: forwarder.stop(10))
        run(forwarder, deliverer, end)
        while end == "idle" and not subscription.all_drained():
            run(forwarder, deliverer, end)


if __name__ == "__main__":
    main(*sys.argv[1:])
