"""Entries of a directory of nodes: small objects of an object store, or files of any file system that Arrow can write.

Both have the same names, so that it does not matter which of the two a node or a query uses.
"""

from __future__ import annotations

import contextlib
import errno
import os
from functools import partial
from typing import Protocol

from pyarrow import fs

from quiver_actors.base.file_systems import open_uri, shown
from quiver_actors.errors import ConfigError, DiskError
from quiver_actors.store.objects.locations import goes_by_store
from quiver_actors.store.objects.object_store import ObjectChanged, ObjectExists, ObjectStore
from quiver_actors.store.objects.patience import PATIENCE, Patience, patiently

DIRECTORY_MARK = "_nodes.json"
"""An object that tells a directory without nodes from a name that was mistyped. No node has this name."""
_NOT_ENTRIES = (".", "_")
_NO_DIRECTORY = "there is no such directory of nodes"


class Entries(Protocol):
    """The entries of one directory. Methods raise DiskError or ArchiveError."""

    def write(self, name: str, content: bytes) -> None:
        """Write or replace an entry; nobody reads half of it."""

    def remove(self, name: str) -> None:
        """Remove an entry, if it is there. Raises DiskError: there is no such directory."""

    def contents(self, suffix: str) -> list[bytes]:
        """Return the content of each entry whose name ends so; none where there is no directory."""


def entries_at(uri: str) -> Entries:
    """The entries at a path or URI; an object store is not asked yet. Raises ConfigError: no file system that Arrow knows."""
    if goes_by_store(uri):
        from quiver_actors.store.objects.opening import open_store

        return StoreEntries(open_store(uri, name="the directory of nodes"))
    try:
        if "://" in uri or uri.startswith("file:"):
            return FileEntries(*open_uri(uri))
        return FileEntries(fs.LocalFileSystem(), os.path.abspath(uri))
    except OSError as error:
        raise ConfigError(f"node directory {shown(uri)!r} cannot be used: {error}") from error


class StoreEntries:
    """Objects of a store, replaced by compare-and-swap: of two that announce one name at once, one comes after the other."""

    def __init__(self, store: ObjectStore, *, patience: Patience = PATIENCE) -> None:
        """Borrow the store."""
        self._store = store
        self._patience = patience

    def write(self, name: str, content: bytes) -> None:
        """Create the object, or replace the version that is there. A lost answer does no harm: the next try finds what is there."""
        patiently(self._make_mark, self._patience)
        while not patiently(lambda: self._is_written(name, content), self._patience):
            continue  # somebody else has changed it meanwhile

    def remove(self, name: str) -> None:
        """Delete the object."""
        if patiently(lambda: self._store.get(name), self._patience) is not None:
            patiently(self._make_mark, self._patience)
            patiently(lambda: self._store.delete(name), self._patience)
        elif not patiently(lambda: any(True for _ in self._store.objects("")), self._patience):
            raise DiskError("leave", f"{shown(self._store.url)}/{name}", errno.ENOENT, _NO_DIRECTORY)

    def contents(self, suffix: str) -> list[bytes]:
        """Read the objects, each as it is now."""
        keys = [info.key for info in patiently(lambda: self._store.children(""), self._patience)]
        wanted = [key for key in keys if key.endswith(suffix) and not key.startswith(_NOT_ENTRIES)]
        found = [patiently(partial(self._store.get, key), self._patience) for key in wanted]
        return [each.content for each in found if each is not None]  # others have left since they were listed

    def _make_mark(self) -> None:
        with contextlib.suppress(ObjectExists):
            self._store.create(DIRECTORY_MARK, b"{}")

    def _is_written(self, name: str, content: bytes) -> bool:
        found = self._store.get(name)
        if found is not None and found.content == content:
            return True
        try:
            if found is None:
                self._store.create(name, content)
            else:
                self._store.replace(name, content, found.version)
        except (ObjectExists, ObjectChanged):
            return False
        return True


class FileEntries:
    """Files of a directory of a file system."""

    def __init__(self, files: fs.FileSystem, directory: str) -> None:
        self._files = files
        self._directory = directory

    def write(self, name: str, content: bytes) -> None:
        """Write the file aside and move it to its name."""
        path = f"{self._directory}/{name}"
        temporary = f"{self._directory}/.{name.rpartition('.')[0]}.{os.getpid()}.tmp"
        try:
            self._files.create_dir(self._directory, recursive=True)
            with self._files.open_output_stream(temporary) as file:
                file.write(content)
            self._files.move(temporary, path)
        except OSError as error:
            raise DiskError("announce", path, error.errno or 0, str(error)) from error

    def remove(self, name: str) -> None:
        """Delete the file."""
        path = f"{self._directory}/{name}"
        try:
            if self._files.get_file_info(path).type is not fs.FileType.NotFound:
                self._files.delete_file(path)
            elif self._files.get_file_info(self._directory).type is not fs.FileType.Directory:
                raise FileNotFoundError(errno.ENOENT, _NO_DIRECTORY)
        except OSError as error:
            raise DiskError("leave", path, error.errno or 0, str(error)) from error

    def contents(self, suffix: str) -> list[bytes]:
        """Read the files."""
        found = []
        try:
            for info in self._files.get_file_info(fs.FileSelector(self._directory, allow_not_found=True)):
                if info.is_file and info.base_name.endswith(suffix) and not info.base_name.startswith(_NOT_ENTRIES):
                    # One that has left since it was listed is out.
                    with contextlib.suppress(FileNotFoundError), self._files.open_input_file(info.path) as file:
                        found.append(bytes(file.read()))
        except OSError as error:
            raise DiskError("read", self._directory, error.errno or 0, str(error)) from error
        return found
