"""Runs one worker as a process of its own: `python -m tests.integration.worker_process <root> <counters page> <settings as JSON>`."""

from __future__ import annotations

import os
import sys
import time

import msgspec

from quiver_actors.base.config import NodeSettings
from quiver_actors.base.metrics.figures import FIGURES_VERSION
from quiver_actors.node.worker.context import WorkerContext
from quiver_actors.shm.counters import CountersPage
from quiver_actors.supervisor.log import configure_logging


def main(root: str, page_name: str, settings: str) -> int:
    configure_logging(sys.stderr)
    page = CountersPage.create(page_name, 2, 64, FIGURES_VERSION)
    try:
        region = page.writer(1)
        region.begin(os.getpid(), time.time_ns())
        from quiver_actors.node.worker import entry

        context = WorkerContext(
            core=0,
            cores=1,
            settings=msgspec.json.decode(settings, type=NodeSettings),
            data_dir=f"{root}/data",
            run_dir=f"{root}/run",
            region=region,
            wakeup_fd=sys.stdout.fileno(),
        )
        return entry.main(context)
    finally:
        page.unlink()
        page.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
