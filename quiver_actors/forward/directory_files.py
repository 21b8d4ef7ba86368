"""The Parquet files of one slot in a local directory.

Guarantees:
- A file appears whole or not at all, and is durable before its bundles are acknowledged: temporary file, fsync, rename, directory fsync.
- No bundle is twice in a directory, whatever is killed when, also with several processes that write there: before a file gets its name,
  under the directory's lock, it is looked up whether one of its bundles is in another file by then; if so it is written again without it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.errors import InvalidFormat
from quiver_actors.forward.bundle_files import (
    RUNS_KEY,
    BundleIndex,
    Origin,
    Place,
    Run,
    decode_runs,
    file_name,
    runs_of,
)
from quiver_actors.forward.parts import Part, missing_parts, row_count, verify, write_parquet
from quiver_actors.forward.slot_files import TEMPORARY_PREFIX

LOCK_NAME = ".quiver.lock"


class NamedFiles:
    """The names of the files in a directory, and what their metadata says: see `bundle_files.Listing`."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        """List the directory. Raises OSError."""
        return os.listdir(self._directory)

    def runs(self, name: str) -> list[Run]:
        """Read which bundles a file holds. Raises InvalidFormat, OSError."""
        path = os.path.join(self._directory, name)
        try:
            metadata = pq.read_metadata(path).metadata or {}
        except pa.ArrowInvalid as error:
            raise InvalidFormat(f"{path} is not a Parquet file: {error}") from error
        return decode_runs(path, metadata.get(RUNS_KEY))


class DirectoryFiles:
    """See `slot_files.SlotFiles`."""

    def __init__(self, path: str) -> None:
        """Make the directory and remove temporary files whose writers are dead. Raises OSError."""
        os.makedirs(path, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self._path = path
        self._index = BundleIndex(NamedFiles(path))
        self._lock_fd = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._is_open = True
        _sync_directory(os.path.dirname(path))
        self._sweep()

    def close(self) -> None:
        """Close the descriptors. Idempotent."""
        if self._is_open:
            self._is_open = False
            os.close(self._fd)
            os.close(self._lock_fd)

    def write(self, origin: Origin, parts: Sequence[Part], compression: str) -> None:
        """Write a file of the parts that are missing, and again without those that another process has written meanwhile."""
        self._index.refresh()
        missing = missing_parts(self._index, origin, parts)
        while missing:
            with self.written(missing, compression) as temporary, self._locked():
                self._index.refresh()
                found = missing_parts(self._index, origin, missing.values())
                if len(found) == len(missing):
                    self._publish(temporary, origin, missing)
                    break
            missing = found
        if len(missing) < len(parts):
            # The process that wrote them may have died before their names were durable; they are about to be acknowledged.
            os.fsync(self._fd)
            self.counts["skipped"] += len(parts) - len(missing)

    @contextlib.contextmanager
    def written(self, parts: Mapping[Place, Part], compression: str) -> Iterator[str]:
        """A complete and durable temporary file, locked by this process; removed at the end if it is still there."""
        path = os.path.join(self._path, f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(4).hex()}")
        with self._locked():
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            write_parquet(path, parts, compression)
            # What was written is what was stored only if it still is.
            verify(parts.values())
            os.fsync(lock)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.close(lock)

    def _publish(self, temporary: str, origin: Origin, parts: Mapping[Place, Part]) -> None:
        path = os.path.join(self._path, file_name(origin, runs_of(parts)))
        os.rename(temporary, path)
        os.fsync(self._fd)
        self.counts.update(files=1, rows=row_count(parts), bytes=os.stat(path).st_size)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the directory's lock for a moment, so that no other process creates, names or sweeps files."""
        fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _sweep(self) -> None:
        with self._locked():
            for name in os.listdir(self._path):
                if name.startswith(TEMPORARY_PREFIX):
                    _unlink_if_abandoned(os.path.join(self._path, name))


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unlink_if_abandoned(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return  # its writer lives
    finally:
        os.close(descriptor)
