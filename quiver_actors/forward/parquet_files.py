"""The deliverer that writes Parquet files: a directory for each slot, in it files that are named for the bundles they hold.

    <target>/<slot>/<topic>-core_<n>-<incarnation>-<first>-<last>-<count>.parquet

The target is a local directory (`directory_files`) or a prefix of an object store (`object_files`), which say what holds there. The rows of
a file have the representative schema of their slot, to which all bundles so far conform (`representative`). A bundle whose schema has no
common one with them, or one of whose values does not fit it, goes into a file of its own schema.

Bundles are collected by reference to the mapped segments, so they cost no memory of this process until they are written.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.base.units import MIB
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import ChecksumMismatch, FormatError, QuiverError, UsageError
from quiver_actors.forward.bundle_files import Origin, origin_of
from quiver_actors.forward.collecting import CollectingDeliverer
from quiver_actors.forward.deliverer import Outcome
from quiver_actors.forward.errors import PermanentFailure, TransientFailure
from quiver_actors.forward.parts import Part, by_schema, conformed
from quiver_actors.forward.representative import RepresentativeSchemas
from quiver_actors.forward.slot_files import SlotFiles
from quiver_actors.forward.targets import Target, open_target

_UNWRITABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError)
"""Errors that Arrow raises because of the data, not because of the disk."""


@dataclass(frozen=True, slots=True)
class ParquetStatistics:
    """Counted since the deliverer was made."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    """Size of the finished files together."""
    skipped: int = 0
    """Batches that were in a finished file already: acknowledgements that a crash had lost."""


class ParquetFiles(CollectingDeliverer[Delivery]):
    """Deliverer that writes Parquet files. Give it to a `Forwarder`; a context manager. One thread at a time.

    Args:
        target: a directory, made where it is missing, or the URL of a prefix in an object store, as an archive has them: `s3://`,
            `gs://`, `az://`, `https://`, `file:///`. With as many subdirectories as there are slots.
        slots: only these, by name or id, under that name; or a mapping of slot id to name. None: all that come, by their id.
        target_bytes: files are finished when so much has been collected, counted as Arrow has it, over all slots and cores.
        max_age: or when the oldest bundle has waited so many seconds.
        compression: of Parquet.

    Raises:
        UsageError: numbers that make no sense, or two slots of one name: their bundles could not be told apart there.
        ConfigError: the URL names no store, or the extra `archive` is not installed.
        OSError: the directory cannot be used.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        slots: Collection[str | int] | Mapping[int, str] | None = None,
        target_bytes: int = 128 * MIB,
        max_age: float = 60.0,
        compression: str = "zstd",
    ) -> None:
        super().__init__(target_bytes, max_age)
        _check_names(slots)
        self._target: Target = open_target(target)
        self._slots = slots
        self._compression = compression
        self._schemas: dict[str, RepresentativeSchemas] = {}
        """The schemas of each slot."""
        self._groups: dict[tuple[str, Origin, int], list[Part]] = {}
        """Parts collected for each file: slot, origin, and number of the representative schema."""
        self._slot_files: dict[str, SlotFiles] = {}

    def statistics(self) -> ParquetStatistics:
        """Return what was written so far, over all slots: finished files, rows, bytes, and deliveries skipped as repeated."""
        return ParquetStatistics(**sum((each.counts for each in self._slot_files.values()), Counter[str]()))

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
        origin, place = origin_of(delivery), (delivery.bundle_id.segment_seq, delivery.bundle_id.bundle_index)
        for name, batch in batches.items():
            number = self._schemas.setdefault(name, RepresentativeSchemas()).add(batch.schema)
            self._groups.setdefault((name, origin, number), []).append(Part(delivery, place, batch))
        self._take(delivery, delivery, sum(batch.nbytes for batch in batches.values()))

    def close(self) -> None:
        """Delete unfinished files, without an outcome for their bundles, and release the directories. Idempotent."""
        super().close()
        for files in self._slot_files.values():
            files.close()
        self._slot_files.clear()
        self._target.close()

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

    def _finish(self) -> list[Outcome]:
        errors: dict[int, Exception] = {}
        for (name, origin, number), parts in self._groups.items():
            fitting, others = conformed(parts, self._schemas[name][number])
            for those in (fitting, *(apart for _, apart in by_schema(others))):
                if those:
                    self._write(name, origin, those, errors)
        return [Outcome(delivery, errors.get(key)) for key, delivery in self._taken.items()]

    def _write(self, name: str, origin: Origin, parts: Sequence[Part], errors: dict[int, Exception]) -> None:
        try:
            self._files_of(name).write(origin, parts, self._compression)
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

    def _files_of(self, name: str) -> SlotFiles:
        found = self._slot_files.get(name)
        if found is None:
            found = self._slot_files[name] = self._target.slot(name)
        return found

    def _forget(self) -> None:
        super()._forget()
        self._groups.clear()


def _prove(part: Part, errors: dict[int, Exception]) -> bool:
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
