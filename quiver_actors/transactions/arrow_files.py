"""Decision files on any file system that Arrow knows, made exclusively by agreement."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

from quiver_actors.base.file_systems import open_uri
from quiver_actors.store.disk.exclusive import temporary_name
from quiver_actors.transactions.claims import PATIENCE, Patience, agree
from quiver_actors.transactions.decision_files import DECISION_BYTES_MAX, is_left_over, new_token
from quiver_actors.transactions.log_record import CLAIMED, CLAIMS, RECORD, how_made

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs


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
        """Return the content of a decision file, or None if there is none."""
        files, root = self._open()
        try:
            with files.open_input_stream(f"{root}/{name}") as stream:
                return bytes(stream.read(DECISION_BYTES_MAX))
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes) -> None:
        """Write a decision file unless it exists; when several processes try, all end with one agreed content."""
        files, root = self._open()
        if self._found(name) is not None:
            return
        # Looked for again behind the own claim: only then does it keep others from settling the log otherwise.
        agreed = agree(files, f"{root}/{CLAIMS}/{name}", content, lambda: self._found(name), self._patience)
        if self.read(name) is not None:
            return
        self._sweep(files, root)
        # Under its name only when it is whole: a reader must never see half of it. Whoever does the same moves the same content there.
        temporary = f"{root}/{temporary_name(name, new_token())}"
        with files.open_output_stream(temporary) as stream:
            stream.write(agreed)
        files.move(temporary, f"{root}/{name}")

    def _found(self, name: str) -> bytes | None:
        """The decision, if it is made. Raises OSError: it is not, and claims must not make it."""
        found = self.read(name)
        record = self.read(RECORD) if found is None else None
        if record is not None and how_made(record) != CLAIMED:
            raise OSError(
                errno.ENOTSUP,
                "its decisions are made by conditional puts, which Arrow does not have: give the plain URL, without a user and options, "
                "and install 'quiver-actors[archive]'",
            )
        return found

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
        """Delete a decision file and the claims that led to it."""
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
