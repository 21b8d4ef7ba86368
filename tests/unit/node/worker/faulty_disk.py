"""The real file system with operations that fail on demand, as a broken or full disk makes them fail."""

from __future__ import annotations

import errno
import threading

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.posix import PosixDisk, PosixFile


class Faults:
    """Which operations fail, on paths that contain a text. Set by the test, met by the worker's threads."""

    def __init__(self) -> None:
        self._failing: dict[tuple[str, str], int] = {}
        self.gate = threading.Event()
        """Cleared: every fdatasync waits until it is set."""
        self.gate.set()
        self.syncing: list[str] = []
        """Names of the threads that have begun an fdatasync, in order."""

    def set(self, operation: str, path_part: str, error: int = errno.EIO) -> None:
        self._failing[operation, path_part] = error

    def clear(self) -> None:
        self._failing.clear()

    def check(self, operation: str, path: str) -> None:
        for (failing, path_part), error in list(self._failing.items()):
            if failing == operation and path_part in path:
                raise DiskError(operation, path, error)


class FaultyFile(PosixFile):
    def __init__(self, descriptor: int, path: str, faults: Faults) -> None:
        super().__init__(descriptor, path)
        self._faults = faults

    def write(self, buffers: object, offset: int) -> None:
        self._faults.check("write", self.path)
        super().write(buffers, offset)  # type: ignore[arg-type]

    def read(self, length: int, offset: int) -> bytes:
        self._faults.check("read", self.path)
        return super().read(length, offset)

    def allocate(self, size_bytes: int, start: int = 0, *, length_bytes: int = 0) -> None:
        self._faults.check("allocate", self.path)
        super().allocate(size_bytes, start, length_bytes=length_bytes)

    def fdatasync(self) -> None:
        self._faults.syncing.append(threading.current_thread().name)
        self._faults.gate.wait(60)
        self._faults.check("fdatasync", self.path)
        super().fdatasync()


class FaultyDisk(PosixDisk):
    """The real file system, with operations that fail on demand."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.faults = Faults()

    def _open(self, operation: str, path: str, flags: int) -> PosixFile:
        self.faults.check("open", path)
        file = super()._open(operation, path, flags)
        return FaultyFile(file.fileno(), path, self.faults)
