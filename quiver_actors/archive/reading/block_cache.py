"""The files of the segments that were read last, within a limit of bytes and a share of the descriptors that this process may have.

What is above a limit goes, the one that was used longest ago first. A reader that still has the file of such a segment keeps it for
itself; its bytes and descriptors go with the reader. Any thread may ask.
"""

from __future__ import annotations

import resource
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial

from quiver_actors.archive.reading.cached_file import CachedFile
from quiver_actors.base.locks import new_lock

Make = Callable[[Callable[[int], None]], CachedFile]
"""Makes a file; is given what the file calls with the number of bytes that it stores."""
_DESCRIPTORS_SHARE = 4
"""A quarter of the descriptors that a process may have is for these files."""
_DESCRIPTORS_EACH = 2
"""Its own, and that of its mapping."""
_FILES_MIN = 8


class BlockCache:
    """Files of archived segments, of which those that were read longest ago go first. Any thread may ask.

    Args:
        size_max_bytes: of all blocks that are stored in files of this cache. The file that grows last stays, however large it is.
        files_max: number of files; None: as many as `default_files_max` says now.
    """

    def __init__(self, size_max_bytes: int, files_max: int | None = None) -> None:
        self._size_max_bytes = size_max_bytes
        self._files_max = files_max or default_files_max()
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
        # Without a circle, so that a cache that is dropped gives its descriptors back at once.
        made = make(partial(_tell, weakref.WeakMethod(self._grow), key))
        with self._lock:
            # Another thread may have been faster.
            found = self._files.setdefault(key, made)
            self._sizes.setdefault(key, 0)
            self._shrink()
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
            self._shrink()

    def _shrink(self) -> None:
        while len(self._files) > 1 and (self._size_bytes > self._size_max_bytes or len(self._files) > self._files_max):
            oldest, _ = self._files.popitem(last=False)
            self._size_bytes -= self._sizes.pop(oldest)


def default_files_max() -> int:
    """Return how many files a cache keeps: segments may be so small that thousands of them are within its bytes."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors == resource.RLIM_INFINITY:
        descriptors = 1 << 20
    return max(_FILES_MIN, descriptors // (_DESCRIPTORS_SHARE * _DESCRIPTORS_EACH))


def _tell(grow: weakref.WeakMethod[Callable[[Hashable, int], None]], key: Hashable, size_bytes: int) -> None:
    """Tell a cache, if it is still there, that one of its files has grown."""
    if (found := grow()) is not None:
        found(key, size_bytes)
