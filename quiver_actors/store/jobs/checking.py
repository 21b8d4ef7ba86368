"""Checks of segment files that were found at a start, or that somebody could not read. Blocking; runs on the seal thread.

| what is found | what the job says |
|---|---|
| the file is gone and the directory is the engine's own | `is_lost` |
| the file cannot be opened, or the directory is another one | `fault`: it may pass, and nothing is concluded from it |
| the file differs from its checksum, or the disk does not give it back | `damage` |
| the file is whole; a bundle that somebody could not read is not, or cannot be decoded | `undecodable`; the file goes to quarantine too |
| a bundle of a log that is not sealed differs from its checksum, or cannot be decoded | `damaged`; its entry is copied to quarantine |
| the file is whole, and such a bundle is too, and can be decoded, or its body is compressed | `decodable` |
| the file is whole when it is checked, and not when it is read once more | nothing of its bundles, which are looked at again |

Bundles are proven as consumers prove them: what no consumer can read is no bundle to be offered again. They are decoded from a private copy
of the file, so that a disk that fails cannot end the process, and each value is validated. A compressed body is not decoded: nothing bounds
what it becomes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import mmap
from collections.abc import Collection, Iterator, Mapping, Sequence

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, DiskFile
from quiver_actors.store.disk.salvage import SalvageReader
from quiver_actors.store.files.own_directory import OwnDirectory
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import copy_span, link_to_quarantine
from quiver_actors.store.jobs.job import Job
from quiver_actors.store.segment.arrow_file import BLOCK, read_file_footer
from quiver_actors.store.segment.bodies import has_compressed_body
from quiver_actors.store.segment.check import STEP_BYTES, empty_bundles, run_to_end, verify_steps
from quiver_actors.store.segment.checked import CheckedReader
from quiver_actors.store.segment.layout import CRC
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place
from quiver_actors.supervisor.log import log_event

_MISSING_ERRNOS = frozenset([errno.ENOENT, errno.ENOTDIR])
CANNOT_DECODE = (FormatError, pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError)
"""What Arrow raises for data that it does not understand. Too little memory is no such case."""


def reason_of(error: Exception) -> str:
    """What an error says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


class LossJob(Job):
    """Tell which of the segments that a listing of their directory did not name were deleted by somebody else.

    Attributes:
        lost: the numbers of those that were deleted.
        fault: why that cannot be told now; empty if it can.
    """

    def __init__(self, paths: EnginePaths, own: OwnDirectory, segment_seqs: Sequence[int]) -> None:
        super().__init__()
        self._paths = paths
        self._own = own
        self.segment_seqs = segment_seqs
        self.lost: list[int] = []
        self.fault = ""

    def work(self) -> None:
        """Prove which of the missing segments were deleted; sets `lost`, or `fault` if the directory cannot be read."""
        try:
            self.lost = self._own.lost_among(self.segment_seqs)
        except DiskError as error:
            self.fault = str(error)
        for segment_seq in self.lost:
            log_lost(self._paths.segment(segment_seq))


def log_lost(path: str) -> None:
    """Say that somebody has deleted the file of a segment."""
    reason = "somebody has deleted the file while the node was running: its subscribers are told what they lose"
    log_event("segment.lost", {"path": path, "reason": reason}, logging.ERROR)


class VerifyJob(Job):
    """Checks the file of one segment, and decodes the bundles of it that somebody could not read.

    Attributes:
        is_lost: the file was deleted by somebody else.
        fault: why nothing can be said of the file now; empty if something can.
        damage: what is wrong with the file, None if nothing is; it is left as it is.
        lost: bundles that the segment itself records as lost.
        undecodable: why Arrow cannot decode bundles that were asked for.
        decodable: the other bundles that were asked for, where the file is whole.
        is_kept: the file got a second name in quarantine.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, own: OwnDirectory, segment_seq: int, bundles: Collection[int] = ()
    ) -> None:
        """
        Args:
            bundles: indexes of those that somebody could not read.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._own = own
        self._bundles = bundles
        self.segment_seq = segment_seq
        self.is_lost = False
        self.fault = ""
        self.damage: str | None = None
        self.lost: tuple[int, ...] = ()
        self.undecodable: dict[int, str] = {}
        self.decodable: list[int] = []
        self.is_kept = False

    def work(self) -> None:
        """Read and check one segment; what differs is read a second time before it counts as damaged."""
        path = self._paths.segment(self.segment_seq)
        file = self._open(path)
        if file is None:
            return
        try:
            # Looked at twice: what the disk gives back at the second try is not damaged.
            self.damage = self._damage(file) and self._damage(file)
            if self.damage is None and self._bundles:
                self._decode(file)
        finally:
            file.close()
        if self.undecodable:
            self.is_kept = link_to_quarantine(self._disk, self._paths, path)
            log_event("segment.undecodable", {"path": path, "bundles": self.undecodable}, logging.WARNING)

    def _open(self, path: str) -> DiskFile | None:
        try:
            return self._disk.open_read(path)
        except DiskError as error:
            self.fault = str(error)
            if error.errno in _MISSING_ERRNOS:
                self._look_for_loss(path)
        if self.fault:
            log_event("segment.unchecked", {"path": path, "reason": self.fault}, logging.WARNING)
        return None

    def _look_for_loss(self, path: str) -> None:
        try:
            self.is_lost = bool(self._own.lost_among([self.segment_seq]))
        except DiskError as error:
            self.fault = str(error)
            return
        if self.is_lost:
            self.fault = ""
            log_lost(path)

    def _damage(self, file: DiskFile) -> str | None:
        try:
            footer = run_to_end(verify_steps(file.read, file.size()))
            self.lost = empty_bundles(file.read, footer)
        except FormatError as error:
            return str(error)
        except DiskError as error:
            if error.errno not in UNREADABLE_ERRNOS:
                raise
            return str(error)
        return None

    def _decode(self, file: DiskFile) -> None:
        with contextlib.closing(_PrivateCopy(file)) as copy:
            for index in self._bundles if copy.is_whole else ():
                reason = copy.why_not(index)
                if reason is None:
                    self.decodable.append(index)
                else:
                    self.undecodable[index] = reason


class LogCheckJob(Job):
    """Checks bundles of a log that somebody could not read, and keeps the entries of damaged ones in quarantine, each once.

    Attributes:
        places: where each bundle lies that was asked for.
        damaged: why bundles cannot be read.
        decodable: the others, but for those that the disk does not give back now: these come again.
        kept_count: how many entries were copied to quarantine.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, path: str, file: DiskFile, segment_seq: int, places: Mapping[int, Place]
    ) -> None:
        """
        Args:
            path: of the log.
            file: the log's, open until the job is done; the caller's.
        """
        super().__init__()
        self._disk = disk
        self._paths = paths
        self._name = path.rpartition("/")[2]
        self._file = file
        self.segment_seq = segment_seq
        self.places = places
        self.damaged: dict[int, str] = {}
        self.decodable: list[int] = []
        self.kept_count = 0

    def work(self) -> None:
        """Look at each bundle, a second time where the first one finds damage: what the disk gives back then is not damaged."""
        for index, place in self.places.items():
            damage = self._damage(index, place) and self._damage(index, place)
            if damage:
                self.damaged[index] = damage
            elif damage is None:
                self.decodable.append(index)
        for index, damage in self.damaged.items():
            self._keep(self.places[index])
            log_event("log.damaged", {"segment": self.segment_seq, "bundle": index, "reason": damage}, logging.ERROR)

    def _keep(self, place: Place) -> None:
        end = place.offset + place.size_bytes
        read = SalvageReader(self._file).read
        self.kept_count += copy_span(self._disk, self._paths, read, self._name, place.offset, end) is not None

    def _damage(self, index: int, place: Place) -> str | None:
        """The reason why a bundle cannot be read; None: it can, empty: that cannot be told now."""
        try:
            entry = self._file.read(place.size_bytes, place.offset)
            alone = Place(0, place.size_bytes, place.item_count)
            reader = EntryReader(LogEntries(memoryview(entry)), {index: alone}, self.segment_seq)
            reader.check(index)
            if not reader.is_compressed(index):
                for batch in reader.decode(index).values():
                    batch.validate(full=True)
        except DiskError as error:
            return str(error) if error.errno in UNREADABLE_ERRNOS else ""
        except CANNOT_DECODE as error:
            return reason_of(error)
        return None


class _PrivateCopy:
    """The bytes of a whole segment in memory of this process alone, aligned as a mapped file is.

    Attributes:
        is_whole: the copy has the checksum that it holds.
    """

    def __init__(self, file: DiskFile) -> None:
        size_bytes = file.size()
        self._memory = mmap.mmap(-1, size_bytes)
        for offset in range(0, size_bytes, STEP_BYTES):
            self._memory.write(file.read(min(STEP_BYTES, size_bytes - offset), offset))
        self.is_whole = self._memory[-CRC.size :] == CRC.pack(crc32(memoryview(self._memory)[: -CRC.size]))
        self._reader: CheckedReader | None = None

    def why_not(self, index: int) -> str | None:
        """Why a bundle cannot be read, None if it can be: what must not be decoded is compared with its checksum."""
        try:
            if self._reader is None:
                self._reader = CheckedReader(memoryview(self._memory))
            if not 0 <= index < self._reader.bundle_count:
                return None
            self._reader.check(index)
            if any(self._has_compressed_body(stream_id) for stream_id in self._reader.manifest.stream_ids(index)):
                return None
            for batch in self._reader.bundle(index).values():
                batch.validate(full=True)
        except CANNOT_DECODE as error:
            return reason_of(error)
        return None

    def _has_compressed_body(self, stream_id: int) -> bool:
        assert self._reader is not None, "asked after it was opened"
        info = {stream.stream_id: stream for stream in self._reader.streams}.get(stream_id)
        if info is None:
            return False
        end = info.byte_offset + info.byte_length
        try:
            return any(has_compressed_body(message) for message in self._messages(info.byte_offset, end))
        except FormatError:
            return False  # Arrow itself is to say what is wrong with it

    def _messages(self, start: int, end: int) -> Iterator[bytes]:
        footer = read_file_footer(lambda length, offset: self._memory[offset : offset + length], start, end)
        for offset, metadata_bytes, _, _ in BLOCK.iter_unpack(footer.dictionary_blocks + footer.batch_blocks):
            yield self._memory[start + offset : start + offset + metadata_bytes]

    def close(self) -> None:
        """Let go of the memory, which batches that were decoded may still point into."""
        self._reader = None
        with contextlib.suppress(BufferError):
            self._memory.close()
