"""Opens the object store that a URL names."""

from __future__ import annotations

import os
from urllib.parse import SplitResult, unquote, urlsplit

from quiver_actors.errors import ConfigError, UsageError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.objects.directory_store import DirectoryStore
from quiver_actors.store.objects.errors import ArchiveRefused
from quiver_actors.store.objects.locations import REMOTE_SCHEMES
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.remote_store import open_remote
from quiver_actors.store.objects.single_writer import SingleWriterStore

SCHEMES = (*REMOTE_SCHEMES, "http", "https", "memory", "file")
TIMEOUT_SECONDS = 30.0


def check_url(url: str, name: str = "archive.url") -> None:
    """Raise ConfigError where the URL cannot name a store; the error calls it `name`."""
    parts = _split(url, name)
    if parts.scheme not in SCHEMES or not url.startswith(f"{parts.scheme}:"):
        # What reads FILE: as file: elsewhere has stores of its own, which do not sync.
        expected = (
            "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, https://host/path or file:///directory"
        )
        raise ConfigError(f"{name} {url!r} has the scheme {url.partition(':')[0]!r}: expected {expected}")
    if parts.query or parts.fragment:
        # Not shown: some providers have tokens there.
        raise ConfigError(f"{name} has a ? or a #, behind which nothing would be used: in a path write %3F and %23")
    if parts.scheme in REMOTE_SCHEMES and parts.netloc.rpartition("@")[2].count(":"):
        raise ConfigError(
            f"{name} {url!r} has a port, which would not be used: name the server in the environment (AWS_ENDPOINT_URL and the like)"
        )
    if parts.username or parts.password:
        raise ConfigError(f"{name} holds credentials: they belong into the environment or the provider's own files")
    if parts.scheme == "file" and (parts.netloc or not parts.path.startswith("/")):
        raise ConfigError(f"{name} {url!r} names no directory of this host: expected file:///an/absolute/path")


def _split(url: str, name: str) -> SplitResult:
    """The parts of a URL. Raises ConfigError: it is none, or would be read in several ways."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"{name} {url!r} is no URL: {error}") from error
    if url != url.strip() or not url.isprintable() or not unquote(parts.path).isprintable():
        raise ConfigError(f"{name} {url!r} has a blank at an end, or a character that cannot be printed: expected none")
    return parts


def open_store(
    url: str, *, timeout_seconds: float = TIMEOUT_SECONDS, is_single_writer: bool = False, name: str = "archive.url"
) -> ObjectStore:
    """Open a store. A missing local directory is made; nothing is sent to a remote store yet.

    Args:
        is_single_writer: use no conditional puts, as `archive.single_writer`.
        name: what the URL is to whoever gave it, for errors.

    Raises:
        ConfigError: the URL names no store, or a package is missing.
        ArchiveRefused: the local directory cannot be made or opened.
    """
    check_url(url, name)
    if is_single_writer:
        return SingleWriterStore(open_store(url, timeout_seconds=timeout_seconds, name=name))
    if not url.startswith("file:"):
        return open_remote(url, timeout_seconds=timeout_seconds, name=name)
    path = unquote(urlsplit(url).path)
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ArchiveRefused(f"{name} {url!r}: the directory cannot be made: {error.strerror}") from error
    return DirectoryStore(PosixDisk(path), url)


def open_existing(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS, name: str = "archive.url") -> ObjectStore:
    """Open a store that a node has archived into, for whoever only reads or mends what is there: no local directory is made.

    Raises:
        UsageError: the local directory does not exist.
        ConfigError, ArchiveRefused: as `open_store`.
    """
    check_url(url, name)
    if url.startswith("file:") and not os.path.isdir(path := unquote(urlsplit(url).path)):
        raise UsageError(f"there is no archive at {url}: {path} is not a directory")
    return open_store(url, timeout_seconds=timeout_seconds, name=name)
