"""The end of a push into a topic whose durability is `archived`: what is synced on the node waits until the archive has it.

Guarantees:
- A receipt says `ARCHIVED` only if the archiver's account of itself names the segment of its bundle, under the same incarnation.
- Whatever else happens, the receipts of what is synced reach the caller, with the error if there is one.
"""

from __future__ import annotations

import time

from quiver_actors.base.archive_status import ArchiveStatus, read_archive_status
from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.client.archived import NotArchived, Wanted, is_archived, not_archived_text
from quiver_actors.client.exchange import Flow, deadline_after
from quiver_actors.client.receipts import Receipts

LOOK_NS = 10 * MILLISECOND_NS
"""How often the archiver's account is read while somebody waits."""


class StoredNotArchived(NotArchived):
    """The pushed bundles are durable on this node and not in the archive yet, or never will be: `receipts` says where they are.

    The push is done: made again it would store its bundles once more, unless they are numbered. `Client.wait_archived(error.receipts)`
    waits on.
    """

    code = "stored_not_archived"
    retriable = False

    def __init__(self, message: str, receipts: Receipts | None = None) -> None:
        super().__init__(message)
        self.receipts = receipts
        """Receipts of the bundles, all of which are synced; None: the error has come from another host."""


class _Account:
    """What archivers have said last, by the run directories of their nodes: however many calls wait, a file is read once in `LOOK_NS`."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, ArchiveStatus | None]] = {}

    def read(self, run_dir: str, now_ns: int) -> ArchiveStatus | None:
        read_ns, status = self._found.get(run_dir, (0, None))
        if now_ns - read_ns >= LOOK_NS:
            status = read_archive_status(run_dir)
            self._found[run_dir] = now_ns, status
        return status


_account = _Account()


def archiving(
    run_dir: str,
    receipts: Receipts,
    timeout_seconds: float,
    *,
    is_progress_waited_for: bool,
) -> Flow[None]:
    """Wait until the bundles of a call are in the archive; their receipts say so then.

    Args:
        run_dir: of the node.
        receipts: with the cores that are waited for in `archives_as`.
        is_progress_waited_for: the timeout is the longest time without another segment of these cores in the archive; False: it is the
            time for all.

    Raises:
        StoredNotArchived: the time is over, or some of it never will be archived.
    """
    deadline_ns, reached, incarnations = deadline_after(timeout_seconds), -1, receipts.archives_as
    left = [
        Wanted(receipts.topic, core, incarnations[core], places)
        for core, places in receipts.places().items()
        if core in incarnations
    ]
    while True:
        now_ns = time.monotonic_ns()
        status = _account.read(run_dir, now_ns)
        try:
            left = [each for each in left if not is_archived(status, each)]
        except NotArchived as error:
            raise StoredNotArchived(f"{error}. Its receipt is in this error", receipts) from error
        if not left:
            receipts.note_archived(incarnations)
            return
        if is_progress_waited_for and (archived := _archived_through(status, left)) != reached:
            reached, deadline_ns = archived, deadline_after(timeout_seconds)
        if now_ns >= deadline_ns:
            raise StoredNotArchived(
                f"{not_archived_text(status, left[0], timeout_seconds)}. The push is done, and its receipts are in this error: wait on "
                "with wait_archived(error.receipts); pushed again, the bundles would be stored twice unless they are numbered",
                receipts,
            )
        yield min(deadline_ns, now_ns + LOOK_NS)


def _archived_through(status: ArchiveStatus | None, left: list[Wanted]) -> int:
    cores = {(each.topic, each.core, each.incarnation) for each in left}
    streams = () if status is None else status.streams
    return sum(each.archived_through for each in streams if (each.topic, each.core, each.incarnation) in cores)
