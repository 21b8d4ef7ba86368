"""The Parquet files of one slot below a prefix of an object store.

    <slot>/<name>                      a finished file, named as in a directory
    <slot>/.quiver.publishing          which file was decided on last: its name, and the object that holds its content
    <slot>/.writing-<seconds>-<hex>    the content of a file before it has its name

Guarantees:
- A file appears whole or not at all, and is there before its bundles are acknowledged.
- No bundle is twice below the prefix, whatever is killed when, also with several processes that write there. A writer first puts the
  content under a temporary name. It then replaces `.quiver.publishing`, by compare-and-swap, in the version in which it saw that no file
  holds its bundles: that decides. It then puts the file. Should it die before that, the next writer puts the file from the temporary one.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

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
from quiver_actors.store.objects.object_store import (
    PART_BYTES,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    Version,
)

PUBLISHING_NAME = ".quiver.publishing"
ABANDONED_SECONDS = 24 * 3600
"""A temporary object that is older has no writer any more."""
_FOOTER_BYTES = 8
"""At the end of a Parquet file: the size of its metadata, and its magic."""


class NamedObjects:
    """The names of the objects of one slot, and what their metadata says: see `bundle_files.Listing`."""

    def __init__(self, store: ObjectStore, slot: str) -> None:
        self._store = store
        self._slot = slot

    def names(self) -> list[str]:
        """List the slot. Raises ArchiveError."""
        return [found.key.removeprefix(f"{self._slot}/") for found in self._store.objects(self._slot)]

    def runs(self, name: str) -> list[Run]:
        """Read which bundles a file holds; only its end is fetched. Raises InvalidFormat, ArchiveError."""
        key = f"{self._slot}/{name}"
        where = f"{self._store.url}, object {key},"
        found = self._store.head(key)
        size_bytes = found.size_bytes if found else 0
        try:
            (end,) = self._store.get_ranges(key, [(max(0, size_bytes - _FOOTER_BYTES), size_bytes)])
            footer_bytes = int.from_bytes(end[:4], "little") + _FOOTER_BYTES
            (footer,) = self._store.get_ranges(key, [(max(0, size_bytes - footer_bytes), size_bytes)])
            metadata = pq.read_metadata(pa.BufferReader(footer)).metadata or {}
        except (pa.ArrowInvalid, ObjectMissing) as error:
            raise InvalidFormat(f"{where} is not a Parquet file: {error}") from error
        return decode_runs(where, metadata.get(RUNS_KEY))


class Publication(NamedTuple):
    """A file that was decided on: its name, and the temporary object that has its content until it is there."""

    name: str
    temporary: str

    def encode(self) -> bytes:
        """Return the content of `.quiver.publishing`."""
        return json.dumps(self._asdict()).encode()

    @classmethod
    def decode(cls, where: str, content: bytes) -> Publication:
        """Parse what `encode` made. Raises InvalidFormat."""
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError) as error:
            raise InvalidFormat(f"{where} is damaged: delete it when no forwarder runs; it says {content!r}") from error


class ObjectFiles:
    """See `slot_files.SlotFiles`. The content of one file is in memory while it is written."""

    def __init__(self, store: ObjectStore, slot: str) -> None:
        """Remove temporary objects that have been there for a day. Raises ArchiveError, InvalidFormat."""
        self.counts: Counter[str] = Counter()
        self._store = store
        self._slot = slot
        self._objects = NamedObjects(store, slot)
        self._index = BundleIndex(self._objects)
        self._seen: Version | None = None
        """The version of `.quiver.publishing` up to which the index knows all files; None before the first look."""
        self._sweep()

    def close(self) -> None:
        """Do nothing: the store is its opener's to close."""

    def write(self, origin: Origin, parts: Sequence[Part], compression: str) -> None:
        """Put a file of the parts that are missing; again without those that another process has published meanwhile."""
        while True:
            version = self._settle()
            missing = missing_parts(self._index, origin, parts)
            if not missing or self._publish(version, origin, missing, compression):
                self.counts["skipped"] += len(parts) - len(missing)
                return

    def _publish(self, version: Version | None, origin: Origin, parts: Mapping[Place, Part], compression: str) -> bool:
        """Write a file if nothing was published since `version`; False if something was."""
        sink = pa.BufferOutputStream()
        write_parquet(sink, parts, compression)
        verify(parts.values())  # what was written is what was stored only if it still is
        content = sink.getvalue()
        wanted = Publication(
            file_name(origin, runs_of(parts)), f"{TEMPORARY_PREFIX}{int(time.time())}-{os.urandom(8).hex()}"
        )
        self._put(wanted.temporary, content)
        try:
            decided = self._decide(wanted, version)
        except (ObjectExists, ObjectChanged):
            # Another writer was faster; or the answer was lost and this is ours, which the next look completes.
            if self._last_published() != wanted:
                self._store.delete(self._key(wanted.temporary))
                return False
            decided = None
        self._put(wanted.name, content)
        self._store.delete(self._key(wanted.temporary))
        self._index.refresh()
        self._seen = decided
        self.counts.update(files=1, rows=row_count(parts), bytes=len(content))
        return True

    def _decide(self, wanted: Publication, version: Version | None) -> Version:
        key = self._key(PUBLISHING_NAME)
        if version is None:
            return self._store.create(key, wanted.encode())
        return self._store.replace(key, wanted.encode(), version)

    def _settle(self) -> Version | None:
        """Complete what another writer has decided on and not put, learn of all files, and return the version that this holds for."""
        found = self._store.get(self._key(PUBLISHING_NAME))
        if found is not None and found.version == self._seen:
            return self._seen
        if found is not None:
            self._complete(Publication.decode(f"{self._store.url}, object {self._key(PUBLISHING_NAME)}", found.content))
        self._index.refresh()
        self._seen = found.version if found else None
        return self._seen

    def _complete(self, decided: Publication) -> None:
        content = self._store.get(self._key(decided.temporary))
        if content is None:
            return  # The file was put: its temporary object is deleted only after that.
        if self._store.head(self._key(decided.name)) is None:
            self._put(decided.name, pa.py_buffer(content.content))
        self._store.delete(self._key(decided.temporary))

    def _last_published(self) -> Publication | None:
        found = self._store.get(self._key(PUBLISHING_NAME))
        return found and Publication.decode(f"{self._store.url}, object {PUBLISHING_NAME}", found.content)

    def _put(self, name: str, content: pa.Buffer) -> None:
        self._store.put(self._key(name), _pieces(content), len(content))

    def _key(self, name: str) -> str:
        return f"{self._slot}/{name}"

    def _sweep(self) -> None:
        decided = self._last_published()
        for name in self._objects.names():
            is_needed = decided is not None and name == decided.temporary
            if name.startswith(TEMPORARY_PREFIX) and not is_needed and _age_seconds(name) > ABANDONED_SECONDS:
                self._store.delete(self._key(name))


def _age_seconds(name: str) -> float:
    written = name.removeprefix(TEMPORARY_PREFIX).partition("-")[0]
    return time.time() - int(written) if written.isdecimal() else 0


def _pieces(content: pa.Buffer) -> Iterator[memoryview]:
    view = memoryview(content)
    return (view[start : start + PART_BYTES] for start in range(0, len(view), PART_BYTES))
