"""Creating an object whose key belongs to its content, so that the same call may be made again after an error."""

from __future__ import annotations

from quiver_actors.store.objects.errors import ArchiveUnavailable
from quiver_actors.store.objects.object_store import Metadata, ObjectExists, Version


def create_once(store: Metadata, key: str, content: bytes) -> Version:
    """Create an object under a key that belongs to this content alone; one that is there with it counts as written.

    Raises:
        ObjectExists: the key is taken by another content. ArchiveError: the store did not take it.
    """
    try:
        return store.create(key, content)
    except (ObjectExists, ArchiveUnavailable):
        found = store.get(key)
        if found is None or found.content != content:
            raise
        return found.version
