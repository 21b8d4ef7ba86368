"""The errors by which a deliverer says what became of a bundle that it could not deliver."""

from __future__ import annotations

from quiver_actors.errors import QuiverError


class TransientFailure(QuiverError):
    """The destination does not take the bundle now; it is offered again after a delay. Any other exception means the same."""

    code = "transient_failure"
    retriable = True


class PermanentFailure(QuiverError):
    """The destination will never take this bundle; it is rejected: not offered again, and counted as dropped."""

    code = "permanent_failure"


class CommitConflict(TransientFailure):
    """Another process has changed the table since it was looked at: nothing was committed, and the same bundles are tried again."""

    code = "commit_conflict"


class TableMissing(TransientFailure):
    """There is no such table, and the forwarder was told not to make it. Bundles wait until somebody has made it."""

    code = "table_missing"


class OutOfOrder(TransientFailure):
    """An older bundle is not resolved and not here: another consumer of this subscriber has it, or it comes again later.

    A table keeps one position for each core, so nothing is committed before what is older. The bundle waits and is tried again.
    """

    code = "out_of_order"
