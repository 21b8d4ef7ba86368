"""What idempotent producers have stored, at open. See `transactions.keys`.

Owner: one `Recovery`. The keys of a log are in the file before the log becomes a segment, which nobody looks through unless the file
is damaged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Container, Iterable, Sequence

from quiver_actors.disk.protocol import UNREADABLE_ERRNOS, Disk, write_atomically
from quiver_actors.disk.salvage import read_small
from quiver_actors.errors import DiskError, FormatError, UnsupportedVersion
from quiver_actors.paths import PRODUCERS_NAME, EnginePaths
from quiver_actors.quarantine import keep_in_quarantine
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.stored_keys import keys_in_segment
from quiver_actors.segment.outline import Read
from quiver_actors.transactions.keys import KeyRun, Windows, decode_windows

_READ_TRIES = 2
"""What a disk does not give back then is forgotten, for good."""


class FoundProducers:
    """See the module.

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
        """Found in the log that is being sealed, each with the floor of a producer that it begins."""

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
        except UnsupportedVersion:
            raise
        except FormatError as error:
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
        """The same of a segment that only lacks its name; all of it is durable."""
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

    def add(self, keys: Iterable[tuple[str, KeyRun]], lost: Sequence[int] = ()) -> None:
        """Of a log that is being sealed.

        Args:
            lost: indexes of bundles that are missing in it, rising. Any of those in front of a producer's first one may be of that
                producer, and so it may push as many earlier numbers, too.
        """
        for producer, run in keys:
            self._keys.append((producer, run, max(0, run.first - bisect_left(lost, run.bundle_index))))

    @property
    def has_unsaved(self) -> bool:
        """`save` has something to write: what it tells must be durable before."""
        return bool(self._keys)

    def save(self) -> None:
        """Before that log is sealed."""
        if not self._keys:
            return
        for producer, run, floor in self._keys:
            self.windows.add(producer, run, floor)
        self._keys.clear()
        self._write()

    def _write(self) -> None:
        write_atomically(self._disk, self._paths.producers, self.windows.encode())
        self._disk.sync_directory(self._paths.root)
