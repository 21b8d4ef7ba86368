"""The deliverer that writes Parquet files: a directory for each slot, in it files that are named for the bundles they hold.

    <directory>/<slot>/<topic>-core_<n>-<incarnation>-<first>-<last>-<count>.parquet

Guarantees:
- A file appears whole or not at all, and is durable before its bundles are acknowledged: temporary file, fsync, rename, directory fsync.
- No bundle is twice in a directory, whatever is killed when, also with several processes that write there: before a file gets its name,
  under the directory's lock, it is looked up whether one of its bundles is in another file by then; if so it is written again without it.
  That holds as long as finished files stay in the directory until their bundles are acknowledged, some seconds.

Bundles are collected by reference to the mapped segments, so they cost no memory of this process until they are written.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.base.units import MIB, SECOND_NS
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import ChecksumMismatch, FormatError, QuiverError, UsageError
from quiver_actors.forward.bundle_files import (
    RUNS_KEY,
    BundleIndex,
    Origin,
    Place,
    encode_runs,
    file_name,
    runs_of,
)
from quiver_actors.forward.deliverer import Outcome
from quiver_actors.forward.errors import PermanentFailure, TransientFailure

TEMPORARY_PREFIX = ".writing-"
LOCK_NAME = ".quiver.lock"
"""Readers of a data set leave out names that begin with a dot."""
ROW_GROUP_ROWS = 1 << 20
_UNWRITABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""Errors that Arrow raises because of the data, not because of the disk."""


@dataclass(frozen=True, slots=True)
class ParquetStatistics:
    """Counted since the deliverer was made."""

    files: int
    rows: int
    bytes: int
    """Size of the finished files together."""
    skipped: int
    """Batches that were in a finished file already: acknowledgements that a crash had lost."""


class _Part(NamedTuple):
    """Rows that one bundle adds to one file."""

    delivery: Delivery
    place: Place
    batch: pa.RecordBatch


class ParquetFiles:
    """Deliverer that writes Parquet files. Give it to a `Forwarder`; a context manager. One thread at a time.

    Args:
        directory: made where it is missing; with as many subdirectories as there are slots.
        slots: only these, by name or id, under that name; or a mapping of slot id to name. None: all that come, by their id.
        target_bytes: files are finished when so much has been collected, counted as Arrow has it, over all slots and cores.
        max_age: or when the oldest bundle has waited so many seconds.
        compression: of Parquet.

    Raises:
        UsageError: numbers that make no sense, or two slots of one name: their bundles could not be told apart there.
        OSError: the directory cannot be used.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        slots: Collection[str | int] | Mapping[int, str] | None = None,
        target_bytes: int = 128 * MIB,
        max_age: float = 60.0,
        compression: str = "zstd",
    ) -> None:
        if target_bytes < 1 or max_age < 0:
            raise UsageError("target_bytes must be at least 1 and max_age not negative")
        _check_names(slots)
        self._directory = os.path.abspath(directory)
        self._slots = slots
        self._target_bytes = target_bytes
        self._max_age_ns = round(max_age * SECOND_NS)
        self._compression = compression
        self._taken: dict[int, Delivery] = {}
        self._taken_bytes = 0
        self._taken_since_ns = 0
        self._groups: dict[tuple[str, Origin, pa.Schema], list[_Part]] = {}
        """Parts collected for each file."""
        self._outcomes: list[Outcome] = []
        self._slot_directories: dict[str, _SlotDirectory] = {}
        os.makedirs(self._directory, exist_ok=True)

    def statistics(self) -> ParquetStatistics:
        """Return what was written so far, over all slots: finished files, rows, bytes, and deliveries skipped as repeated."""
        directories = self._slot_directories.values()
        return ParquetStatistics(
            files=sum(each.files for each in directories),
            rows=sum(each.rows for each in directories),
            bytes=sum(each.bytes for each in directories),
            skipped=sum(each.skipped for each in directories),
        )

    # --- Deliverer -------------------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery) -> None:
        """Collect one bundle; it is written with others.

        Raises:
            PermanentFailure: it has a type that Parquet has not.
            FormatError: it cannot be read.
        """
        batches = {name: delivery[slot] for slot, name in self._chosen(delivery)}
        for batch in batches.values():
            _check_schema(batch.schema)
        if not self._taken:
            self._taken_since_ns = time.monotonic_ns()
        self._taken[id(delivery)] = delivery
        origin, place = _origin_of(delivery), (delivery.bundle_id.segment_seq, delivery.bundle_id.bundle_index)
        for name, batch in batches.items():
            self._groups.setdefault((name, origin, batch.schema), []).append(_Part(delivery, place, batch))
            self._taken_bytes += batch.nbytes
        if self._taken_bytes >= self._target_bytes:
            self._finish()

    def hurry(self) -> None:
        """Finish the open files now, whatever their size and age."""
        if self._taken:
            self._finish()

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        """Return the outcomes known so far, without waiting: `offer` and `hurry` decide all of them."""
        found, self._outcomes = self._outcomes, []
        return found

    @property
    def finish_at_ns(self) -> int | None:
        """Monotonic time at which the open files are finished because of their age; None if none is open."""
        return self._taken_since_ns + self._max_age_ns if self._taken else None

    def close(self) -> None:
        """Delete unfinished files, without an outcome for their bundles, and release the directories. Idempotent."""
        self._forget()
        for slot_directory in self._slot_directories.values():
            slot_directory.close()
        self._slot_directories.clear()

    def __enter__(self) -> ParquetFiles:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    # --- collecting ------------------------------------------------------------------------------------------------------

    def _chosen(self, delivery: Delivery) -> Iterator[tuple[str | int, str]]:
        """Slots of a bundle that are wanted, with the names of their directories."""
        slots = self._slots
        if isinstance(slots, Mapping):
            yield from ((slot_id, slots[slot_id]) for slot_id in delivery.slot_ids if slot_id in slots)
            return
        for slot in delivery.slot_ids if slots is None else slots:
            if slots is None or slot in delivery:
                yield slot, _name_of(slot)

    # --- writing ---------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        errors: dict[int, Exception] = {}
        for (name, origin, _), parts in self._groups.items():
            self._write(name, origin, parts, errors)
        self._outcomes += [Outcome(delivery, errors.get(key)) for key, delivery in self._taken.items()]
        self._forget()

    def _write(self, name: str, origin: Origin, parts: Sequence[_Part], errors: dict[int, Exception]) -> None:
        try:
            self._slot_directory(name).write(origin, parts, self._compression)
        except _UNWRITABLE as error:
            if len(parts) > 1:
                # One of them spoils the file for all: find it.
                half = len(parts) // 2
                self._write(name, origin, parts[:half], errors)
                self._write(name, origin, parts[half:], errors)
                return
            refusal = PermanentFailure(f"{name} of {parts[0].delivery.bundle_id} cannot be written: {error}")
            errors[id(parts[0].delivery)] = refusal
        except ChecksumMismatch:
            sound = [part for part in parts if _prove(part, errors)]
            if sound:
                self._write(name, origin, sound, errors)
        except FormatError as error:
            # A file that was there cannot be read: the bundles are sound, and wait until somebody has moved it.
            failure = TransientFailure(str(error))
            errors.update((id(part.delivery), failure) for part in parts)
        except (OSError, QuiverError) as error:
            errors.update((id(part.delivery), error) for part in parts)

    def _slot_directory(self, name: str) -> _SlotDirectory:
        found = self._slot_directories.get(name)
        if found is None:
            found = self._slot_directories[name] = _SlotDirectory(os.path.join(self._directory, name))
        return found

    def _forget(self) -> None:
        self._groups.clear()
        self._taken.clear()
        self._taken_bytes = 0


def _prove(part: _Part, errors: dict[int, Exception]) -> bool:
    """Whether the part's bundle still matches its checksum; if not, the error becomes the outcome of its delivery."""
    try:
        part.delivery.verify()
    except FormatError as error:
        errors[id(part.delivery)] = error
        return False
    return True


def _name_of(slot: str | int) -> str:
    return slot if isinstance(slot, str) else f"slot_{slot}"


def _check_names(slots: Collection[str | int] | Mapping[int, str] | None) -> None:
    names = list(slots.values() if isinstance(slots, Mapping) else map(_name_of, dict.fromkeys(slots or ())))
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"several slots are called {', '.join(twice)}: expected a name, and so a directory, for each")


class _SlotDirectory:
    """The files of one slot. Other processes may write there too."""

    def __init__(self, path: str) -> None:
        """Make it and remove temporary files whose writers are dead. Raises OSError."""
        os.makedirs(path, exist_ok=True)
        self._path = path
        self._index = BundleIndex(path)
        self.files = self.rows = self.bytes = self.skipped = 0
        self._lock_fd = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _sync_directory(os.path.dirname(path))
        self._sweep()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._lock_fd)

    def write(self, origin: Origin, parts: Sequence[_Part], compression: str) -> None:
        """Make those parts durable that no file here has yet.

        Raises:
            OSError, InvalidFormat: some may be durable by now, all may be tried again.
            ChecksumMismatch: a part is damaged where it is stored; nothing was written.
            pa.ArrowException: a part cannot be written.
        """
        self._index.refresh()
        missing = self._missing(origin, {part.place: part for part in parts})
        while missing:
            with self._written(missing, compression) as temporary, self._locked():
                self._index.refresh()
                found = self._missing(origin, missing)
                if len(found) == len(missing):
                    self._publish(temporary, origin, missing)
                    break
            missing = found
        if len(missing) < len(parts):
            # The process that wrote them may have died before their names were durable; they are about to be acknowledged.
            os.fsync(self._fd)
            self.skipped += len(parts) - len(missing)

    def _missing(self, origin: Origin, parts: Mapping[Place, _Part]) -> dict[Place, _Part]:
        return {place: part for place, part in sorted(parts.items()) if not self._index.holds(origin, place)}

    @contextlib.contextmanager
    def _written(self, parts: Mapping[Place, _Part], compression: str) -> Iterator[str]:
        """A complete and durable temporary file, locked by this process; removed at the end if it is still there."""
        path = os.path.join(self._path, f"{TEMPORARY_PREFIX}{os.getpid()}-{os.urandom(4).hex()}")
        with self._locked():
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _write_parquet(path, parts, compression)
            # The batches point into segment files and have waited here: what was written is what was stored only if it still is.
            for part in parts.values():
                part.delivery.verify()
            os.fsync(lock)
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            os.close(lock)

    def _publish(self, temporary: str, origin: Origin, parts: Mapping[Place, _Part]) -> None:
        path = os.path.join(self._path, file_name(origin, runs_of(parts)))
        os.rename(temporary, path)
        os.fsync(self._fd)
        self.files += 1
        self.rows += sum(part.batch.num_rows for part in parts.values())
        self.bytes += os.stat(path).st_size

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


def _write_parquet(path: str, parts: Mapping[Place, _Part], compression: str) -> None:
    table = pa.Table.from_batches([part.batch for part in parts.values()])
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), RUNS_KEY: encode_runs(runs_of(parts))})
    pq.write_table(table, path, compression=compression, row_group_size=ROW_GROUP_ROWS)


@functools.lru_cache(maxsize=256)
def _check_schema(schema: pa.Schema) -> None:
    """
    Raises:
        PermanentFailure: Parquet has no such type.
    """
    try:
        pq.write_table(schema.empty_table(), pa.BufferOutputStream())
    except _UNWRITABLE as error:
        raise PermanentFailure(f"the schema cannot be written as Parquet: {error}") from error


def _origin_of(delivery: Delivery) -> Origin:
    incarnation = delivery.incarnation
    return Origin(
        delivery.bundle_id.topic, delivery.bundle_id.core, "0" * 8 if incarnation is None else incarnation.hex()[:8]
    )
