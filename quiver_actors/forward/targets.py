"""Where `ParquetFiles` writes: a local directory, or a prefix of an object store."""

from __future__ import annotations

import os
from typing import Protocol
from urllib.parse import unquote, urlsplit

from quiver_actors.errors import ConfigError
from quiver_actors.forward.directory_files import DirectoryFiles
from quiver_actors.forward.slot_files import SlotFiles


class Target(Protocol):
    """Opens the files of each slot."""

    def slot(self, name: str) -> SlotFiles:
        """Open the files of one slot. Raises OSError, ArchiveError, InvalidFormat."""

    def close(self) -> None:
        """Give connections back. Idempotent."""


class LocalTarget:
    """A directory with a subdirectory for each slot."""

    def __init__(self, path: str) -> None:
        """Make the directory. Raises OSError."""
        self._path = path
        os.makedirs(path, exist_ok=True)

    def slot(self, name: str) -> SlotFiles:
        """Open a subdirectory."""
        return DirectoryFiles(os.path.join(self._path, name))

    def close(self) -> None:
        """Do nothing: nothing is open but the slots."""


class StoreTarget:
    """A prefix of an object store with a further one for each slot."""

    def __init__(self, url: str) -> None:
        """Open the store; nothing is sent yet. Raises ConfigError."""
        # Only who writes to an object store loads what belongs to it.
        from quiver_actors.store.objects.opening import open_store

        self._store = open_store(url, name="the target")

    def slot(self, name: str) -> SlotFiles:
        """Open the prefix of one slot."""
        from quiver_actors.forward.object_files import ObjectFiles

        return ObjectFiles(self._store, name)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def open_target(target: str | os.PathLike[str]) -> Target:
    """Open a directory by its path or `file:///` URL, or an object store by its URL.

    Raises:
        ConfigError: the URL names no store, or the extra `archive` is not installed.
        OSError: the directory cannot be made.
    """
    if not isinstance(target, str) or "://" not in target:
        return LocalTarget(os.path.abspath(target))
    parts = urlsplit(target)
    if parts.scheme != "file":
        return StoreTarget(target)
    if parts.netloc or not parts.path.startswith("/"):
        raise ConfigError(f"{target!r} names no directory of this host: expected file:///an/absolute/path")
    return LocalTarget(unquote(parts.path))
