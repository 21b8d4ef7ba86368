"""Taking over one engine's directory on the cold disk, for its data directory. Blocking.

Runs on the thread for the cold disk, before anything is changed there. `store.files.cold_owner` has the rule, and what each step leaves.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk
from quiver_actors.store.files.cold_directory import ColdDirectory
from quiver_actors.store.files.cold_owner import (
    TOKEN_BYTES,
    ColdOwner,
    HotOwner,
    read_hot_owner,
    read_owner,
    write_owner,
)
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.jobs.cold import ColdJob


class ColdClaimJob(ColdJob):
    """Take the directory over under a new token.

    Attributes:
        token: 16 bytes, set when both disks have it.
    """

    def __init__(
        self, disk: Disk, paths: EnginePaths, directory: ColdDirectory, unwanted: Sequence[int], *, makes: bool
    ) -> None:
        """
        Args:
            disk: the hot disk.
            unwanted: segments to delete there.
            makes: nothing lies on the cold disk yet, and the directory may be made.
        """
        super().__init__(directory)
        self.token = b""
        self._disk = disk
        self._paths = paths
        self._unwanted = unwanted
        self._makes = makes

    def work(self) -> None:
        """Give both disks the token; durable on return. Where one of them has no room they keep the token that they have."""
        path, directory = self._paths.cold_owner, self.directory
        hot = read_hot_owner(self._disk, path, directory.cold_id)
        with directory.taking(hot, makes=self._makes) as cold:
            try:
                self.token = self._take(cold, hot)
            except DiskError as error:
                if error.errno not in NO_SPACE_ERRNOS:
                    raise
                if not self._keep(cold):
                    # The next attempt has their room.
                    directory.delete(cold, self._unwanted)
                    raise

    def _take(self, cold: Disk, hot: HotOwner) -> bytes:
        path, (former, inode) = self._paths.cold_owner, hot
        owner = ColdOwner(self.directory.cold_id, os.urandom(TOKEN_BYTES), inode)
        if former is None or former.inode != inode:
            # The cold directory is nobody's. Cut off below, it must know this data directory by a token.
            former = owner._replace(token=os.urandom(TOKEN_BYTES))
            write_owner(self._disk, path, former)
        self.directory.write_owner(cold, owner._replace(former=former.token))
        write_owner(self._disk, path, owner)
        self.directory.write_owner(cold, owner)
        return owner.token

    def _keep(self, cold: Disk) -> bool:
        """Go on under the token that the data directory has, if the cold directory has it too, or has room for it."""
        hot, found = read_owner(self._disk, self._paths.cold_owner), self.directory.owner(cold)
        if hot is None or found is None:
            return False
        if found.token != hot.token:
            self.directory.write_owner(cold, hot)
        self.token = hot.token
        return True
