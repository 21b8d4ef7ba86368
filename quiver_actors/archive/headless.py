"""What lies beside the head of a manifest, as far as it tells that the head is gone, or that an earlier one was put back.

Each part and each state has in its key the commit that it was written for, which is at most one above that of the head.
"""

from __future__ import annotations

from quiver_actors.archive.keys import PARTS_NAME, STATES_NAME, commit_of_key, head_key
from quiver_actors.errors import UsageError
from quiver_actors.store.objects.errors import ArchiveRefused
from quiver_actors.store.objects.object_store import ObjectStore


def newest_commit(store: ObjectStore, node: str) -> int:
    """The highest commit for which a part of the manifest or a state was written; -1: there is none. Raises ArchiveError."""
    names = (f"{node}/{PARTS_NAME}", f"{node}/{STATES_NAME}")
    return max((commit_of_key(info.key) for name in names for info in store.children(name)), default=-1)


def is_earlier(commit: int, newest: int) -> bool:
    """Whether a head of that commit was put back: a later one has named what lies beside it.

    Args:
        newest: `newest_commit` from before the head was read.
    """
    return newest > commit + 1


def check_newest(store: ObjectStore, node: str, commit: int, newest: int) -> None:
    """Raise ArchiveRefused if `is_earlier`: what later heads have named would be lost, and its numbers be given to other segments."""
    if is_earlier(commit, newest):
        raise ArchiveRefused(
            f"{store.url}: the head of node {node}'s archive, {head_key(node)}, is of commit {commit}, and parts of commit {newest} lie "
            "beside it: somebody has put an earlier one back. Bring back the newest one, or build it again with `quiver archive repair`"
        )


def no_archive(store: ObjectStore, node: str) -> UsageError:
    """The error for a reader that finds no head. Raises ArchiveError."""
    if newest_commit(store, node) >= 0:
        return UsageError(
            f"{store.url}: the head of node {node!r}'s archive, {head_key(node)}, is gone, and the rest of it is there: bring the head "
            "back, or build it again with `quiver archive repair`"
        )
    known = ", ".join(store.directories("")) or "none"
    return UsageError(f"{store.url} has no archive of node {node!r}; nodes there: {known}")
