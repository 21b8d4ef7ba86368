"""Opens the decision files at the location of a decision log: the files of one directory."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

from quiver_actors.errors import UsageError
from quiver_actors.store.objects.locations import goes_by_store
from quiver_actors.transactions.decision_files import DecisionFiles


def files_at(location: str) -> DecisionFiles:
    """The files of the decision log at `location`, an absolute path or a URI.

    Raises:
        UsageError: it is empty, or a relative path, which would be another place in another process.
    """
    parts = urlsplit(location)
    path = unquote(parts.path) if parts.scheme == "file" else location
    if goes_by_store(location):
        from quiver_actors.transactions.store_files import StoreFiles

        return StoreFiles(location)
    if parts.scheme and parts.scheme != "file":
        # Safe beside processes that have the client: the record of the log tells both how its decisions are made.
        from quiver_actors.transactions.arrow_files import ArrowFiles

        return ArrowFiles(location)
    if not os.path.isabs(path):
        raise UsageError(f"decision log {location!r}: expected an absolute path or a URI such as s3://bucket/decisions")
    # A client that makes no decisions loads nothing that writes to a disk.
    from quiver_actors.transactions.local_files import LocalFiles

    return LocalFiles(path.rstrip("/") or "/")
