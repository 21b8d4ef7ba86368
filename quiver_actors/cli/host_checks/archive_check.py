"""Tries out whether a node's archive can be written, with the very calls that an archiver begins with."""

from __future__ import annotations

import contextlib

from quiver_actors.archive.ownership import prove_conditional_puts
from quiver_actors.base.config import NodeSettings
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import QuiverError
from quiver_actors.store.objects.opening import open_store


def archive_error(settings: NodeSettings) -> str:
    """Write, replace and delete a small object where the archive is or will be; the reason if that fails, empty if not."""
    archive = settings.archive
    if not archive.url:
        return ""
    try:
        seconds = archive.request_timeout_ns / SECOND_NS
        store = open_store(archive.url, timeout_seconds=seconds, is_single_writer=archive.single_writer)
        with contextlib.closing(store):
            prove_conditional_puts(store, settings.node_name())
    except QuiverError as error:
        return str(error)
    return ""
