"""Whether the directory on the cold disk is this engine's to change.

Owner: the engine's `ColdSegments`, on the loop thread. Another data directory may take the cold directory over at any time, which a job
finds out on the thread for the cold disk: see `store.files.cold_owner`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.cold_directory import ColdDirectory, ColdDisks
from quiver_actors.store.files.cold_owner import ColdOwner, HotOwner, read_hot_owner
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold_claim import ColdClaimJob
from quiver_actors.store.jobs.cold_removal import ColdRemoveJob


class ColdTenure:
    """What the engine has taken over.

    Attributes:
        root: the cold directory in which it was; empty: nothing was taken over, or it is another data directory's by now.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, disks: ColdDisks) -> None:
        """
        Args:
            disk: the hot disk.
            disks: open the cold one.
        """
        self.root = ""
        self._token = b""
        self._disk = disk
        self._paths = paths
        self._disks = disks

    def directory(self, root: str, cold_id: bytes) -> ColdDirectory:
        """The engine's directory below a cold root, with the token if it was taken over there."""
        return ColdDirectory(self._disks, root, self._paths, cold_id, self._token if root == self.root else b"")

    def claim_job(self, directory: ColdDirectory, unwanted: Sequence[int], *, makes: bool) -> ColdClaimJob:
        """Return the job that takes a directory over, or with `makes` makes it where there is none.

        Args:
            unwanted: segments to delete there, if there is no room.
        """
        return ColdClaimJob(self._disk, self._paths, directory, unwanted, makes=makes)

    def finish_claim(self, job: ColdClaimJob) -> None:
        """Take back a job that took a directory over."""
        self.root, self._token = job.directory.root, job.token

    def note_taken(self) -> None:
        """Note that another data directory has taken the directory over: this one changes nothing there until it may have it again."""
        self.root, self._token = "", b""

    def remove_job(self, directory: ColdDirectory | None, known: Collection[int]) -> ColdRemoveJob | None:
        """Return the job that deletes a directory and the `known` segments in it; None if there is none."""
        if directory is None:
            return None
        if directory.token:
            return ColdRemoveJob(directory, HotOwner(ColdOwner(directory.cold_id, directory.token, 0), 0), known)
        hot = HotOwner(None, 0)
        with contextlib.suppress(DiskError):
            hot = read_hot_owner(self._disk, self._paths.cold_owner, directory.cold_id)
        return ColdRemoveJob(directory, hot, known)
