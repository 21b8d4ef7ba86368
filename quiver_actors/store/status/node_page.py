"""Finds a node by its run directory: the record, the supervisor's lock, and the counters page, which outlives a node that was killed."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

from quiver_actors.errors import NotAllowed, NotRunning
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.errors import NotPermitted, ShmError
from quiver_actors.shm.liveness import holder_alive

NODE_RECORD = "node.json"
SUPERVISOR_LOCK = "supervisor.lock"


def _read_record(run_dir: str) -> dict[str, Any]:
    path = os.path.join(run_dir, NODE_RECORD)
    try:
        with open(path, "rb") as file:
            record = json.load(file)
    except OSError as error:
        raise NotRunning(
            f"no node is running in {run_dir}: {path}: {error.strerror}; start one with `quiver up --run-dir {run_dir}`, or "
            "name another run directory with --run-dir"
        ) from error
    except ValueError as error:
        raise NotRunning(f"{path} is not what `quiver up` writes: {error}") from error
    if not isinstance(record, dict) or record.get("version") != 1:
        raise NotRunning(
            f"{path} is not a node record of version 1: the node and this program are of different versions"
        )
    return record


def _supervisor_lives(run_dir: str) -> bool:
    with contextlib.suppress(ShmError):
        return holder_alive(os.path.join(run_dir, SUPERVISOR_LOCK))
    return False


def find_node(run_dir: str) -> tuple[dict[str, Any], bool, CountersPage]:
    """Return the record, whether the supervisor lives, and the page; again where the next node removes those of a dead one meanwhile."""
    while True:
        record = _read_record(run_dir)
        running = _supervisor_lives(run_dir)
        try:
            return record, running, _attach(run_dir, record, running)
        except NotRunning:
            if _read_record(run_dir).get("counters") == record.get("counters"):
                raise


def _attach(run_dir: str, record: dict[str, Any], running: bool) -> CountersPage:
    try:
        return CountersPage.attach(record["counters"])
    except NotPermitted as error:
        raise NotAllowed(
            f"the figures of the node in {run_dir} are for its own user and root: ask its operator, or look at the topics that you may use "
            "with `quiver topics list`"
        ) from error
    except (ShmError, KeyError) as error:
        what = (
            "is starting or stopping, or somebody has deleted its shared memory"
            if running
            else "is dead and left no figures"
        )
        raise NotRunning(f"the supervisor of {run_dir} (pid {record.get('pid')}) {what}: {error}") from error
