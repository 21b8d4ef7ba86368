"""Finds, at open, what idempotent producers have stored. See `store.staged.keys`.

Owner: one `Recovery`. The keys of a log are in the file before the log becomes a segment, which nobody looks through unless the file
is damaged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, write_atomically
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.paths import PRODUCERS_NAME, EnginePaths
from quiver_actors.store.files.quarantine import keep_in_quarantine
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.recovery.stored_keys import keys_in_segment, keys_of_other_writer
from quiver_actors.store.segment.outline import Read
from quiver_actors.store.staged.keys import KeyRun, Windows, decode_windows

_READ_TRIES = 2
"""How often a segment is read in search of keys; what the disk does not give back then is forgotten for good."""


class FoundProducers:
    """The keys that idempotent producers have stored, as a start finds them in their file, in logs and in segments.

    Attributes:
        windows: as they are in the file, once it is settled.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.windows = Windows()
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._damage = ""
        self._keys: list[tuple[str, KeyRun, int]] = []
        """Keys found in the log that is being sealed, each with the floor of its producer's window, should it begin one."""

    def read(self, names: Container[str]) -> None:
        """Read the file, and change nothing.

        Args:
            names: what is in the root.

        Raises:
            UnsupportedVersion: it is of a newer program.
        """
        if PRODUCERS_NAME not in names:
            return
        try:
            self.windows = decode_windows(read_small(self._disk, self._paths.producers))
        except DAMAGE as error:
            self._damage = str(error)

    @property
    def is_damaged(self) -> bool:
        """The file cannot be read: what segments hold has to be found in them."""
        return bool(self._damage)

    def settle(self, segments: Collection[int]) -> None:
        """Make a file that is damaged anew, from the keys that these segments hold. It is replaced and not moved: no crash leaves less.

        What segments held that are deleted, or damaged themselves, is forgotten.
        """
        if not self.is_damaged:
            return
        kept_as = keep_in_quarantine(self._disk, self._paths, self._paths.producers)
        unreadable = [segment_seq for segment_seq in sorted(segments) if not self._find_keys(segment_seq)]
        self._write()
        beside = f" but for {len(unreadable)} that cannot be read" if unreadable else ""
        self._findings.note_quarantined(
            self._paths.producers,
            kept_as,
            f"{self._damage}; what {len(self.windows)} producers have stored was found again in the {len(segments)} segments{beside}. What "
            "deleted segments held is forgotten: it is stored once more if it is pushed again",
        )

    def _find_keys(self, segment_seq: int) -> bool:
        file = self._disk.open_read(self._paths.segment(segment_seq))
        try:
            for _ in range(_READ_TRIES):
                try:
                    return self._find_in(file.read, file.size(), segment_seq)
                except DiskError as error:
                    if error.errno not in UNREADABLE_ERRNOS:
                        raise
        finally:
            file.close()
        return False

    def find(self, read: Read, size_bytes: int, segment_seq: int) -> None:
        """Find the keys of a segment that only lacks its name and is durable, if the file of the keys is damaged."""
        if self.is_damaged and self._find_in(read, size_bytes, segment_seq):
            self._write()

    def _find_in(self, read: Read, size_bytes: int, segment_seq: int) -> bool:
        """Whether it could be read."""
        try:
            keys = keys_in_segment(read, size_bytes, segment_seq)
        except FormatError:
            return False
        for producer, run in keys:
            self.windows.find(producer, run)
        return True

    def take_over(self, segment_seq: int, sequences: Mapping[tuple[str, int], int]) -> None:
        """What producers have stored in a segment that another writer has made of a log of ours, which goes.

        Args:
            sequences: of the keys of logs that are there still.
        """
        file = self._disk.open_read(self._paths.segment(segment_seq))
        try:
            keys = keys_of_other_writer(file.read, file.size(), segment_seq)
        except FormatError as error:
            self._findings.notes.append(f"keys of segment {segment_seq} cannot be read: {error}")
            return
        finally:
            file.close()
        self.add(
            (producer, run._replace(sequence=sequences.get((producer, run.first), run.sequence)))
            for producer, run in keys
        )

    def add(self, keys: Iterable[tuple[str, KeyRun]], lost: Sequence[int] = ()) -> None:
        """Note the keys of a log that is being sealed.

        Args:
            lost: indexes of bundles that are missing in it, rising. Any of those in front of a producer's first one may be of that
                producer, and so it may push as many earlier numbers, too.
        """
        for producer, run in keys:
            self._keys.append((producer, run, max(0, run.first - bisect_left(lost, run.bundle_index))))

    @property
    def has_unsaved(self) -> bool:
        """Whether `save` has something to write. The bundles that those keys name must be durable before."""
        return bool(self._keys)

    def save(self) -> None:
        """Write the keys that were noted. To be called before their log is sealed."""
        if not self._keys:
            return
        for producer, run, floor in self._keys:
            self.windows.add(producer, run, floor)
        self._keys.clear()
        self._write()

    def mark_recovered(self, generation: int) -> None:
        """All logs are sealed: from now on the file tells everything that producers have stored here before that generation of the data
        directory. Written where it is new."""
        if generation and self.windows.recovered_in != generation:
            self.windows.recovered_in = generation
            self._write()

    def _write(self) -> None:
        write_atomically(self._disk, self._paths.producers, self.windows.encode())
        self._disk.sync_directory(self._paths.root)
