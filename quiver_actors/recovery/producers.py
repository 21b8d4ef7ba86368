"""What idempotent producers have stored, at open. See `transactions.keys`.

Owner: one `Recovery`. The keys of a log are in the file before the log becomes a segment, which nobody looks through.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from quiver_actors.disk.protocol import Disk, write_atomically
from quiver_actors.errors import FormatError, UnsupportedVersion
from quiver_actors.paths import EnginePaths
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.subscribers import read_small
from quiver_actors.transactions.keys import KeyRun, Windows, decode_windows


class FoundProducers:
    """See the module.

    Attributes:
        windows: as they are in the file.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.windows = Windows()
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._keys: list[tuple[str, KeyRun, int]] = []
        """Found in the log that is being sealed, each with the floor of a producer that it begins."""

    def load(self) -> None:
        if not self._disk.exists(self._paths.producers):
            return
        try:
            self.windows = decode_windows(read_small(self._disk, self._paths.producers))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._findings.quarantine(self._paths.producers, str(error))

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
        write_atomically(self._disk, self._paths.producers, self.windows.encode())
        self._disk.sync_directory(self._paths.root)
