"""Where decision files are: below a directory of this machine, or on any file system that Arrow knows.

A file is made under a temporary name that tells when. What a killed process leaves of it means nothing, and is deleted before the first
decision that somebody else makes an hour later.

Owner: any process; nothing is kept open between two calls, but the connection of an Arrow file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from quiver_actors.disk.exclusive import create_once, remove_once, sweep, temporary_name
from quiver_actors.disk.posix import PosixDisk
from quiver_actors.disk.protocol import Disk, read_whole
from quiver_actors.errors import DiskError, UsageError
from quiver_actors.file_systems import open_uri
from quiver_actors.transactions.claims import PATIENCE, Patience, agree

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

CLAIMS = "_claims"
"""Directory of the claims to decisions that were made through Arrow."""
_DECISION_BYTES_MAX = 256 << 20
_DIRECTORY_MODE = 0o750
"""Drivers and workers may be different users of one group."""
LEFT_OVER_AFTER_SECONDS = 3600
"""Who has not made its decision under a temporary name by then is not going to: at worst it has to try again."""
_TEMPORARY = re.compile(r"\..+\.([0-9a-f]{8,16})-[0-9a-f]{16}\.tmp")


def _new_token() -> str:
    return f"{int(time.time()):08x}-{secrets.token_hex(8)}"


def is_left_over(name: str) -> bool:
    """Whether that is a temporary file of somebody who is gone."""
    match = _TEMPORARY.fullmatch(name)
    return match is not None and int(match[1], 16) + LEFT_OVER_AFTER_SECONDS < time.time()


class DecisionFiles(Protocol):
    """Files of one directory. Raises OSError or DiskError."""

    def read(self, name: str) -> bytes | None:
        """What is there, from then on durable; None if nothing is."""

    def create(self, name: str, content: bytes) -> None:
        """Make it unless it is there. Of any number that do so at the same time one succeeds, and nobody returns before that."""

    def remove(self, name: str) -> None: ...


class LocalFiles:
    """A directory of one disk, on which they are made by link(2)."""

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
        self._has_swept = False

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
            if not self._has_swept:
                sweep(disk, self._directory, is_left_over)
                self._has_swept = True
            create_once(disk, self._directory, name, content, self._token or _new_token())

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
    """A directory on any file system that Arrow knows. None of them makes files exclusively: who decides at the same time agrees first."""

    def __init__(
        self, uri: str, *, opened: tuple[pa_fs.FileSystem, str] | None = None, patience: Patience = PATIENCE
    ) -> None:
        """
        Args:
            opened: the file system and the path on it, for simulations; None: those of the URI.
        """
        self._uri = uri
        self._opened = opened
        self._patience = patience
        self._has_swept = False

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
        agreed = agree(files, f"{root}/{CLAIMS}/{name}", content, lambda: self.read(name), self._patience)
        if self.read(name) is not None:
            return
        self._sweep(files, root)
        # Under its name only when it is whole: a reader must never see half of it. Whoever does the same moves the same content there.
        temporary = f"{root}/{temporary_name(name, _new_token())}"
        with files.open_output_stream(temporary) as stream:
            stream.write(agreed)
        files.move(temporary, f"{root}/{name}")

    def _sweep(self, files: pa_fs.FileSystem, root: str) -> None:
        if self._has_swept:
            return
        import pyarrow.fs as pa_fs

        self._has_swept = True
        for info in files.get_file_info(pa_fs.FileSelector(root, allow_not_found=True)):
            if is_left_over(info.base_name):
                with contextlib.suppress(OSError):  # somebody else was first
                    files.delete_file(info.path)

    def remove(self, name: str) -> None:
        import pyarrow.fs as pa_fs

        files, root = self._open()
        for path in (f"{root}/{CLAIMS}/{name}", f"{root}/{name}"):
            kind = files.get_file_info(path).type
            if kind == pa_fs.FileType.Directory:
                files.delete_dir(path)
            elif kind == pa_fs.FileType.File:
                files.delete_file(path)

    def _open(self) -> tuple[pa_fs.FileSystem, str]:
        if self._opened is None:
            self._opened = open_uri(self._uri)
        return self._opened


def files_at(location: str) -> DecisionFiles:
    """
    Raises:
        UsageError: it is empty, or a relative path, which would be another place in another process.
    """
    parts = urlsplit(location)
    path = unquote(parts.path) if parts.scheme == "file" else location
    if parts.scheme and parts.scheme != "file":
        return ArrowFiles(location)
    if not os.path.isabs(path):
        raise UsageError(f"decision log {location!r}: expected an absolute path or a URI such as s3://bucket/decisions")
    return LocalFiles(path.rstrip("/") or "/")
