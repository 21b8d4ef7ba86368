"""A real node whose cold disk is slow and fails, on the disk seam: `python -m benchmarks.slow_cold_node LATENCY ERRORS` and the options of
`quiver up`. Part of benchmarks/slow_cold.py.

Each call on the cold disk takes so many seconds, and this share of them fails with EIO.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from quiver_actors.base.config.reading import Resolved, resolve
from quiver_actors.cli.commands import up
from quiver_actors.node.composition import run_node, run_worker
from quiver_actors.supervisor.log import configure_logging

if TYPE_CHECKING:
    from quiver_actors.node.worker.context import WorkerContext
    from quiver_actors.store.disk.protocol import Disk


def slow_cold_disks(
    latency_seconds: float, error_share: float
) -> Callable[[str], contextlib.AbstractContextManager[Disk]]:
    """Opens cold disks that are slow and fail; a `ColdDisks` of `store.files.cold_directory`."""
    from quiver_actors.errors import DiskError
    from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
    from quiver_actors.store.files.cold_directory import posix_cold_disk

    class SlowDisk(InterposedDisk):
        """A disk each of whose calls takes a while, and fails now and then."""

        def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
            """Wait, then make the call or fail."""
            time.sleep(latency_seconds)
            if random.random() < error_share:
                raise DiskError(call.kind, call.path, errno.EIO)
            return proceed()

    @contextlib.contextmanager
    def opened(root: str) -> Iterator[Disk]:
        with posix_cold_disk(root) as disk:
            yield SlowDisk(disk)

    return opened


def run_slow_worker(context: WorkerContext, latency_seconds: float, error_share: float) -> int:
    """The life of a worker whose engines have such a cold disk."""
    from quiver_actors.store.engine import Engine

    opened = partial(Engine.open, cold_disks=slow_cold_disks(latency_seconds, error_share))
    Engine.open = staticmethod(opened)  # type: ignore[method-assign]
    return run_worker(context)


def main() -> int:
    """Run the node until it is told to stop."""
    latency_seconds, error_share = float(sys.argv[1]), float(sys.argv[2])
    parser = argparse.ArgumentParser()
    up.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["up", *sys.argv[3:]])
    overrides = {"data_dir": arguments.data_dir, "run_dir": arguments.run_dir, "cores": arguments.cores}

    def read_settings() -> Resolved:
        return resolve(arguments.config, overrides)

    settings = read_settings().settings
    configure_logging(sys.stderr, settings.log.level, settings.log.format)
    worker = partial(run_slow_worker, latency_seconds=latency_seconds, error_share=error_share)
    return run_node(settings, config_path=arguments.config, resolve=read_settings, worker=worker)


if __name__ == "__main__":
    sys.exit(main())
