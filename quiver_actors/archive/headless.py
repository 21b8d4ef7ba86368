"""What is left of an archive whose manifest has no head, as far as it tells such an archive from none at all."""

from __future__ import annotations

from quiver_actors.archive.keys import PARTS_NAME, STATES_NAME, commit_of_key, head_key
from quiver_actors.errors import UsageError
from quiver_actors.store.objects.object_store import ObjectStore


def newest_commit(store: ObjectStore, node: str) -> int:
    """The highest commit for which a part of the manifest or a state was written; -1: there is none. Raises ArchiveError."""
    names = (f"{node}/{PARTS_NAME}", f"{node}/{STATES_NAME}")
    return max((commit_of_key(info.key) for name in names for info in store.children(name)), default=-1)


def no_archive(store: ObjectStore, node: str) -> UsageError:
    """The error for a reader that finds no head. Raises ArchiveError."""
    if newest_commit(store, node) >= 0:
        return UsageError(
            f"{store.url}: the head of node {node!r}'s archive, {head_key(node)}, is gone, and the rest of it is there: bring the head "
            "back, or build it again with `quiver archive repair`"
        )
    known = ", ".join(store.directories("")) or "none"
    return UsageError(f"{store.url} has no archive of node {node!r}; nodes there: {known}")
