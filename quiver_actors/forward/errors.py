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
