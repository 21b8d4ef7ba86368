"""The state of a data directory that nobody has open: it is opened for the time of a look."""

from __future__ import annotations

import os
import time

from quiver_actors.cli.run_dir import open_data_dir
from quiver_actors.store.status.status_document import StatusView
from quiver_actors.store.status.status_view import status_from


def status_of_directory(path: str) -> StatusView:
    """Recover the directory, look at it, and close it.

    Raises:
        AlreadyRunning, UsageError: as `run_dir.open_data_dir`.
    """
    with open_data_dir(path) as store:
        record = {
            "version": 1,
            "pid": os.getpid(),
            "data_dir": store.data_dir,
            "started_unix_ns": time.time_ns(),
            "topics": list(store.topics()),
            "cores": [{"core": 0, "socket": ""}],
        }
        status = status_from(store.data_dir, record, store.figures())
        for worker in status.workers:
            worker.cpu_percent = None  # of a life of milliseconds
        return status
