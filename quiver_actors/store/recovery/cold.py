"""The list of cold segments at a start: which of the segments that it names are on the cold disk. See `cold_list`.

Owner: one `Recovery`. Nothing is read of the cold disk, so a start takes as long with ten thousand cold segments as with none, and one
without the cold disk finds them all. A segment that has a file in `segments/` too is hot. A list that is damaged is made anew from the
files on the cold disk, and the start is refused while these cannot be read: without the list their bundles would seem to be lost.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from typing import NamedTuple

from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.cold_directory import ColdDirectory, ColdDisks, cold_id_of
from quiver_actors.store.files.cold_list import (
    COLD_NAME,
    ColdEntry,
    ColdList,
    decode_cold_list,
    encode_cold_list,
)
from quiver_actors.store.files.cold_owner import read_hot_owner, read_owner
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import keep_in_quarantine
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.jobs.cold import read_entry
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.recovery.found_segments import FoundSegments
from quiver_actors.store.segment.check import is_plausible
from quiver_actors.store.segment.codec import decode_footer


class ColdPlace(NamedTuple):
    """Where the cold segments of a topic lie, by its settings."""

    disks: ColdDisks
    root: str
    """The value of `tier.cold_dir`; empty: it is not set."""


class FoundCold:
    """The cold segments of one engine, as a start finds them.

    Attributes:
        content: what the list says, without the segments that are hot; None: there is no list.
        copied: hot segments that the list on disk names, too.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings, place: ColdPlace | None) -> None:
        self.content: ColdList | None = None
        self.copied: tuple[int, ...] = ()
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._place = place
        self._damage = ""

    @property
    def segments(self) -> Collection[int]:
        """Numbers of the cold segments."""
        return self.content.segments.keys() if self.content is not None else ()

    def read(self, names: Collection[str], hot: FoundSegments) -> None:
        """Read the list, add what is cold to the segments that were found, and change nothing.

        Args:
            names: what is in the root.
            hot: the segments that have a file in `segments/`.

        Raises:
            UnsupportedVersion: the list is of a newer program.
            DiskError: it is damaged, and the cold disk cannot be read.
        """
        if COLD_NAME not in names:
            return
        try:
            found = decode_cold_list(read_small(self._disk, self._paths.cold))
            _check(found)
        except DAMAGE as error:
            self._damage = str(error)
            found = self._made_anew()
        cold = {segment_seq: entry for segment_seq, entry in found.segments.items() if segment_seq not in hot}
        self.copied = tuple(segment_seq for segment_seq in found.segments if segment_seq not in cold)
        self.content = ColdList(found.cold_id, found.root, cold, found.unwanted)
        hot.add_cold(cold)

    def settle(self) -> None:
        """Write a list anew that was damaged. It is replaced and not moved: no crash leaves less."""
        if not self._damage or self.content is None:
            return
        kept_as = keep_in_quarantine(self._disk, self._paths, self._paths.cold)
        write_atomically(self._disk, self._paths.cold, encode_cold_list(self.content))
        self._disk.sync_directory(self._paths.root)
        why = f"{self._damage}; the {len(self.content.segments)} cold segments were found again on the cold disk"
        self._findings.note_quarantined(self._paths.cold, kept_as, why)

    def _made_anew(self) -> ColdList:
        if self._place is None or not self._place.root:
            raise self._refused("tier.cold_dir is not set: set it to the directory where they are")
        owner, found = read_owner(self._disk, self._paths.cold_owner), list(self._directories(self._place))
        if owner is not None:
            found = [directory for directory in found if directory.cold_id == owner.cold_id]
        if len(found) != 1:
            raise self._refused(f"{len(found)} directories in {self._place.root}/{self._paths.root} may be theirs")
        directory = found[0]
        with directory.opened() as disk:
            directory.prove_own(disk, read_hot_owner(self._disk, self._paths.cold_owner, directory.cold_id))
            entries = ((seq, self._entry(directory, disk, seq)) for seq in directory.listed(disk))
            segments = {seq: entry for seq, entry in entries if entry is not None}
        return ColdList(directory.cold_id, self._place.root, segments)

    def _directories(self, place: ColdPlace) -> Iterator[ColdDirectory]:
        with place.disks(place.root) as disk:
            names = disk.list_directory(self._paths.root)
        for name in names:
            cold_id = cold_id_of(name)
            if cold_id is not None:
                yield ColdDirectory(place.disks, place.root, self._paths, cold_id)

    def _entry(self, directory: ColdDirectory, disk: Disk, segment_seq: int) -> ColdEntry | None:
        file = directory.open_segment(disk, segment_seq)
        if file is None:
            return None  # a copy that was cut off
        try:
            return read_entry(file)
        except DAMAGE as error:
            raise self._refused(f"{directory.segment(segment_seq)} is damaged, too: {error}") from error
        finally:
            file.close()

    def _refused(self, why: str) -> DiskError:
        return DiskError(
            "read",
            self._paths.cold,
            errno.EBADMSG,
            f"the list of cold segments is damaged ({self._damage}), and it cannot be made anew from their files: {why}",
        )


def _check(found: ColdList) -> None:
    """Raises FormatError: the list is whole, and says what cannot be."""
    for segment_seq, entry in found.segments.items():
        footer = decode_footer(entry.end, entry.size_bytes)
        if footer.extension is None or not is_plausible(footer):
            raise InvalidFormat(f"{COLD_NAME}: what it says of segment {segment_seq} contradicts itself")
