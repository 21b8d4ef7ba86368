"""What does a client of another host cost beside a local one? Both in the same run, on one machine: the network is the loopback.

Pushes of 1 KiB one after the other, `push_many` of bundles of 64 KiB, and a subscriber that takes and acknowledges what was pushed. The
server is `quiver serve` in a process of its own, without TLS.

    python -m benchmarks.remote [--quick] [--json] [--rounds N]
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Figure,
    Measurements,
    arguments,
    begun,
    median,
    median_ratio,
    run_interleaved,
    running_node,
)

AnyClient: TypeAlias = "quiver_actors.Client | quiver_actors.RemoteClient"

_KINDS = {"push": "pushes/s", "push_many": "bundles/s", "subscribe": "rows/s"}


@contextlib.contextmanager
def served(run_dir: str) -> Iterator[str]:
    """The place of a server of the node."""
    command = [sys.executable, "-m", "quiver_actors.cli.main", "serve", "--run-dir", run_dir, "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().partition("location=")[2].partition(" ")[0]
        finally:
            process.terminate()


def measured(client: AnyClient, pushes: int, bundles: int, name: str) -> Measurements:
    """One round with one client: each kind's rate."""
    small = pa.record_batch({"value": pa.array([os.urandom(1000)], pa.binary())})
    large = pa.record_batch({"number": np.arange(8192, dtype=np.int64)})
    found: Measurements = {}

    def timed(kind: str, count: int, call: Callable[[], object]) -> None:
        begun_at = time.perf_counter()
        call()
        found[kind] = count / (time.perf_counter() - begun_at)

    with client.subscribe(f"{name}-reader") as deliveries:
        timed("push", pushes, lambda: [client.push(small) for _ in range(pushes)])
        timed("push_many", bundles, lambda: client.push_many([large] * bundles))

        def take() -> None:
            for _ in range(pushes + bundles):
                delivery = deliveries.get(60.0)
                assert delivery is not None
                with delivery:
                    assert delivery.batch.num_rows
            deliveries.flush(60.0)

        timed("subscribe", pushes + bundles * large.num_rows, take)
    return found


def main() -> None:
    """Print the rate of each kind, of the remote client against the local one."""
    options = arguments(__doc__)
    pushes, bundles = (20, 20) if options.quick else (500, 1000)
    with (
        begun(options) as (report, directory),
        running_node(directory) as run_dir,
        served(run_dir) as url,
        quiver_actors.connect(run_dir) as local,
        quiver_actors.connect_remote(url) as remote,
    ):
        clients: dict[str, AnyClient] = {"local": local, "remote": remote}
        candidates = {
            name: lambda name=name, client=client: measured(client, pushes, bundles, name)
            for name, client in clients.items()
        }
        results = run_interleaved(candidates, options.rounds)
        for kind, unit in _KINDS.items():
            for name, of in results.items():
                values = [result[kind] for result in of]
                ratio = median_ratio(of, results["local"], kind) if name == "remote" else None
                against = "local" if name == "remote" else ""
                report.show(
                    Figure(
                        f"remote/{kind}/{name}",
                        median(of, kind),
                        unit,
                        against,
                        ratio,
                        "synced",
                        len(of),
                        min(values),
                        max(values),
                    )
                )


if __name__ == "__main__":
    main()
