"""Repeated publishes at a core that the node no longer has: its directory was moved aside once all was delivered.

Nothing can be left to do there, because a core with stages is not retired. What has to be told apart is a stage that was published from
one that was dropped, or that was in another directory of that name.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver_actors.base.core_dirs import RETIRED_NAME
from quiver_actors.errors import QuiverError, TransactionLost
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.staged.records import JournalRecord, decode_journal

_BYTES_MAX = 64 << 20


class RetiredJob:
    """Finds out whether stages of a core that no longer exists were published; `error` is None if they were."""

    def __init__(self, data_dir: str, topic: str, core: int, incarnation: str, numbers: Sequence[int]) -> None:
        self._data_dir = data_dir
        self._topic = topic
        self._core = core
        self._incarnation = incarnation
        self._numbers = numbers
        self.error: QuiverError | None = None

    def run(self) -> None:
        """Look into the directory of a retired core whether the stages were published; an error goes into the job."""
        try:
            disk = PosixDisk(self._data_dir)
            try:
                check_published(disk, self._topic, self._core, self._incarnation, self._numbers)
            finally:
                disk.close()
        except QuiverError as error:
            self.error = error


def check_published(disk: Disk, topic: str, core: int, incarnation: str, numbers: Sequence[int]) -> None:
    """
    Raises:
        TransactionLost: one of the stages was dropped, or was never there.
    """
    place = f"topic {topic!r} on core {core}, which this node does not have any more"
    paths = EnginePaths(f"{topic}/{RETIRED_NAME}/core_{core}")
    if not disk.exists(paths.core):
        raise TransactionLost(
            f"{place}: nothing is left of its directory: the data directory may not be the one that the token was made in"
        )
    found = decode_core(read_whole(disk, paths.core, _BYTES_MAX)).incarnation.hex()
    if found != incarnation:
        raise TransactionLost(f"{place}: the token is of directory {incarnation}, this one was {found}")
    journal = JournalRecord()
    if disk.exists(paths.transactions):
        journal = decode_journal(read_whole(disk, paths.transactions, _BYTES_MAX))
    dropped = {record.number: record.reason for record in journal.dropped}
    for number in numbers:
        was_published = journal.was_published(number)
        if was_published is None and number < journal.next_number:
            raise TransactionLost(f"{place}: {journal.why_unknown(number)}")
        if not was_published:
            raise TransactionLost(
                f"{place}: stage {number} was not published: {dropped.get(number, 'nothing is known of it')}"
            )
