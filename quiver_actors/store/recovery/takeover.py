"""Finds what another writer has done in this directory since the last start: the entries of our logs that it has sealed, and the
segments that need other numbers.

Owner: one `Recovery`. The other writer numbers segments on from the highest file name, from 0 where there is none, and knows nothing of
numbers that bundles had whose files are gone. Its segments bear no trace of the log entries that they were made of. What is new here has
the right checksum: `FoundSegments` takes nothing else for another writer's.

| a segment without our footer extension                     | what becomes of it                                               |
|------------------------------------------------------------|------------------------------------------------------------------|
| was there at a start before (number, size, checksum)       | stays as it is                                                   |
| below a watermark, and no start before has kept a record   | stays: it was delivered                                          |
| its bundles are the first entries of a log of ours         | has the number of that log: the ids that receipts named are right |
| has a number that bundles of ours had, or may have had     | gets a new one: it is new data                                   |
| anything else                                              | stays as it is                                                   |
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quiver_actors.store.disk.protocol import read_whole
from quiver_actors.store.recovery.found_state import FoundState
from quiver_actors.store.recovery.same_bundles import same_bundles
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.decisions import Behind, Header
from quiver_actors.store.wal.reader import LogReader, Span
from quiver_actors.store.wal.recovery import FoundLog

_FILE_BYTES_MAX = 1 << 40


class Takeover:
    """Decides, for one start, what the segments of another writer hold and which of them get other numbers, and renames these.

    Attributes:
        held_ends: file offsets up to which segments hold the entries of a log, by the log's name.
        renumbered: new numbers of segments, by the old ones.
        new: numbers, as they were found, of segments that no start has announced.
    """

    def __init__(self, found: FoundState) -> None:
        self.held_ends: dict[str, int] = {}
        self.renumbered: dict[int, int] = {}
        self._disk = found.disk
        self._paths = found.paths
        self._numbers = found.numbers
        self._sealed_segments = found.sealed_segments
        self._subscribers = found.subscribers
        self._foreign = found.foreign
        self._findings = found.findings
        self._floor = max((state.progress.completed.floor for state in found.subscribers.own_states()), default=0)
        self._candidates = [seq for seq in sorted(found.sealed_segments.foreign) if not self._was_announced(seq)]
        self.new = tuple(self._candidates)

    def _was_announced(self, segment_seq: int) -> bool:
        if self._foreign.is_upgrade:
            return segment_seq < self._floor
        return self._foreign.was_announced(segment_seq, self._sealed_segments.foreign[segment_seq])

    # --- deciding ------------------------------------------------------------------------------------------------------------

    def decide(self, logs: list[FoundLog], adopted: Collection[str], used_end: int) -> None:
        """Find out what is held, and which numbers change; change nothing.

        Args:
            adopted: names of logs that an adoption before has read: nothing of theirs is decided here.
            used_end: numbers below it were used, as far as `quiver.core` tells.
        """
        if self._foreign.is_upgrade:
            for segment_seq in sorted(self._sealed_segments.foreign.keys() - set(self._candidates)):
                self._findings.note_taken_for_delivered(self._paths.segment(segment_seq), segment_seq)
        ours = [log for log in logs if log.header_state is Header.OURS and log.name not in adopted]
        for log in ours:
            if log.has_entries or log.behind is Behind.TAIL:
                self._decide_log(log, _identity(log))
        used = self._used_end(ours, used_end)
        for segment_seq in self._candidates:
            if segment_seq < used and segment_seq not in self.renumbered:
                self._give_new_number(segment_seq)

    def _decide_log(self, log: FoundLog, identity: Identity) -> None:
        became = self._sealed_segments.became(identity, log.position_start)
        if became is not None:
            assert log.header is not None
            self.held_ends[log.name] = became.position_end - log.position_start + log.header.header_bytes
            return
        first, end = self._sealed_by_other_writer(log)
        if first is None:
            if identity.segment_seq in self._candidates:
                self._give_new_number(identity.segment_seq)
            elif identity.segment_seq in self._sealed_segments.segments:
                # Another segment of ours, copied here, has the number: what the log holds gets another one.
                self.held_ends[log.name] = layout.HEADER_BYTES
            return
        self.held_ends[log.name] = end
        if first != identity.segment_seq:
            if identity.segment_seq in self._sealed_segments:
                # What has the log's number is something else. A number from before may lie below what subscribers have completed.
                self._give_new_number(first)
            else:
                self.renumbered[first] = identity.segment_seq
        self._candidates.remove(first)

    def _sealed_by_other_writer(self, log: FoundLog) -> tuple[int | None, int]:
        """The segment that begins with the log's first entry, and the file offset up to which it, and those after it, go on. One that has
        the log's number is looked at first: a start that was cut off may have given it that number."""
        first, end, done = None, 0, 0
        spans, number = log.scan.entries or self._entries_of_whole(log), _identity(log).segment_seq
        for segment_seq in sorted(self._candidates, key=lambda candidate: candidate != number):
            content = read_whole(self._disk, self._paths.segment(segment_seq), _FILE_BYTES_MAX)
            count, is_all = same_bundles(content, self._bodies(log, spans[done:]))
            if not count:
                if first is not None:
                    break
                continue
            done += count
            first, end = segment_seq if first is None else first, spans[done - 1].end
            if not is_all or done == len(spans):
                break
        if log.behind is not Behind.TAIL:
            return first, end
        # A seal that is finished but for its name becomes a segment as a whole, or not at all.
        return (first, log.size_bytes) if done == len(spans) else (None, 0)

    def _entries_of_whole(self, log: FoundLog) -> tuple[Span, ...]:
        """The entries of a log that is sealed but for its name: they were not looked for."""
        if not self._candidates or log.header is None:
            return ()
        file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
        try:
            return LogReader(file.read, log.size_bytes).scan(log.header.header_bytes, stride=1).entries
        finally:
            file.close()

    def _bodies(self, log: FoundLog, spans: tuple[Span, ...]) -> Iterator[bytes]:
        file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
        try:
            reader = LogReader(file.read, log.size_bytes)
            yield from (reader.body(span) for span in spans)
        finally:
            file.close()

    def _used_end(self, ours: list[FoundLog], used_end: int) -> int:
        """Numbers below it were, or may have been, those of bundles of ours."""
        if self._foreign.is_upgrade:
            return 0
        used = [extent.segment_seq for extent in self._sealed_segments.extents]
        used += [_identity(log).segment_seq for log in ours if log.has_entries]
        used += [state.progress.highest_segment_seq() for state in self._subscribers.own_states()]
        return max([used_end, *(segment_seq + 1 for segment_seq in used)])

    def _give_new_number(self, segment_seq: int) -> None:
        self.renumbered[segment_seq] = self._numbers.take_segment_seq()

    # --- doing -----------------------------------------------------------------------------------------------------------------

    def carry_out(self) -> None:
        """Rename the segments whose numbers change. Their new numbers are reserved durably before."""
        for segment_seq, new_segment_seq in self.renumbered.items():
            bundle_count = self._sealed_segments.segments[segment_seq].bundle_count
            self._sealed_segments.renumber(segment_seq, new_segment_seq)
            self._subscribers.renumber(segment_seq, new_segment_seq, bundle_count)
            self._findings.note_renumbered(self._paths.segments, segment_seq, new_segment_seq, bundle_count)
        if self.renumbered:
            self._disk.sync_directory(self._paths.segments)


def _identity(log: FoundLog) -> Identity:
    assert log.header is not None
    assert log.header.identity is not None
    return log.header.identity
