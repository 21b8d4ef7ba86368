"""Removes what nodes leave behind when they are killed.

A run directory belongs to one node at a time: the next one there removes sockets, `node.json` and the counters page that this names. Pages
in `/dev/shm` of other run directories stay while these name them: the figures of a dead node are wanted most of all. Pages that
no run directory names are removed by every node of their user.
"""

from __future__ import annotations

import glob
import logging
import os

from quiver_actors.base.archive_status import ARCHIVE_STATUS_FILE
from quiver_actors.node.opened_directories import OpenedDirectories
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.liveness import recorded_name, sweep_named_memory
from quiver_actors.supervisor.figures import RUN_DIRECTORY_ROW, SUPERVISOR_REGION
from quiver_actors.supervisor.log import log_event

NODE_RECORD = "node.json"
_PATTERNS = (
    f"{NODE_RECORD}*",
    "core_*.sock*",
    ".core_*.sock*",
    "supervisor.sock*",
    "archive.sock*",
    f"{ARCHIVE_STATUS_FILE}*",
)


def sweep(run_dir: str) -> None:
    """Remove what a node leaves in its run directory, and named memory that nobody lives behind or asks for.

    The caller holds the run directory's lock, so whoever made these things is dead or is the caller.
    """
    name = recorded_name(os.path.join(run_dir, NODE_RECORD))
    swept = []
    # The record goes first: whoever is killed in here leaves no record of a page that is gone.
    for pattern in _PATTERNS:
        for path in glob.glob(os.path.join(glob.escape(run_dir), pattern)):
            os.unlink(path)
            swept.append(path)
    OpenedDirectories(run_dir).sweep()
    swept += sweep_named_memory(name, is_asked_for)
    if swept:
        log_event("node.sweep", {"removed": ",".join(swept)}, logging.DEBUG)


def is_asked_for(name: str) -> bool:
    """Whether the run directory of a counters page's node still names the page: then `quiver status` shows what is in it."""
    try:
        page = CountersPage.attach(name)
    except ShmError:
        return False
    try:
        rows = page.read_region(SUPERVISOR_REGION).rows
    finally:
        page.close()
    places = [row.label for row in rows if row.kind == RUN_DIRECTORY_ROW]
    return any(recorded_name(os.path.join(place, NODE_RECORD)) == name for place in places)
