"""Idempotent producers of one engine: which bundles are stored already, also after a crash. See `transactions.keys`.

Owner: the engine, on the loop thread. A key is in the windows from the moment that its bundle is staged. `quiver.producers` gets it
before its log becomes a segment, and not earlier: what a crash takes from the end of a log must not be remembered as stored.
"""

from __future__ import annotations

import msgspec

from quiver_actors.disk.protocol import Disk, write_atomically
from quiver_actors.events import Event
from quiver_actors.jobs import Job
from quiver_actors.paths import EnginePaths
from quiver_actors.protocol.messages import DICTIONARY_ROW, ENTRY_ROW, SLOT_ROW, AckRun, KeyedPush
from quiver_actors.transactions.keys import KeyRun, Windows, check_key, decode_windows


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
        save_producers(self._disk, self._paths, self._content)


def save_producers(disk: Disk, paths: EnginePaths, content: bytes) -> None:
    write_atomically(disk, paths.producers, content)
    disk.sync_directory(paths.root)


class Producers:
    """See the module."""

    def __init__(self, disk: Disk, paths: EnginePaths, windows: Windows) -> None:
        """
        Args:
            windows: as they are in the file.
        """
        self._disk = disk
        self._paths = paths
        self._windows = windows
        self._saved = decode_windows(windows.encode())
        """What may be written: nothing of a log that is not complete."""
        self._unsaved: dict[int, list[tuple[str, KeyRun]]] = {}
        """By the segment that their log becomes."""

    def stored(self, push: KeyedPush) -> list[AckRun]:
        """Where those of the bundles are that were stored before: the first ones of the push.

        Raises:
            UsageError, SequenceGap, SequenceTooOld: nothing of it may be stored.
        """
        check_key(push.producer, push.first_number)
        found = self._windows.stored(push.producer, push.first_number, push.entry_count)
        return [AckRun(push.tag, run.segment_seq, run.bundle_index, run.sequence, run.bundles, True) for run in found]

    def note(self, push: KeyedPush, stored: int, run: AckRun) -> None:
        """The bundles of the push behind the first `stored` were staged."""
        found = KeyRun(push.first_number + stored, run.count, run.segment_seq, run.bundle_index, run.sequence)
        self._windows.add(push.producer, found)
        self._unsaved.setdefault(run.segment_seq, []).append((push.producer, found))

    def holds_back(self, segment_seq: int | None) -> bool:
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
        del self._unsaved[job.segment_seq]
        return []


def without_first(push: KeyedPush, span: memoryview, count: int) -> tuple[KeyedPush, memoryview]:
    """The push without its first bundles, and what is left of its span."""
    skipped = list(ENTRY_ROW.iter_unpack(push.entries[: count * ENTRY_ROW.size]))
    slot_count = sum(row[5] for row in skipped)
    slots = push.slots[: slot_count * SLOT_ROW.size]
    dictionary_count = sum(row[7] for row in SLOT_ROW.iter_unpack(slots))
    rest = msgspec.structs.replace(
        push,
        entries=push.entries[count * ENTRY_ROW.size :],
        slots=push.slots[len(slots) :],
        dictionaries=push.dictionaries[dictionary_count * DICTIONARY_ROW.size :],
    )
    return rest, span[sum(row[0] for row in skipped) :]
