"""What idempotent producers have stored, at open. See `transactions.keys`.

Owner: one `Recovery`. The keys of a log are in the file before the log becomes a segment, which nobody looks through.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        self._keys: list[tuple[str, KeyRun]] = []
        """Found in the log that is being sealed."""

    def load(self) -> None:
        if not self._disk.exists(self._paths.producers):
            return
        try:
            self.windows = decode_windows(read_small(self._disk, self._paths.producers))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._findings.quarantine(self._paths.producers, str(error))

    def add(self, keys: Iterable[tuple[str, KeyRun]]) -> None:
        """Of a log that is being sealed."""
        self._keys += keys

    def save(self) -> None:
        """Before that log is sealed."""
        if not self._keys:
            return
        for producer, run in self._keys:
            self.windows.add(producer, run)
        self._keys.clear()
        write_atomically(self._disk, self._paths.producers, self.windows.encode())
        self._disk.sync_directory(self._paths.root)
