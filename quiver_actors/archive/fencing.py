"""Errors of whoever finds that the archive of a node is another one's, or has no head any more."""

from __future__ import annotations

from quiver_actors.archive.keys import head_key
from quiver_actors.archive.manifest import Owner
from quiver_actors.store.objects.errors import ArchiveFenced


def fenced(url: str, node: str, owner: Owner) -> ArchiveFenced:
    """The error for a data directory that is not the owner; `owner` is."""
    return ArchiveFenced(
        f"{url}: the archive of node {node} belongs to data directory {owner.directory} (epoch {owner.epoch}), not to this data "
        "directory: give this node another name (`node` in its configuration), or let it take over with `quiver archive take-over`"
    )


def head_gone(url: str, node: str) -> ArchiveFenced:
    """The error where the head of an archive is gone that was there."""
    return ArchiveFenced(
        f"{url}: the head of node {node}'s archive, {head_key(node)}, is gone: was it deleted, is another bucket or directory "
        "mounted there, or was archive.url changed? Bring it back. If it is lost, `quiver archive repair` builds it again from the rest "
        "of the archive, and `quiver archive take-over` lets this data directory continue it"
    )


def begun_by_another(url: str, node: str) -> ArchiveFenced:
    """The error of two data directories that begin an archive under one name at the same moment."""
    return ArchiveFenced(
        f"{url}: another data directory has begun to archive as node {node} at this moment: each node needs its own name"
    )
