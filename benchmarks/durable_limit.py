"""What this disk can do with the same bytes: the denominator of the ingest figures.

A bare loop: `pwritev` of prepared bytes to preallocated new files of 32 MiB, one thread that runs fdatasync again as soon as it
returned, one that preallocates the next file. No hand-off, no checksum, no Arrow, nothing readable at the end.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
import time

from benchmarks.harness import Measurements

FILE_BYTES = 32 << 20
WINDOW_BYTES = 32 << 20
"""Written but not yet synced at most: as much as a node with a usual arena has under way."""


class _Limit:
    """One run over one directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._changed = threading.Condition()
        self._unsynced: list[tuple[int, int]] = []
        self._synced_bytes = 0
        self._done = False
        self._spares: queue.Queue[int] = queue.Queue(maxsize=1)
        self._number = 0

    def run(self, chunk: bytes, total_bytes: int) -> float:
        """Seconds until `total_bytes` in chunks are durable."""
        threads = [threading.Thread(target=target, daemon=True) for target in (self._sync, self._allocate)]
        for thread in threads:
            thread.start()
        file, position, written = self._spares.get(), 0, 0
        started = time.perf_counter()
        while written < total_bytes:
            if position + len(chunk) > FILE_BYTES:
                file, position = self._spares.get(), 0
            os.pwritev(file, [chunk], position)
            position += len(chunk)
            written += len(chunk)
            self._wrote(file, len(chunk), written)
        with self._changed:
            self._changed.wait_for(lambda: self._synced_bytes >= written)
            took = time.perf_counter() - started
            self._done = True
            self._changed.notify_all()
        while threads[1].is_alive():
            try:
                os.close(self._spares.get(timeout=0.05))
            except queue.Empty:
                continue
        return took

    def _wrote(self, file: int, size_bytes: int, written: int) -> None:
        with self._changed:
            self._unsynced.append((file, size_bytes))
            self._changed.notify_all()
            self._changed.wait_for(lambda: written - self._synced_bytes < WINDOW_BYTES)

    def _sync(self) -> None:
        current = -1
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unsynced or self._done)
                if not self._unsynced:
                    return
                group, self._unsynced = self._unsynced, []
            for file in dict.fromkeys(file for file, _ in group):
                os.fdatasync(file)
                if current not in (-1, file):
                    os.close(current)
                current = file
            with self._changed:
                self._synced_bytes += sum(size for _, size in group)
                self._changed.notify_all()

    def _allocate(self) -> None:
        while not self._done:
            path = os.path.join(self._directory, f"limit-{self._number}")
            self._number += 1
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self._spares.put(descriptor)


def durable_limit(directory: str, bundle_bytes: int, bundles: int, group: int) -> Measurements:
    """Write `bundles` of that size durably, `group` of them with one call; bundles/s and MB/s."""
    root = tempfile.mkdtemp(prefix="limit-", dir=directory)
    try:
        chunk = os.urandom(bundle_bytes * group)
        took = _Limit(root).run(chunk, bundles * bundle_bytes)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return {"bundles/s": bundles / took, "MB/s": bundles * bundle_bytes / took / 1e6}
