"""The newest log when a directory is opened: whether it was lost, and how a start takes it out of its name.

As long as the empty file `quiver.witness` is there, `wal/` has a log at any time: each log is followed by another one or by an empty one
before it becomes a segment, and a start leaves an empty one before it settles the first. Where there is no room for an empty one, the
witness goes first. No crash changes that, and none empties the header of a log, which is on the disk before the log gets its name. So
something else has been at work where the witness is there, the last stop was no clean one, and

| what a start finds                                             | what is told                                              |
|----------------------------------------------------------------|-----------------------------------------------------------|
| no log at all                                                  | one segment of which nobody knows how many bundles it had |
| `quiver.wal`, whose header cannot be read or is zero, no entry | the same                                                  |
| the same with entries, but not from its beginning on           | the same, and the entries are adopted                     |

After a clean stop everything is in segments, and nothing is lost with the log. Not seen: a log that is gone while an older one waits for
its seal, as between two renames of a rotation; and the end of a log that was zeroed or cut off: it looks like one that was never written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, read_whole
from quiver_actors.store.files.core_file import SEGMENT_SEQ_BLOCK, CoreFile
from quiver_actors.store.files.held_names import name_if_held
from quiver_actors.store.files.quarantine import keep_in_quarantine
from quiver_actors.store.jobs.sealing import drop_witness, write_empty_log
from quiver_actors.store.recovery.found_state import FoundState
from quiver_actors.store.recovery.logs import Readings
from quiver_actors.store.subscriber.registry import SubscriberRegistry
from quiver_actors.store.wal.codec import decode_header, encode_empty_header
from quiver_actors.store.wal.decisions import Behind, Header
from quiver_actors.store.wal.layout import ACTIVE_NAME, HEADER_BYTES
from quiver_actors.store.wal.recovery import FoundLog

_BLANK = "its header cannot be read, and there is no valid entry in it"


def is_newest_lost(logs: Sequence[FoundLog]) -> bool:
    """Return whether bundles of the newest log are lost, by the table of this module, where it applies."""
    return not logs or any(_is_blank(log) for log in logs if log.name == ACTIVE_NAME)


def number_of_newest(former: CoreFile, taken: Collection[int], registry: SubscriberRegistry) -> int:
    """Return the segment number under which the newest log is told of: its own, if it was the first of its process and no progress names
    it, else one behind all that are known. Where a start was cut off that has told of it, the same.

    Args:
        taken: numbers of which there is a file, readable or not.
    """
    first = max(former.next_segment_seq_reserved - SEGMENT_SEQ_BLOCK, max(taken, default=-1) + 1)
    seen = registry.highest_segment_seq_seen()
    was_told = seen >= first and any(state.gaps.has_open_end(seen) for state in registry)
    return seen if was_told else max(first, seen + 1)


def _is_blank(log: FoundLog) -> bool:
    """Whether nothing says where the log began, and entries may be missing from there on."""
    return log.header is None and (not log.has_entries or bool(log.damaged))


class NewestLog:
    """Takes `quiver.wal` out of its name for one recovery, so that an empty log can stand there while the others are settled."""

    def __init__(self, found: FoundState, cfg_hash: bytes) -> None:
        self._found = found
        self._paths = found.paths
        self._cfg_hash = cfg_hash
        self._left_at = -1
        """Log position of the empty log that this start has left; -1: none yet."""

    def vacate(self, logs: list[FoundLog], readings: Readings) -> bool:
        """Give a log of ours, or one whose header cannot be read, a rotated name, and leave an empty log in its place. One without entries
        that cannot be parsed is kept in quarantine/, and taken out of `logs`. Another writer's log keeps its name until its entries are
        elsewhere.

        Afterwards this start may be cut off anywhere: the next one finds a log, and does not tell of the same loss once more.

        Returns:
            Whether there is such a log; False: there is no room for one, and nothing says that there is one.
        """
        active = next((log for log in logs if log.name == ACTIVE_NAME), None)
        if active is not None and not self._takes_away(active, logs, readings):
            return True
        try:
            self._leave_empty()
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            drop_witness(self._found.disk, self._paths)  # a seal may make room
            return False
        return True

    def _takes_away(self, active: FoundLog, logs: list[FoundLog], readings: Readings) -> bool:
        """Whether the name is free, or what has it may be replaced."""
        if self._found.foreign.is_source(active):
            return False
        if not active.has_entries and active.header_state is not Header.OURS:
            if active.header is not None and active.behind is Behind.END:
                return False
            self._put_aside(active)
            logs.remove(active)
            return True
        if (active.has_entries or active.behind is Behind.TAIL) and active.header_state is not Header.FOREIGN:
            self._retire(active, readings)
            return True
        return False

    def leave_continuable(self) -> None:
        """Leave an empty log at the right position: a writer that finds none begins at position 0, before the cursor."""
        if not self._has_empty():
            self._leave_empty()

    def _has_empty(self) -> bool:
        disk, position = self._found.disk, self._found.numbers.position
        if self._left_at == position:
            return True
        if not disk.exists(self._paths.active):
            return False
        try:
            header = decode_header(read_whole(disk, self._paths.active, HEADER_BYTES))
        except FormatError:
            return False
        # One that a clean stop has left bears numbers that the next log gets, too.
        wanted = (position, self._cfg_hash, None)
        return (header.position_start, header.cfg_hash, header.identity) == wanted

    def _leave_empty(self) -> None:
        position = self._found.numbers.position
        write_empty_log(self._found.disk, self._paths, encode_empty_header(self._cfg_hash, position))
        self._left_at = position

    def _put_aside(self, log: FoundLog) -> None:
        disk = self._found.disk
        if log.behind is not Behind.END:
            kept_as = keep_in_quarantine(disk, self._paths, self._paths.active)
            self._found.findings.note_quarantined(self._paths.active, kept_as, _BLANK)
        name_if_held(disk, self._paths, self._paths.active)

    def _retire(self, log: FoundLog, readings: Readings) -> None:
        disk, path = self._found.disk, self._paths.rotated(self._found.numbers.take_rotation())
        disk.rename(self._paths.active, path)
        disk.sync_directory(self._paths.wal)
        former, log.name = log.name, path.rpartition("/")[2]
        readings.rename(former, log.name)
