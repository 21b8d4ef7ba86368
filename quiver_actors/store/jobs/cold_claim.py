"""Taking over one engine's directory on the cold disk, for its data directory. Blocking.

Runs on the thread for the cold disk, before anything is changed there. `store.files.cold_owner` has the rule, and what each step leaves.
"""

from __future__ import annotations

import os

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.cold_directory import ColdDirectory
from quiver_actors.store.files.cold_owner import TOKEN_BYTES, ColdOwner, read_hot_owner, write_owner
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import ColdJob


class ColdClaimJob(ColdJob):
    """Take the directory over under a new token.

    Attributes:
        token: 16 bytes, set when both disks have it.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, *, makes: bool) -> None:
        """
        Args:
            disk: the hot disk.
            makes: nothing lies on the cold disk yet, and the directory may be made.
        """
        super().__init__(directory)
        self.token = b""
        self._disk = disk
        self._paths = paths
        self._makes = makes

    def work(self) -> None:
        """Give both disks the token; durable on return."""
        directory, path = self.directory, self._paths.cold_owner
        former, inode = hot = read_hot_owner(self._disk, path, directory.cold_id)
        owner = ColdOwner(directory.cold_id, os.urandom(TOKEN_BYTES), inode)
        with directory.taking(hot, makes=self._makes) as cold:
            if former is None or former.inode != inode:
                # The cold directory is nobody's. Cut off below, it must know this data directory by a token.
                former = owner._replace(token=os.urandom(TOKEN_BYTES))
                write_owner(self._disk, path, former)
            directory.write_owner(cold, owner._replace(former=former.token))
            write_owner(self._disk, path, owner)
            directory.write_owner(cold, owner)
        self.token = owner.token
