"""The directory of one engine, told from every other one that may stand in its place. Blocking.

Owner: the engine; its jobs ask on the seal thread. A file that is missing is lost only where the directory that it was in is still the one
that the engine was opened on: an engine holds its lock, so nobody else deletes there by right, and nobody brings the file back by mounting
or renaming something. Where another directory has the name, or none has, the file may be where it was: that is a fault that may pass.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths


class DirectoryGone(DiskError):
    """The directory of an engine that was open before is not there: it was moved, unmounted or deleted. It may come back."""

    def __init__(self, path: str) -> None:
        super().__init__(
            "open", path, errno.ESTALE, "it was moved, deleted or unmounted: bring it back, or stop the node"
        )


def check_still_there(disk: Disk, paths: EnginePaths) -> None:
    """Check a directory that an engine has had open, without making anything of it. Raises DirectoryGone."""
    has_begun = disk.exists(paths.core) or disk.exists(paths.wal)
    if not (has_begun and disk.exists(paths.segments)):
        raise DirectoryGone(paths.root)


class OwnDirectory:
    """Tells whether an engine's directory is still the one that was locked and recovered. Made at that time."""

    def __init__(self, disk: Disk, paths: EnginePaths) -> None:
        """Raises DiskError: the directory cannot be looked at."""
        self._disk = disk
        self._paths = paths
        self._ids = {path: disk.file_id(path) for path in (paths.root, paths.lock, paths.segments)}

    def fault(self) -> str:
        """Why the directory is not the engine's own now: it was moved, unmounted, or covered by another one; empty if it is."""
        for path, known_id in self._ids.items():
            try:
                found_id = self._disk.file_id(path)
            except DiskError as error:
                return str(error)
            if found_id is None:
                return f"{path} is gone: it was moved, deleted or unmounted; bring it back, or stop the node"
            if found_id != known_id:
                return f"{path} is another one than at the start: something was mounted or moved there; bring the former one back"
        return ""

    def lost_among(self, segment_seqs: Iterable[int]) -> list[int]:
        """The segments among these whose files were deleted; the deletions are durable when this returns.

        Raises:
            DiskError: it cannot be told now; ESTALE: the directory is not the engine's own, and the error says why.
        """
        missing = self._missing_among(segment_seqs)
        # Looked at between two looks at the files: a directory that goes away or comes back meanwhile is not taken for its files.
        if missing and (fault := self.fault()):
            raise DiskError("open", self._paths.segment(missing[0]), errno.ESTALE, fault)
        missing = self._missing_among(missing)
        if missing:
            self._disk.sync_directory(self._paths.segments)
        return missing

    def _missing_among(self, segment_seqs: Iterable[int]) -> list[int]:
        return [seq for seq in segment_seqs if not self._disk.exists(self._paths.segment(seq))]
