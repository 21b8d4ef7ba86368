"""Where decision files are: below a directory of this machine, or on any file system that Arrow knows.

Owner: any process; nothing is kept open between two calls, but the connection of an Arrow file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from quiver_actors.disk.exclusive import create_once, remove_once
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.disk.protocol import Disk, read_whole
from quiver_actors.errors import DiskError, UsageError

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

_DECISION_BYTES_MAX = 256 << 20
_DIRECTORY_MODE = 0o750
"""Drivers and workers may be different users of one group."""


class DecisionFiles(Protocol):
    """Files of one directory. Raises OSError or DiskError."""

    is_exclusive: bool
    """Of two that create the same file exactly one succeeds."""

    def read(self, name: str) -> bytes | None:
        """What is there, from then on durable; None if nothing is."""

    def create(self, name: str, content: bytes) -> None:
        """Make it unless it is there."""

    def remove(self, name: str) -> None: ...


class LocalFiles:
    """A directory of one disk, on which they are made by link(2)."""

    is_exclusive = True

    def __init__(self, directory: str, disk: Disk | None = None, token: str = "") -> None:
        """
        Args:
            directory: an absolute path.
            disk: None: the real file system, from its root on.
            token: part of the names of temporary files; empty: another one each time.
        """
        self._directory = directory
        self._disk = disk
        self._token = token

    def read(self, name: str) -> bytes | None:
        with self._opened() as disk:
            try:
                content = read_whole(disk, f"{self._directory}/{name}", _DECISION_BYTES_MAX)
            except DiskError as error:
                if error.errno == errno.ENOENT:
                    return None
                raise
            # Who made it may have died before its name was durable, and whoever reads it acts on it.
            disk.sync_directory(self._directory)
            return content

    def create(self, name: str, content: bytes) -> None:
        with self._opened() as disk:
            create_once(disk, self._directory, name, content, self._token or secrets.token_hex(8))

    def remove(self, name: str) -> None:
        with self._opened() as disk:
            remove_once(disk, self._directory, name)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Disk]:
        if self._disk is not None:
            yield self._disk
            return
        disk = PosixDisk("/", directory_mode=_DIRECTORY_MODE)
        try:
            yield disk
        finally:
            disk.close()


class ArrowFiles:
    is_exclusive = False

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._opened: tuple[pa_fs.FileSystem, str] | None = None

    def _open(self) -> tuple[pa_fs.FileSystem, str]:
        """Imported late: sinks are planned in processes that must start fast."""
        if self._opened is None:
            import pyarrow as pa
            import pyarrow.fs as pa_fs

            try:
                self._opened = pa_fs.FileSystem.from_uri(self._uri)
            except pa.ArrowException as error:
                raise OSError(errno.EINVAL, f"{self._uri} is no file system that pyarrow.fs knows: {error}") from error
        return self._opened

    def read(self, name: str) -> bytes | None:
        files, root = self._open()
        try:
            with files.open_input_stream(f"{root}/{name}") as stream:
                return bytes(stream.read(_DECISION_BYTES_MAX))
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> None:
        files, root = self._open()
        if self.read(name) is not None:
            return
        files.create_dir(root, recursive=True)
        # Under its name only when it is whole: a reader must never see half a decision.
        temporary = f"{root}/.{name}.{secrets.token_hex(8)}.tmp"
        with files.open_output_stream(temporary) as stream:
            stream.write(content)
        if self.read(name) is None:
            files.move(temporary, f"{root}/{name}")
        else:
            files.delete_file(temporary)

    def remove(self, name: str) -> None:
        files, root = self._open()
        if self.read(name) is not None:
            files.delete_file(f"{root}/{name}")


def files_at(location: str) -> DecisionFiles:
    """
    Raises:
        UsageError: it is empty, or a relative path, which would be another place in another process.
    """
    parts = urlsplit(location)
    path = unquote(parts.path) if parts.scheme == "file" else location
    if parts.scheme and parts.scheme != "file":
        return ArrowFiles(location.rstrip("/"))
    if not os.path.isabs(path):
        raise UsageError(f"decision log {location!r}: expected an absolute path or a URI such as s3://bucket/decisions")
    return LocalFiles(path.rstrip("/") or "/")
