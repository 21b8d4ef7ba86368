"""The segments of one engine on the cold disk: which there are, and the list that says so.

Owner: the engine, on the loop thread, which never touches the cold disk: what is known of a cold segment is in the list and in memory, and
its file is opened by a job of the thread for the cold disk. A cold disk that cannot be read is a fault that may pass: reads wait, or are
refused with the reason, and nothing counts as lost.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Sequence

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import TierSettings
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine.cold_files import ColdFiles
from quiver_actors.store.engine.cold_tenure import ColdTenure
from quiver_actors.store.engine.events import ColdDiskFaulted, Event
from quiver_actors.store.engine.faults import Faults
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.files.cold_directory import ColdDirectory, ColdDisks
from quiver_actors.store.files.cold_list import COLD_ID_BYTES, ColdEntry, ColdList, encode_cold_list
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import ColdFlipJob
from quiver_actors.store.jobs.cold_claim import ColdClaimJob
from quiver_actors.store.jobs.cold_removal import ColdDeleteJob
from quiver_actors.store.recovery import Recovered


class ColdSegments:
    """The cold segments of one engine, and the list that says which there are.

    Attributes:
        settings: the topic's.
        faults: whether the cold disk can be read now.
        write_faults: whether it can be written: a full one, or one that is read-only, is read all the same.
        files: their files, opened for readers.
        tenure: whether the directory on the cold disk is this engine's to change.
        moved_count: how many segments were moved to the cold disk since the engine was opened.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        settings: TierSettings,
        recovered: Recovered,
        segments: SegmentTable,
        disks: ColdDisks,
    ) -> None:
        found = recovered.cold or ColdList(b"", "")
        self.settings = settings
        self.faults = Faults(clock)
        self.write_faults = Faults(clock)
        self.moved_count = 0
        # No circle: a topic that goes is freed at once, not by the collector.
        self.files = ColdFiles(weakref.proxy(self), disk, paths, clock)
        self._disk = disk
        self._paths = paths
        self.tenure = ColdTenure(disk, paths, disks)
        self._segments = segments
        self._cold_id, self._listed_root = found.cold_id, found.root
        self._entries = dict(found.segments)
        self._unwanted = dict.fromkeys(found.unwanted)
        self._spare_copies = set(recovered.copied_segments)
        """Segments of which there is a copy, or a part of one, that the list does not name: it goes with them, or they move there again."""
        self._is_dirty = bool(recovered.copied_segments)
        """Whether the list on disk says something else than it should, apart from copies."""
        self.is_listed = recovered.cold is not None
        """Whether the list on disk names the directory on the cold disk, so that it may be made."""
        self._is_swept = not found.cold_id
        """Whether leftovers of copies that were cut off are gone from the cold disk."""
        self._copied: dict[int, ColdEntry] = {}
        """Copies that are durable and not in the list yet."""
        self._returned: dict[int, str] = {}
        """Damaged segments that were copied back and have no name in `segments/` yet, and what is wrong with them."""

    # --- what is known -------------------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """The cold directory in use: the setting, or without one what the list names, so that what lies there can be read."""
        return self.settings.cold_dir or self._listed_root

    @property
    def directory(self) -> ColdDirectory | None:
        """The engine's directory on the cold disk; None: nothing was ever moved there."""
        return self.tenure.directory(self.root, self._cold_id) if self._cold_id and self.root else None

    @property
    def awaits_list(self) -> bool:
        """Whether the directory on the cold disk has a name, and the list does not name it yet."""
        return bool(self._cold_id) and not self.is_listed

    @property
    def is_bare(self) -> bool:
        """Whether nothing lies on the cold disk yet, as far as anybody knows."""
        return not (self._entries or self._copied or self._unwanted)

    @property
    def known(self) -> set[int]:
        """Numbers of all segments of which there may be a file on the cold disk."""
        return {*self._segments, *self._entries, *self._copied, *self._unwanted, *self._spare_copies}

    def entry_of(self, segment_seq: int) -> ColdEntry | None:
        """Return what the list says of a cold segment; None if it is none."""
        return self._entries.get(segment_seq)

    def is_moving(self, segment_seq: int) -> bool:
        """Whether the segment was copied, in either direction, and the list does not say so yet."""
        return segment_seq in self._copied or segment_seq in self._returned

    def claim_job(self) -> ColdClaimJob | None:
        """Return the job that takes the directory over; None if it is this engine's, or has no name that the list knows."""
        if self.tenure.root == self.root or self.awaits_list:  # asked in each turn
            return None
        directory = self.directory
        if directory is None:
            return None
        return self.tenure.claim_job(directory, list(self._unwanted), makes=self.is_bare)

    # --- the list ------------------------------------------------------------------------------------------------------------

    def name_directory(self) -> None:
        """Choose a name for the directory on the cold disk, if there is none yet; the list is to name it before it is made."""
        if not self._cold_id:
            self._cold_id, self._is_dirty = os.urandom(COLD_ID_BYTES), True

    def copied(self, segment_seq: int, entry: ColdEntry) -> None:
        """Note a copy that is durable: the list is to name it."""
        self._copied[segment_seq] = entry

    def left_over(self, segment_seq: int) -> None:
        """Note a file on the cold disk, whole or not, that the list is not to name: a copy replaces it, or it goes with its segment."""
        self._spare_copies.add(segment_seq)

    def returned(self, segment_seq: int, damage: str) -> None:
        """Note a damaged cold segment of which there is a copy beside the hot ones: the list is to forget it."""
        self._returned[segment_seq] = damage

    def flip_job(self, spared: Collection[int]) -> ColdFlipJob | None:
        """Return the job that writes the list, if there is anything new in it.

        Args:
            spared: segments that are to stay where they are: what was copied of them is given up.
        """
        self._prune(spared)
        is_elsewhere = self.tenure.root == self.root != self._listed_root
        if not (self._is_dirty or self._copied or self._returned or is_elsewhere):
            return None
        self._is_dirty = False
        flipped = [seq for seq in self._copied if seq not in self._entries]
        content = self._content({**self._entries, **self._copied}, without=self._returned)
        return ColdFlipJob(self._disk, self._paths, content, flipped, list(self._returned))

    def _prune(self, spared: Collection[int]) -> None:
        for segment_seq in [seq for seq in self._copied if seq in spared or seq not in self._segments]:
            del self._copied[segment_seq]
            self._unwanted[segment_seq] = None
        for segment_seq in [seq for seq in self._spare_copies if seq not in self._segments]:
            self._spare_copies.discard(segment_seq)
            self._unwanted[segment_seq] = None
        for segment_seq in [seq for seq in self._entries if seq not in self._segments]:
            self.forget([segment_seq])
            self._is_dirty = True
        for segment_seq in [seq for seq in self._returned if seq not in self._entries]:
            del self._returned[segment_seq]

    def finish_flip(self, job: ColdFlipJob) -> dict[int, str]:
        """Take back the job that wrote the list. Returns the segments that are hot again, and what is wrong with them."""
        self.is_listed = True
        self._spare_copies.difference_update(job.flipped)
        for segment_seq in job.flipped:
            self._entries[segment_seq] = self._copied.pop(segment_seq)
            self._segments.move(segment_seq, to_cold=True)
            self.moved_count += 1
        returned = {seq: self._returned.pop(seq) for seq in job.returned}
        for segment_seq in returned:
            self.forget([segment_seq])
            self._segments.move(segment_seq, to_cold=False)
        return returned

    def owe_list(self) -> None:
        """Note that the list could not be written, for want of room."""
        self._is_dirty = bool(self._cold_id)

    def list_without(self, going: Sequence[int]) -> bytes | None:
        """The list without the segments that are deleted, to be written before their files go; None if it names none of them."""
        if not self._is_dirty and not any(seq in self._entries for seq in going):
            return None
        self._is_dirty = False
        return self._content(self._entries, without=going)

    def _content(self, entries: dict[int, ColdEntry], without: Collection[int]) -> bytes:
        gone = [seq for seq in without if seq in entries]
        kept = {seq: entry for seq, entry in entries.items() if seq not in gone}
        if self.is_bare or self.tenure.root == self.root:
            self._listed_root = self.root  # else the list goes on to say where the files were moved to
        return encode_cold_list(ColdList(self._cold_id, self._listed_root, kept, (*self._unwanted, *gone)))

    # --- deleting ------------------------------------------------------------------------------------------------------------

    def forget(self, segment_seqs: Sequence[int]) -> None:
        """Note that the list does not name these segments any more: their files are to go."""
        for segment_seq in segment_seqs:
            self.files.let_wait_no_longer(segment_seq)
            if self._entries.pop(segment_seq, None) is not None or self._copied.pop(segment_seq, None) is not None:
                self._unwanted[segment_seq] = None

    def delete_job(self) -> ColdDeleteJob | None:
        """Return the job that deletes files on the cold disk; once after a start it looks for leftovers too."""
        directory = self.directory
        if directory is None or (self._is_swept and not self._unwanted):
            return None
        keeps = None if self._is_swept else self.known
        if not self._is_swept and self.is_bare:
            self._is_swept = True  # the directory need not be there
            return None
        return ColdDeleteJob(directory, list(self._unwanted), keeps)

    def finish_delete(self, job: ColdDeleteJob) -> None:
        """Take back a job that deleted files."""
        self._is_swept = True
        for segment_seq in job.segment_seqs:
            if self._unwanted.pop(segment_seq, self) is None:
                self._is_dirty = True

    # --- faults --------------------------------------------------------------------------------------------------------------

    @property
    def fault(self) -> str:
        """Why the cold disk cannot be read or written now; empty if it can be both, or if it is not set and has no segment."""
        is_used = self.settings.cold_dir or self._entries
        return (self.faults.fault or self.write_faults.fault) if is_used else ""

    def note_fault(self, fault: str, *, is_writing: bool) -> list[Event]:
        """Note that the cold disk could not be read, or not be written."""
        if self._listed_root and self._listed_root != self.root:
            fault += f"; the segments were moved to {self._listed_root}: set tier.cold_dir to it, or move them"
        # Who waits for a file is told of a fault in reading, whatever is known of writing.
        is_known = self.fault if is_writing else self.faults.fault
        (self.write_faults if is_writing else self.faults).note_fault(fault)
        return [] if is_known else [ColdDiskFaulted(fault)]

    def note_sight(self, *, is_writing: bool) -> list[Event]:
        """Note that the cold disk could be read, and with `is_writing` that it could be written, too."""
        had_fault = bool(self.fault)
        self.faults.note_sight()
        if is_writing:
            self.write_faults.note_sight()
        return [ColdDiskFaulted("")] if had_fault and not self.fault else []
