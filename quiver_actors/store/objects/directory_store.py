"""A directory of a file system as an object store: durable on return, through the disk seam.

    <root>/<key>                     the objects
    <root>/<first part>/.tmp/<hex>   objects that are being written
    <root>/<first part>/.lock        held while an object is replaced
    <root>/<first part>/.turn        held by who has that lock next

A key of one part has the three in the root itself.

A create links a synced file to its name, which only one caller can; a replacement compares and renames under the lock. The file system
must keep both promises among all who use the directory: local ones do, NFS from version 4 on. The lock goes to the next one in turn: who
has just had it queues behind those who wait. The kernel takes both from a process that dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterable, Iterator, Sequence

import xxhash

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import DirectoryLock, Disk
from quiver_actors.store.objects.errors import ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import (
    Found,
    ObjectChanged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    Version,
)

LOCK_SECONDS = 30.0
_READ_BYTES = 1 << 20
_WAIT_SECONDS_MIN = 0.001
_TEMPORARY = ".tmp"
_LOCK = ".lock"
_TURN = ".turn"
_NO_KEYS = frozenset([_TEMPORARY, _LOCK, _TURN, "lost+found"])
"""Names that are no parts of keys: our own, and what a file system has in its root, which only root may read."""
_FINAL_ERRNOS = frozenset([errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ELOOP])


class DirectoryStore:
    """See `object_store.ObjectStore`. Takes ownership of nothing but what it makes; `close` closes the disk where it can be closed."""

    def __init__(self, disk: Disk, url: str) -> None:
        self.url = url
        self._disk = disk

    def get(self, key: str) -> Found | None:
        """Read the file; None where there is none."""
        try:
            with _explained(key):
                content = self._read(key)
        except ObjectMissing:
            return None
        return Found(content, Version(_etag(content)))

    def create(self, key: str, content: bytes) -> Version:
        """Write the object unless its name is taken. Raises ObjectExists."""
        with _explained(key):
            temporary = self._write(key, [content])
            try:
                self._disk.link(temporary, key)
            except DiskError as error:
                if error.errno == errno.EEXIST:
                    raise ObjectExists(f"{self.url}: object {key} is there already") from error
                raise
            finally:
                self._disk.unlink(temporary)
            self._disk.sync_directory(_parent(key))
        return Version(_etag(content))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Write the object if it has that version. Raises ObjectChanged."""
        with _explained(key):
            # Also before the lock: whoever came too late does not wait for those who did not.
            self._check_version(key, version)
        with _explained(key), self._locked(key):
            self._check_version(key, version)
            self._disk.rename(self._write(key, [content]), key)
            self._disk.sync_directory(_parent(key))
        return Version(_etag(content))

    def _check_version(self, key: str, version: Version) -> None:
        found = self.get(key)
        if found is None or found.version != version:
            raise ObjectChanged(f"{self.url}: object {key} was changed by somebody else")

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        """Write the object, whatever has its name."""
        digest = xxhash.xxh3_128()
        with _explained(key):
            self._disk.rename(self._write(key, _digested(parts, digest)), key)
            self._disk.sync_directory(_parent(key))
        return digest.hexdigest()

    def head(self, key: str) -> ObjectInfo | None:
        """Return the size of the file; None where there is none."""
        try:
            with _explained(key):
                return self._info(key)
        except ObjectMissing:
            return None

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Read ranges of the file. Raises ObjectMissing."""
        with _explained(key):
            file = self._disk.open_read(key)
            try:
                return [file.read(end - start, start) for start, end in ranges]
            finally:
                file.close()

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield a range of the file in pieces. Raises ObjectMissing."""
        with _explained(key):
            file = self._disk.open_read(key)
            try:
                for offset in range(start, end, _READ_BYTES):
                    yield file.read(min(_READ_BYTES, end - offset), offset)
            finally:
                file.close()

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the files below a directory."""
        with _explained(prefix):
            for key in self._files(prefix.strip("/")):
                with contextlib.suppress(DiskError):  # deleted since it was listed
                    yield self._info(key)

    def children(self, prefix: str) -> list[ObjectInfo]:
        """The files in a directory."""
        found = []
        with _explained(prefix):
            for name in self._names(prefix.strip("/")):
                path = _joined(prefix, name)
                if not self._is_directory(path):
                    with contextlib.suppress(DiskError):  # deleted since it was listed
                        found.append(self._info(path))
        return found

    def directories(self, prefix: str) -> list[str]:
        """The names of the directories in a directory."""
        with _explained(prefix):
            return [name for name in self._names(prefix.strip("/")) if self._is_directory(_joined(prefix, name))]

    def delete(self, key: str) -> None:
        """Unlink the file."""
        with _explained(key):
            self._disk.unlink(key)
            if self._disk.exists(_parent(key)):
                self._disk.sync_directory(_parent(key))

    def clear_unfinished(self, prefix: str) -> None:
        """Unlink what killed writers of that prefix have left."""
        directory = f"{prefix.partition('/')[0]}/{_TEMPORARY}"
        with _explained(prefix):
            for name in self._disk.list_directory(directory):
                self._disk.unlink(f"{directory}/{name}")

    def close(self) -> None:
        """Close the disk."""
        close = getattr(self._disk, "close", None)
        if close is not None:
            close()

    # --- below ---------------------------------------------------------------------------------------------------------------

    def _write(self, key: str, parts: Iterable[bytes | memoryview]) -> str:
        """Write and sync a file without its final name, and make the directory of that name. Returns the path."""
        temporary = f"{_temporary_directory(key)}/{os.urandom(12).hex()}"
        for directory in {_temporary_directory(key), _parent(key)} - {"."}:
            self._disk.make_directory(directory)
        file = self._disk.create(temporary)
        try:
            offset = 0
            for part in parts:
                file.write([part], offset)
                offset += len(part)
            file.fdatasync()
        except BaseException:
            with contextlib.suppress(DiskError):
                self._disk.unlink(temporary)
            raise
        finally:
            file.close()
        return temporary

    def _read(self, key: str) -> bytes:
        file = self._disk.open_read(key)
        try:
            return file.read(file.size(), 0)
        finally:
            file.close()

    def _info(self, key: str) -> ObjectInfo:
        file = self._disk.open_read(key)
        try:
            return ObjectInfo(key, file.size(), "")
        finally:
            file.close()

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        deadline = time.monotonic() + LOCK_SECONDS
        turn = self._lock(_beside(key, _TURN), deadline)
        try:
            lock = self._lock(_beside(key, _LOCK), deadline)
        finally:
            turn.release()
        try:
            yield
        finally:
            lock.release()

    def _lock(self, path: str, deadline: float) -> DirectoryLock:
        lock = self._disk.lock(path, max(_WAIT_SECONDS_MIN, deadline - time.monotonic()))
        if lock is None:
            raise ArchiveUnavailable(f"{self.url}: {path} was held by others for {LOCK_SECONDS:.0f} s: try again")
        return lock

    def _files(self, directory: str) -> Iterator[str]:
        for name in self._names(directory):
            path = _joined(directory, name)
            if self._is_directory(path):
                yield from self._files(path)
            else:
                yield path

    def _names(self, directory: str) -> list[str]:
        return [name for name in self._disk.list_directory(directory or ".") if name not in _NO_KEYS]

    def _is_directory(self, path: str) -> bool:
        try:
            self._disk.list_directory(path)
        except DiskError as error:
            if error.errno == errno.ENOTDIR:
                return False
            raise
        return True


def _digested(parts: Iterable[bytes | memoryview], digest: xxhash.xxh3_128) -> Iterator[bytes | memoryview]:
    for part in parts:
        digest.update(part)
        yield part


def _etag(content: bytes) -> str:
    # By content alone: a file's number and time may be those of an earlier version again.
    return xxhash.xxh3_128_hexdigest(content)


def _parent(key: str) -> str:
    return key.rpartition("/")[0] or "."


def _joined(directory: str, name: str) -> str:
    directory = directory.strip("/")
    return f"{directory}/{name}" if directory else name


def _temporary_directory(key: str) -> str:
    return _beside(key, _TEMPORARY)


def _beside(key: str, name: str) -> str:
    """The path of what belongs to all keys with the same first part."""
    first, slash, _ = key.partition("/")
    return f"{first}/{name}" if slash else name


@contextlib.contextmanager
def _explained(key: str) -> Iterator[None]:
    try:
        yield
    except DiskError as error:
        if error.errno == errno.ENOENT:
            raise ObjectMissing(f"there is no object {key}: {error}") from error
        kind = ArchiveRefused if error.errno in _FINAL_ERRNOS else ArchiveUnavailable
        raise kind(f"object {key} of the archive's directory: {error}") from error
