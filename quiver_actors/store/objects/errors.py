"""Errors of the archive, by the decision that they ask of the caller."""

from __future__ import annotations

from quiver_actors.errors import QuiverError


class ArchiveError(QuiverError):
    """The archive's object store did not do what was asked of it. Nothing that is stored on the node is touched by that."""

    code = "archive"


class ArchiveUnavailable(ArchiveError):
    """The object store cannot be reached, is overloaded, or its answer was lost. The archiver tries again by itself."""

    code = "archive_unavailable"
    retriable = True


class ArchiveRefused(ArchiveError):
    """The object store refuses: no such bucket, no permission, no credentials, or it lacks conditional puts. An operator must act."""

    code = "archive_refused"


class ArchiveFenced(ArchiveError):
    """The archive of a node of this name belongs to another data directory: this one writes nothing there."""

    code = "archive_fenced"
