"""Directories of deleted topics: what is in them is unlinked, a few files at a time.

A segment or a log that some process still has open or mapped keeps its name until nobody has it any more: so its bytes count as used
space, also after a restart. One that only processes of other users have is emptied `GRACE_NS` after this object first met it.

Owner: the keeper of the list of topics, in the supervisor's loop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator

from quiver_actors.store.disk.held import GRACE_NS
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.held_names import is_given_back
from quiver_actors.store.files.paths import SEGMENT_SUFFIX
from quiver_actors.store.wal.layout import ACTIVE_NAME

ASIDE_PREFIX = ".deleted-"


class DeletedDirectories:
    """The directories below a data directory whose names begin with `ASIDE_PREFIX`."""

    def __init__(self, disk: Disk, data_dir: str) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._held_since_ns: dict[str, int] = {}
        """Monotonic time at which each file was first found in use, by its path."""

    @property
    def has_held(self) -> bool:
        """Whether the last `unlinking` left files that some process has."""
        return bool(self._held_since_ns)

    def unlinking(self, now_ns: int) -> Iterator[None]:
        """Remove everything that nobody has, a step at a time. Raises OSError, DiskError."""
        before, self._held_since_ns = self._held_since_ns, {}
        for name in self._disk.list_directory("."):
            if name.startswith(ASIDE_PREFIX):
                yield from self._emptied(name, before, now_ns)

    def _emptied(self, directory: str, before: dict[str, int], now_ns: int) -> Generator[None, None, bool]:
        """Remove a directory; returns whether it is gone."""
        is_empty = True
        try:
            with os.scandir(os.path.join(self._data_dir, directory)) as entries:
                found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:
            return True
        for name, is_directory in found:
            path = f"{directory}/{name}"
            if is_directory:
                is_empty &= yield from self._emptied(path, before, now_ns)
            elif self._is_in_use(path, before.get(path, now_ns), now_ns):
                is_empty = False
                yield
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._data_dir, path))
                yield
        if is_empty:
            os.rmdir(os.path.join(self._data_dir, directory))
        return is_empty

    def _is_in_use(self, path: str, since_ns: int, now_ns: int) -> bool:
        """Whether the name of a file must stay. Descriptors are given out of segments and logs only."""
        held = self._disk.keep(path) if SEGMENT_SUFFIX in path or ACTIVE_NAME in path else None
        if held is None:
            return False
        held.path = path
        try:
            if is_given_back(held, is_overdue=now_ns - since_ns >= GRACE_NS):
                return False
        finally:
            held.close()
        self._held_since_ns[path] = since_ns
        return True
