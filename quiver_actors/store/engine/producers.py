"""Idempotent producers of one engine: which bundles are stored already, also after a crash. See `store.staged.keys`.

Owner: the engine, on the loop thread. A key is in the windows from the moment that its bundle is staged. `quiver.producers` gets it
before its log becomes a segment, and not earlier: what a crash takes from the end of a log must not be remembered as stored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

import msgspec

from quiver_actors.base.homes import ProducerHomes
from quiver_actors.base.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, AckRun, KeyedPush, Push
from quiver_actors.errors import ProducerUnsettled, ProtocolError
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.engine.carrying import CarryJob
from quiver_actors.store.engine.events import Event
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.staged.keys import KeyRun, Windows, check_key, decode_windows


class ProducersJob(Job):
    """Write `quiver.producers`."""

    writes_anew = True

    def __init__(self, disk: Disk, paths: EnginePaths, segment_seq: int, content: bytes) -> None:
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._content = content
        self.segment_seq = segment_seq

    def work(self) -> None:
        """Write the windows durably."""
        save_producers(self._disk, self._paths, self._content)


def save_producers(disk: Disk, paths: EnginePaths, content: bytes) -> None:
    """Write `quiver.producers` atomically; durable on return."""
    write_atomically(disk, paths.producers, content)
    disk.sync_directory(paths.root)


class Producers:
    """The idempotent producers of one engine: the keys that it has stored, in memory and in `quiver.producers`."""

    def __init__(self, disk: Disk, paths: EnginePaths, windows: Windows, core: int, homes: ProducerHomes) -> None:
        """
        Args:
            windows: as they are in the file.
        """
        self._core = core
        self._homes = homes
        self._wants_carry = False
        self._problem = ""
        """Why the last attempt to take over what other cores hold failed; empty if none has."""
        self._disk = disk
        self._paths = paths
        self._windows = windows
        self._saved = decode_windows(windows.encode())
        """The windows that may be written: they have no keys of a log that is not complete."""
        self._unsaved: dict[int, list[tuple[str, KeyRun]]] = {}
        """Keys that the file lacks, by the segment that their log becomes."""

    def stored(self, push: KeyedPush) -> list[KeyRun]:
        """Where the bundles of the push are that were stored before, in rising order.

        Raises:
            UsageError, SequenceGap, SequenceTooOld: nothing of it may be stored.
            ProducerUnsettled: nothing of it may be stored here, or not yet.
        """
        check_key(push.producer, push.first_number)
        self._check_place(push.producer)
        return self._windows.stored(push.producer, push.first_number, push.entry_count)

    def _check_place(self, producer: str) -> None:
        homes = self._homes
        if not homes.is_home(producer, self._core):
            raise ProducerUnsettled(
                f"producer {producer!r} pushes to worker {homes.home_of(producer)} of {homes.cores}, not to {self._core}: connect again"
            )
        if not self.is_settled:
            self._wants_carry = True
            why = f": {self._problem}" if self._problem else ""
            raise ProducerUnsettled(
                f"what producer {producer!r} has stored on other cores, before the node had {homes.cores} workers, is not known yet{why}; "
                "nothing was stored, and the client comes again by itself"
            )

    @property
    def is_settled(self) -> bool:
        """What other cores hold of this core's producers is known here."""
        return not self._homes.generation or self._windows.settled_in == self._homes.generation

    def carry_job(self) -> CarryJob | None:
        """Takes over what other cores hold, if somebody waits for it. Until then nothing is stored here of any producer."""
        if not self._wants_carry or self.is_settled or self._unsaved:
            return None
        return CarryJob(self._disk, self._paths, self._core, self._homes, self._saved.encode())

    def finish_carry(self, job: CarryJob) -> list[Event]:
        """Take back the job that read the windows of other cores, and use them; a problem is kept for the refusals."""
        # Who still waits pushes again, and that asks for another attempt.
        self._wants_carry = False
        self._problem = job.problem
        if job.windows is not None:
            self._saved, self._windows = job.windows, decode_windows(job.windows.encode())
        return []

    def note(self, push: KeyedPush, pieces: Sequence[tuple[int, int]], run: AckRun) -> list[KeyRun]:
        """The bundles of those numbers, (first, end), were staged, one behind the other. Returns where each piece went."""
        found, skipped = [], 0
        for first, end in pieces:
            place = KeyRun(first, end - first, run.segment_seq, run.bundle_index + skipped, run.sequence + skipped)
            skipped += place.bundles
            self._windows.add(push.producer, place)
            self._unsaved.setdefault(run.segment_seq, []).append((push.producer, place))
            found.append(place)
        return found

    def holds_back(self, segment_seq: int) -> bool:
        """Whether that segment must not be sealed before the file has its keys."""
        return segment_seq in self._unsaved

    def save_job(self, segment_seq: int | None) -> ProducersJob | None:
        """
        Args:
            segment_seq: the segment that is sealed next; its log is complete and synced.
        """
        if segment_seq is None or segment_seq not in self._unsaved:
            return None
        for producer, run in self._unsaved[segment_seq]:
            self._saved.add(producer, run)
        return ProducersJob(self._disk, self._paths, segment_seq, self._saved.encode())

    def finish_save(self, job: ProducersJob) -> list[Event]:
        """Take back the job that wrote the windows; the segment that waited for it may be sealed."""
        del self._unsaved[job.segment_seq]
        return []


def picked(push: KeyedPush, span: memoryview, pieces: Sequence[tuple[int, int]]) -> tuple[Push, memoryview]:
    """The push with the bundles of those numbers only, (first, end), and their bytes. Nothing of it has been checked yet.

    Raises:
        ProtocolError: its rows are none.
    """
    try:
        entries, slots = list(ENTRY_ROW.iter_unpack(push.entries)), list(SLOT_ROW.iter_unpack(push.slots))
    except struct.error as error:
        raise ProtocolError(f"push {push.tag}: packed rows have a wrong length: {error}") from error
    spans = [0, *accumulate(row[0] for row in entries)]
    heads = [min(count, len(slots)) for count in accumulate((row[5] for row in entries), initial=0)]
    dictionaries = [0, *accumulate(row[7] for row in slots)]
    ranges = [(first - push.first_number, end - push.first_number) for first, end in pieces]
    bytes_of = [span[spans[first] : spans[end]] for first, end in ranges]
    rest = msgspec.structs.replace(
        push,
        entries=_rows(push.entries, ENTRY_ROW, ranges),
        slots=_rows(push.slots, SLOT_ROW, [(heads[first], heads[end]) for first, end in ranges]),
        dictionaries=_rows(
            push.dictionaries,
            DICTIONARY_ROW,
            [(dictionaries[heads[first]], dictionaries[heads[end]]) for first, end in ranges],
        ),
    )
    return rest, bytes_of[0] if len(bytes_of) == 1 else memoryview(bytearray().join(bytes_of))


def _rows(packed: bytes, row: struct.Struct, ranges: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(packed[first * row.size : end * row.size] for first, end in ranges)
