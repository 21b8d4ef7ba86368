"""The list of topics as a worker knows it: read at the start, and again whenever the supervisor has written a new one.

Owner: the loop thread.
"""

from __future__ import annotations

import os

from quiver_actors.base.topics import Catalogue
from quiver_actors.errors import QuiverError
from quiver_actors.node.topics.catalogue import read_catalogue
from quiver_actors.node.worker.journal import Journal
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.topic_list import CATALOGUE_NAME


class CatalogueWatch:
    """Follows the catalogue of a data directory.

    Attributes:
        newest: the newest catalogue that was read; None: there is none.
    """

    def __init__(self, disk: Disk, data_dir: str, journal: Journal) -> None:
        """
        Args:
            disk: the data directory `data_dir`.
        """
        self.newest: Catalogue | None = None
        self._disk = disk
        self._path = os.path.join(data_dir, CATALOGUE_NAME)
        self._journal = journal
        self._seen: tuple[int, int] | None = None

    def read(self) -> None:
        """Read the catalogue if there is one. Raises QuiverError: it is damaged, or cannot be read."""
        self._seen = self._stamp()
        self.newest = read_catalogue(self._disk) or self.newest

    def look(self) -> None:
        """Read the catalogue if it is another one. One that cannot be read is reported, and the former one holds."""
        if self._stamp() != self._seen:
            try:
                self.read()
            except QuiverError as error:
                self._journal.error("topics.unreadable", f"the list of topics cannot be read: {error}")

    @property
    def version(self) -> int:
        """Version of the newest catalogue; 0 = there is none."""
        return self.newest.version if self.newest is not None else 0

    @property
    def arena_bytes(self) -> int:
        """Size of arenas that the newest catalogue names, in bytes; 0: none."""
        return self.newest.arena_bytes if self.newest is not None else 0

    def is_being_deleted(self, topic: str) -> bool:
        """Whether the supervisor waits for the files of a topic of that name to be gone."""
        return self.newest is not None and any(deletion.topic == topic for deletion in self.newest.deletions)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
