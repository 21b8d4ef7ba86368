"""What a run keeps of its disk: a moment before each call that changes it, and which log entries a write brings there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.wal import layout
from tests.disks.faulty import CallSite
from tests.disks.simulated import SimDisk


@dataclass(slots=True)
class Moment:
    """The disk right before a call."""

    disk: SimDisk
    at: int
    """Number of calls before this moment."""
    site: CallSite
    """Site of the call that is next."""
    path: str = ""
    """Path that the next call changes."""


class Recorder(InterposedDisk):
    """Tells the world of each call that changes the disk, before it is done."""

    sees_reads = False

    def __init__(self, inner: Disk, before: Callable[[Call], None]) -> None:
        super().__init__(inner)
        self._before = before

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        self._before(call)
        return proceed()


def sequences_in(call: Call) -> list[int]:
    """The sequences of the log entries that a write brings to disk."""
    if "/wal/" not in call.path or call.path.endswith((".cursor", ".cursor.tmp")):
        return []
    data, found = b"".join(call.buffers), []
    at = layout.HEADER_BYTES if data.startswith(layout.WAL_MAGIC) else 0
    while at + layout.ENTRY_HEAD.size <= len(data):
        length, entry_type, _, sequence, _ = layout.ENTRY_HEAD.unpack_from(data, at)
        if not length or entry_type != layout.ENTRY_TYPE_BUNDLE:
            break
        found.append(sequence)
        at += length + layout.ENTRY_OVERHEAD_BYTES
    return found
