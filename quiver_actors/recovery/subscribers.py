"""Progress and gap notices at open. A file that cannot be read makes no subscriber unknown, and loses it no bundle silently.

Owner: one `Recovery`.
"""

from __future__ import annotations

from quiver_actors.disk.protocol import Disk, write_atomically
from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.paths import EnginePaths
from quiver_actors.quarantine import SMALL_FILE_BYTES_MAX, copy_to_quarantine
from quiver_actors.recovery.findings import Findings
from quiver_actors.rescue import SalvageReader
from quiver_actors.subscriber.gaps import GapLedger, decode_gaps, gaps_file_name
from quiver_actors.subscriber.progress import decode_progress, encode_progress, subscriber_of
from quiver_actors.subscriber.registry import SubscriberRegistry


class FoundSubscribers:
    """See the module.

    Attributes:
        registry: everybody who has a progress file.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.registry = SubscriberRegistry()
        self._disk = disk
        self._paths = paths
        self._findings = findings

    def load(self) -> None:
        """
        Raises:
            UnsupportedVersion: a file is of a newer program.
        """
        for name in self._disk.list_directory(self._paths.root):
            subscriber = subscriber_of(name)
            if subscriber is None:
                continue
            path = self._paths.in_root(name)
            gaps = self._read_gaps(subscriber)
            try:
                self.registry.load(subscriber, decode_progress(read_small(self._disk, path)), gaps)
            except UnsupportedVersion:
                raise
            except FormatError as error:
                self._start_over(subscriber, path, str(error), gaps)

    def _start_over(self, subscriber: str, path: str, why: str, gaps: GapLedger) -> None:
        """Keep a subscriber whose progress is damaged, from the beginning: at least once, never silently less.

        Its file is replaced and not moved, so that no crash leaves the subscriber unknown.
        """
        state = self.registry.register(subscriber, "earliest", (0, 0))
        state.gaps = gaps
        kept_as = copy_to_quarantine(self._disk, self._paths, path)
        write_atomically(self._disk, path, encode_progress(state.snapshot(0)))
        self._disk.sync_directory(self._paths.root)
        self._findings.note_quarantined(path, kept_as, why)

    def _read_gaps(self, subscriber: str) -> GapLedger:
        path = self._paths.in_root(gaps_file_name(subscriber))
        if not self._disk.exists(path):
            return GapLedger()
        try:
            return decode_gaps(read_small(self._disk, path))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._findings.quarantine(path, str(error))
            return GapLedger()


def read_small(disk: Disk, path: str) -> bytes:
    """A core, cursor or progress file; what the disk does not give back is zero, and so damaged."""
    file = disk.open_read(path)
    try:
        source = SalvageReader(file)
        return source.read(min(source.size_bytes, SMALL_FILE_BYTES_MAX), 0)
    finally:
        file.close()
