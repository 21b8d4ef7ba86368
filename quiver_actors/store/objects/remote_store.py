"""Object stores behind HTTP, and the one in memory, through the `obstore` package. No fork may come after its first use in a process:
the threads of `obstore` are not in the child, where its calls would wait for ever. There they are refused.

Credentials are found where the provider's own tools look: environment, profile, metadata service (docs/archive.md).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import ConfigError
from quiver_actors.store.objects.errors import ArchiveError, ArchiveRefused, ArchiveUnavailable
from quiver_actors.store.objects.object_store import (
    MULTIPART_BYTES,
    PART_BYTES,
    Found,
    ObjectChanged,
    ObjectExists,
    ObjectInfo,
    ObjectMissing,
    Version,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Obstore

CONCURRENT_PARTS = 4
_READ_BYTES = 1 << 20
"""The size of the pieces of a range that is read as it comes. Memory of this size is used again and again; a range as a whole gets new
memory from the kernel, which takes more time than the bytes do (docs/performance.md)."""
_REASON_CHARS = 400
_QUERY = re.compile(r"(?<=[^\s(])\?[^\s),]+")
_memory_stores: dict[str, Obstore] = {}
_used_in: list[int] = []
"""The process that has first sent a request, or the one that this process was forked from."""


def open_remote(url: str, *, timeout_seconds: float, name: str = "archive.url") -> RemoteStore:
    """Open the store of a URL; nothing is sent yet.

    Args:
        name: what the URL is to whoever gave it, for errors.

    Raises:
        ConfigError: the extra `archive` is not installed, or the URL is not one of a store.
    """
    try:
        from obstore.exceptions import BaseError
        from obstore.store import MemoryStore, from_url
    except ImportError as error:
        raise ConfigError(f"{name} needs the package obstore: pip install 'quiver-actors[archive]'") from error
    if url.startswith("memory://"):
        return RemoteStore(_memory_stores.setdefault(url, MemoryStore()), url)
    options: dict[str, Any] = {
        "timeout": f"{timeout_seconds}s",
        "allow_http": url.startswith("http:") or _may_be_plain(),
    }
    # The archiver tries again itself, with its own patience; here only what a connection of the pool has lost.
    retries: dict[str, Any] = {"max_retries": 1}
    try:
        settings: dict[str, Any] = {"client_options": options, "retry_config": retries}
        if url.startswith("s3"):
            settings["checksum_algorithm"] = "SHA256"  # the server compares it with what it got
        return RemoteStore(from_url(url, **settings), url)
    except (BaseError, ValueError) as error:
        raise ConfigError(f"{name} {url!r} cannot be used: {_first_line(error)}") from error


def _may_be_plain() -> bool:
    """Whether the operator has named an endpoint without TLS, as for a server of the same host."""
    names = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return any(os.environ.get(name, "").startswith("http:") for name in names)


class RemoteStore:
    """See `object_store.ObjectStore`."""

    def __init__(self, store: Obstore, url: str) -> None:
        self.url = url
        self._store = store

    def get(self, key: str) -> Found | None:
        """Read the object whole; None where there is none."""
        try:
            with self._explained(key):
                result = self._store.get(key)
                content = bytes(result.bytes())
        except ObjectMissing:
            return None
        return Found(content, _version(result.meta))

    def create(self, key: str, content: bytes) -> Version:
        """Write the object by a put that is conditional on its absence. Raises ObjectExists."""
        with self._explained(key, is_write=True):
            return _version(self._store.put(key, content, mode="create", use_multipart=False))

    def replace(self, key: str, content: bytes, version: Version) -> Version:
        """Write the object by a put that is conditional on its version. Raises ObjectChanged."""
        mode: dict[str, str] = {"e_tag": version.etag}
        if version.number is not None:
            mode["version"] = version.number
        with self._explained(key, is_write=True):
            return _version(self._store.put(key, content, mode=mode, use_multipart=False))  # type: ignore[arg-type]

    def put(self, key: str, parts: Iterable[bytes | memoryview], size_bytes: int) -> str:
        """Write the object, in parts where it is large."""
        with self._explained(key, is_write=True):
            if size_bytes > MULTIPART_BYTES:
                done = self._store.put(key, iter(parts), chunk_size=PART_BYTES, max_concurrency=CONCURRENT_PARTS)
            else:
                done = self._store.put(key, b"".join(parts), use_multipart=False)
            return done["e_tag"] or ""

    def head(self, key: str) -> ObjectInfo | None:
        """Ask for the size and the etag of the object; None where there is none."""
        try:
            with self._explained(key):
                return _info(self._store.head(key))
        except ObjectMissing:
            return None

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
        """Read ranges of the object, several at a time. Raises ObjectMissing."""
        with self._explained(key):
            starts, ends = [start for start, _ in ranges], [end for _, end in ranges]
            return [memoryview(each) for each in self._store.get_ranges(key, starts=starts, ends=ends)]

    def read(self, key: str, start: int, end: int) -> Iterator[bytes | memoryview]:
        """Yield a range of the object as it comes. Raises ObjectMissing."""
        with self._explained(key):
            for piece in self._store.get(key, options={"range": (start, end)}).stream(min_chunk_size=_READ_BYTES):
                yield memoryview(piece)

    def objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects of a prefix."""
        with self._explained(prefix):
            for page in self._store.list(prefix.strip("/") or None):
                yield from map(_info, page)

    def children(self, prefix: str) -> list[ObjectInfo]:
        """The objects of a prefix without a further one."""
        with self._explained(prefix):
            return [_info(each) for each in self._store.list_with_delimiter(prefix.strip("/") or None)["objects"]]

    def directories(self, prefix: str) -> list[str]:
        """The common prefixes below a prefix."""
        with self._explained(prefix):
            found = self._store.list_with_delimiter(prefix.strip("/") or None)
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found["common_prefixes"])

    def delete(self, key: str) -> None:
        """Delete the object."""
        with contextlib.suppress(ObjectMissing), self._explained(key):
            self._store.delete(key)

    def clear_unfinished(self, prefix: str) -> None:
        """Do nothing: such stores show no unfinished uploads; a lifecycle rule of the bucket removes them (docs/archive.md)."""

    def close(self) -> None:
        """Do nothing: connections go with the object."""

    @contextlib.contextmanager
    def _explained(self, key: str, *, is_write: bool = False) -> Iterator[None]:
        from obstore import exceptions

        self._check_process()
        try:
            yield
        except exceptions.AlreadyExistsError as error:
            raise ObjectExists(self._text(key, error)) from error
        except exceptions.PreconditionError as error:
            raise ObjectChanged(self._text(key, error)) from error
        except (FileNotFoundError, exceptions.NotFoundError) as error:
            if is_write:
                raise ArchiveRefused(f"no such bucket or container: {self._text(key, error)}") from error
            raise ObjectMissing(self._text(key, error)) from error
        except (
            exceptions.PermissionDeniedError,
            exceptions.UnauthenticatedError,
            exceptions.NotSupportedError,
            exceptions.InvalidPathError,
            NotImplementedError,
        ) as error:
            raise ArchiveRefused(self._text(key, error)) from error
        except (exceptions.BaseError, OSError, TimeoutError) as error:
            raise _failure(error)(self._text(key, error)) from error

    def _check_process(self) -> None:
        if not _used_in:
            _used_in.append(os.getpid())
        if _used_in[0] != os.getpid() and not self.url.startswith("memory:"):
            raise ArchiveRefused(
                f"{self.url} cannot be used in this process, which was forked from one that had used an object store: start it by spawn, "
                "or as a program of its own"
            )

    def _text(self, key: str, error: Exception) -> str:
        return f"{self.url}, object {key}: {_first_line(error)}"


def _failure(error: Exception) -> type[ArchiveError]:
    """Tell errors that stay from those that pass, where the library does not."""
    text = str(error)
    lasting = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "NoSuchBucket", "InvalidBucketName", "credentials")
    return ArchiveRefused if any(word in text for word in lasting) else ArchiveUnavailable


def _first_line(error: Exception) -> str:
    """What happened, without the queries of URLs: some providers have signatures and tokens there."""
    return _QUERY.sub("?...", str(error).partition("\n")[0])[:_REASON_CHARS]


def _version(found: Any) -> Version:
    return Version(found["e_tag"] or "", found["version"])


def _info(found: Any) -> ObjectInfo:
    modified_unix_ns = int(found["last_modified"].timestamp() * SECOND_NS)
    return ObjectInfo(found["path"], found["size"], found["e_tag"] or "", modified_unix_ns)
