"""Entries of other writers at open: they are laid into logs of ours, which are sealed, before the files go that they came from.

Owner: one `Recovery`. Taken are all entries that no segment is known to hold: of a log of another writer those behind its cursor, of a log
of ours that another writer has gone on in, ours too. Those become the segment that the log had the number of, written anew, aligned: ours
keep their ids, theirs follow. What cannot be a bundle is kept in quarantine/.

Nothing is adopted twice by a start that is cut off: all new logs are complete and synced under temporary names before `quiver.foreign`
says what they are made of, entry by entry, and have their names before the first of them is sealed. The files that they are made of may
hold bytes that were never synced, and are not synced now either: a sync of theirs may have failed before. See `foreign.FoundForeign`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX, SLOTS_MAX
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS
from quiver_actors.store.files.foreign_record import AdoptedEntry, AdoptedSource
from quiver_actors.store.files.held_names import name_if_held
from quiver_actors.store.files.quarantine import move_to_quarantine
from quiver_actors.store.jobs.sealing import drop_witness, seal_file, write_cursor, write_empty_log
from quiver_actors.store.recovery.findings import NO_BUNDLE_OF_LOG
from quiver_actors.store.recovery.found_state import FoundState
from quiver_actors.store.recovery.numbers import NumbersUsed
from quiver_actors.store.recovery.replay import Replay
from quiver_actors.store.segment.layout import STREAMS_MAX
from quiver_actors.store.segment.placement import SlotPlacement
from quiver_actors.store.staged.keys import KeyRun, key_of
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, decode_entry_header, decode_slots, encode_empty_header
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.reader import LogReader, Span
from quiver_actors.store.wal.recovery import FoundLog, read_entry

_PADDING_BYTES = 4 * layout.ALIGNMENT
"""Room for what aligning adds to an entry of few slots; one that does not fit goes into the next log."""


class Source(NamedTuple):
    """A log to be adopted."""

    log: FoundLog
    is_kept: bool = False
    """The file goes to quarantine/ afterwards: its header cannot be read."""
    covered_end: int = 0
    """File offset up to which segments hold its entries."""
    own: Replay | None = None
    """Bundles read from a log of ours, which keep their ids; None for any other log."""
    taken: frozenset[Span] = frozenset()
    """Entries that an adoption before has stored elsewhere."""


class Adoption:
    """Lays the entries of other writers into logs of ours, and removes the files that held them."""

    def __init__(self, found: FoundState, *, cfg_hash: bytes, target_bytes: int) -> None:
        self._disk = found.disk
        self._paths = found.paths
        self._numbers = found.numbers
        self._sealed_segments = found.sealed_segments
        self._findings = found.findings
        self._producers = found.producers
        self._foreign = found.foreign
        self._cfg_hash = cfg_hash
        self._target_bytes = target_bytes
        self._targets: dict[str, dict[Span, int]] = {}
        """Segment number of the log that each entry was laid into, by the name of its source."""

    def adopt(self, sources: Sequence[Source]) -> bool:
        """Lay the entries that no segment holds into logs of ours, seal those, then remove the files they came from.

        The cursor moves when all of them are sealed: before, it says what the other writer had sealed.

        Returns:
            Whether the cursor was written.
        """
        if not sources:
            return False
        last_sequence = max((extent.sequence_end - 1 for extent in self._sealed_segments.extents), default=-1)
        adopter = _Adopter(self._new_log, self._numbers, self._target_bytes, last_sequence)
        for source in sources:
            self._take(adopter, source)
        if adopter.logs:
            self._put_in_place(adopter.logs, sources)
            names = [source.log.found_as for source in sources]
            self._findings.note_adopted(self._paths.wal, names, adopter.adopted)
        if adopter.keys:
            self._producers.add(adopter.keys)
        self._producers.save()
        for ours in adopter.logs:
            self._sealed_segments.add_sealed(ours, seal_file(self._disk, self._paths, ours, ours.identity.incarnation))
            self._numbers.note_sealed(ours)
        write_cursor(self._disk, self._paths, self._numbers.position)
        for source in sources:
            self._remove(source)
        return True

    def _take(self, adopter: _Adopter, source: Source) -> None:
        log = source.log
        file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
        try:
            reader = LogReader(file.read, file.size())
            own = None if self._is_taken(log) else source.own
            for span in log.damaged:
                self._findings.keep_span(file.read, log.found_as, span)
            for span in own.unusable if own else ():
                self._findings.keep_span(file.read, log.found_as, span, NO_BUNDLE_OF_LOG)
            if own is not None:
                self._take_own(adopter, reader, log, own)
            for span in log.scan.entries if own is None else own.foreign:
                if span.end > source.covered_end and span not in source.taken:
                    self._take_foreign(adopter, reader, source, span, file.read)
        finally:
            file.close()

    def _is_taken(self, log: FoundLog) -> bool:
        """Whether a segment has the number of that log of ours already: then the log's entries get other numbers."""
        identity = log.identity
        return identity is not None and identity.segment_seq in self._sealed_segments.segments

    def _take_own(self, adopter: _Adopter, reader: LogReader, log: FoundLog, own: Replay) -> None:
        """The bundles of ours, under the numbers that they were given; another writer has used none of them."""
        if not own.builder.bundle_count:
            return
        assert log.header is not None
        assert log.header.identity is not None
        left_out = {*own.unusable, *own.foreign}
        mine = [span for span in log.scan.entries if span not in left_out]
        padding_bytes = _PADDING_BYTES * len(own.foreign)
        wanted_bytes = log.scan.end + padding_bytes
        adopter.begin_own(log.header.identity, log.position_start, wanted_bytes)
        for span in mine:
            adopter.add_own(reader.body(span))
            self._note_target(log, span, log.header.identity.segment_seq)
        adopter.skip_own_to(log.header.identity.first_sequence + own.builder.bundle_count)
        self._findings.notes += [f"bundle {own.builder.segment_seq}/{index} is damaged" for index in own.lost]
        self._producers.add(own.keys, own.lost)

    def _take_foreign(
        self, adopter: _Adopter, reader: LogReader, source: Source, span: Span, read: Callable[[int, int], bytes]
    ) -> None:
        entry = read_entry(reader, span)
        if entry.error or entry.entry_type != layout.ENTRY_TYPE_BUNDLE:
            why = entry.error or f"an entry of type {entry.entry_type}, which nobody knows"
            self._findings.keep_span(read, source.log.found_as, span, why)
            return
        self._note_target(source.log, span, adopter.add(reader.body(span), entry.sequence))

    def _note_target(self, log: FoundLog, span: Span, segment_seq: int) -> None:
        self._targets.setdefault(log.name, {})[span] = segment_seq

    def _put_in_place(self, logs: Sequence[Log], sources: Sequence[Source]) -> None:
        """Make the new logs durable as logs, all of them before any is sealed. What producers are said to have stored has to be before that
        is said: a start that is cut off forgets what has a temporary name, and of the files that it came from the disk may have less
        than memory has shown."""
        for log in logs:
            log.file.fsync()
        self._foreign.note_adoption([log.segment_seq for log in logs], map(self._read_source, sources))
        for log in logs:
            target = self._paths.rotated(self._numbers.take_rotation())
            self._disk.rename(log.path, target)
            log.path = target
            # One by one: a power loss leaves the first ones, so that of each producer what is adopted again comes behind what is there.
            self._disk.sync_directory(self._paths.wal)

    def _read_source(self, source: Source) -> AdoptedSource:
        log = source.log
        file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
        try:
            reader, targets = LogReader(file.read, file.size()), self._targets.get(log.name, {})
            entries = [
                AdoptedEntry(span.start, reader.checksum_of(span), targets.get(span)) for span in log.scan.entries
            ]
        finally:
            file.close()
        return AdoptedSource(log.name, log.position_start, log.scan.end, tuple(entries))

    def _remove(self, source: Source) -> None:
        path = f"{self._paths.wal}/{source.log.name}"
        if source.is_kept:
            why = "unreadable log header; its valid entries were adopted"
            kept_as = move_to_quarantine(self._disk, self._paths, path)
            self._findings.note_quarantined(f"{self._paths.wal}/{source.log.found_as}", kept_as, why)
        else:
            name_if_held(self._disk, self._paths, path)
            if source.log.name == layout.ACTIVE_NAME:
                self._replace_by_empty()
            else:
                self._disk.unlink(path)

    def _replace_by_empty(self) -> None:
        """Put an empty log over `quiver.wal`, so that a start which is cut off here leaves a log."""
        try:
            write_empty_log(self._disk, self._paths, encode_empty_header(self._cfg_hash, self._numbers.position))
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            drop_witness(self._disk, self._paths)
            self._disk.unlink(self._paths.active)

    def _new_log(self, capacity_bytes: int, identity: Identity, position_start: int) -> Log:
        path = self._paths.spare(self._numbers.take_rotation())
        file = self._disk.create(path)
        file.allocate(capacity_bytes)
        log = Log(file, path, capacity_bytes)
        log.activate(self._cfg_hash, position_start, identity)
        log.write()
        return log


class _Adopter:
    """Lays entries into new logs, aligned as our format wants them.

    Attributes:
        keys: what idempotent producers have stored, by producer: of a log of ours whose header cannot be read.
        logs: the new ones, under temporary names: a crash leaves only what they came from.
        adopted: how many entries of other writers are in them.
    """

    def __init__(
        self,
        new_log: Callable[[int, Identity, int], Log],
        numbers: NumbersUsed,
        target_bytes: int,
        last_sequence: int,
    ) -> None:
        self.keys: list[tuple[str, KeyRun]] = []
        self.logs: list[Log] = []
        self.adopted = 0
        self._new_log = new_log
        self._numbers = numbers
        self._target_bytes = target_bytes
        self._last_sequence = last_sequence
        """The highest sequence so far: the other writer's may have begun at 0 again, and those of a segment must rise."""
        self._open: Log | None = None

    # --- ours ---------------------------------------------------------------------------------------------------------------

    def begin_own(self, identity: Identity, position_start: int, entries_bytes: int) -> None:
        """Begin to write a log of ours anew: the bundles that follow are its own."""
        capacity = layout.HEADER_BYTES + max(self._target_bytes, entries_bytes)
        self._begin(capacity, identity, position_start)

    def add_own(self, body: bytes) -> None:
        """Add the next bundle that is left of that log."""
        sequence = decode_entry_header(body).sequence
        self.skip_own_to(sequence)
        self._append(body, sequence)

    def skip_own_to(self, sequence: int) -> None:
        """Number the bundles before that one, which are lost and keep their numbers."""
        log = self._open
        assert log is not None
        for missing in range(log.sequence_end, sequence):
            log.builder.append(missing, 0, 0, 0, ())
        log.sequence_end = max(log.sequence_end, sequence)
        self._last_sequence = max(self._last_sequence, log.sequence_end - 1)

    # --- theirs -------------------------------------------------------------------------------------------------------------

    def add(self, body: bytes, sequence: int) -> int:
        """Add an entry of another writer. It keeps its sequence if that is above all before it.

        Returns:
            Number of the segment that the entry becomes part of.
        """
        sequence = self._sequence_for(sequence)
        self._log_for(len(body) + layout.ENTRY_OVERHEAD_BYTES, sequence, body)
        index, placements = self._append(body, sequence)
        log = self._open
        assert log is not None
        if key := key_of(placements, log.file.read):
            self.keys.append((key[0], KeyRun(key[1], 1, log.segment_seq, index, sequence)))
        self.adopted += 1
        if not placements:
            self._open = None  # an entry without slots breaks the alignment of what would follow it
        return log.segment_seq

    def _sequence_for(self, sequence: int) -> int:
        return sequence if sequence > self._last_sequence else self._numbers.take_sequence()

    def _log_for(self, entry_bytes: int, sequence: int, body: bytes) -> None:
        log = self._open
        entry_bytes += layout.ALIGNMENT * (1 + decode_entry_header(body).slot_bitmap.bit_count())
        if (
            log is not None
            and log.end + entry_bytes <= log.capacity_bytes
            and log.builder.bundle_count < SEGMENT_BUNDLES_MAX
            and log.builder.stream_count + SLOTS_MAX <= STREAMS_MAX
            and sequence == log.sequence_end
        ):
            return
        capacity = layout.HEADER_BYTES + max(self._target_bytes, entry_bytes)
        self._begin(capacity, self._numbers.take_identity(sequence), self._numbers.position)

    # --- both ---------------------------------------------------------------------------------------------------------------

    def _begin(self, capacity_bytes: int, identity: Identity, position_start: int) -> None:
        self._open = self._new_log(capacity_bytes, identity, position_start)
        self.logs.append(self._open)

    def _append(self, body: bytes, sequence: int) -> tuple[int, tuple[SlotPlacement, ...]]:
        log = self._open
        assert log is not None
        entry = realign_entry(body, sequence)
        offset = log.end
        log.file.write([entry], offset)
        log.crc = crc32(entry, log.crc)
        log.end = log.written_end = offset + len(entry)
        laid = read_entry(LogReader(log.file.read, log.end), Span(offset, log.end))
        index = log.builder.append(sequence, laid.ingestion_ts_nanos, -1, len(entry), laid.placements)
        log.sequence_end = sequence + 1
        self._last_sequence = sequence
        self._numbers.note_position(log.position_end)
        return index, laid.placements


def realign_entry(body: bytes, sequence: int | None = None) -> bytes:
    """A whole entry with the same slots and time, padded so that each payload starts on 64 bytes. Pure.

    Args:
        sequence: what it gets instead of its own; None: that stays.
    """
    header = decode_entry_header(body)
    if sequence is not None:
        header = replace(header, sequence=sequence)
    blocks = sorted(decode_slots(body, header.slot_bitmap), key=lambda block: block.slot_id)
    laid = bytearray(
        layout.ENTRY_HEADER.pack(header.entry_type, header.ingestion_ts_nanos, header.sequence, header.slot_bitmap)
    )
    for number, block in enumerate(blocks):
        payload = body[block.payload_offset : block.payload_offset + block.payload_bytes]
        wanted = 53 if number == len(blocks) - 1 else 22
        padding = (wanted - len(payload)) % layout.ALIGNMENT
        laid += layout.SLOT_HEAD.pack(block.slot_id, block.fingerprint, block.row_count, len(payload) + padding)
        laid += payload + bytes(padding)
    return len(laid).to_bytes(4, "little") + bytes(laid) + crc32(laid).to_bytes(4, "little")
