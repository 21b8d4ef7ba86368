"""The files of the segments that were read last, within a limit of bytes and of files: each has descriptors of this process.

What is above a limit goes, the one that was used longest ago first. A reader that still has the file of such a segment keeps it for
itself; its bytes go with the reader. Any thread may ask.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial

from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.base.locks import new_lock

Make = Callable[[Callable[[int], None]], CachedFile]
"""Makes a file; is given what the file calls with the number of bytes that it stores."""


class BlockCache:
    """Files of archived segments, of which those that were read longest ago go first. Any thread may ask.

    Args:
        size_max_bytes: of all blocks that are stored in files of this cache. The file that grows last stays, however large it is.
        count_max: of files.
    """

    def __init__(self, size_max_bytes: int, count_max: int) -> None:
        self._size_max_bytes = size_max_bytes
        self._count_max = count_max
        self._files: OrderedDict[Hashable, CachedFile] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._size_bytes = 0
        self._lock = new_lock()

    @property
    def size_bytes(self) -> int:
        """Bytes of the blocks that are stored."""
        with self._lock:
            return self._size_bytes

    def file(self, key: Hashable, make: Make) -> CachedFile:
        """The file of a key, which is made if it is not there. Raises what `make` raises."""
        with self._lock:
            found = self._files.get(key)
            if found is not None:
                self._files.move_to_end(key)
                return found
        made = make(partial(self._grow, key))
        with self._lock:
            # Another thread may have been faster.
            found = self._files.setdefault(key, made)
            self._sizes.setdefault(key, 0)
            self._keep_to_limits()
            return found

    def close(self) -> None:
        """Forget all files. Idempotent."""
        with self._lock:
            self._files.clear()
            self._sizes.clear()
            self._size_bytes = 0

    def _grow(self, key: Hashable, size_bytes: int) -> None:
        with self._lock:
            if key not in self._files:
                return
            self._sizes[key] += size_bytes
            self._size_bytes += size_bytes
            self._files.move_to_end(key)
            self._keep_to_limits()

    def _keep_to_limits(self) -> None:
        while len(self._files) > self._count_max or (len(self._files) > 1 and self._size_bytes > self._size_max_bytes):
            oldest, _ = self._files.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)
