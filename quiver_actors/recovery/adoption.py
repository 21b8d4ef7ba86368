"""Log files of other writers at open: their entries are laid into logs of ours, which are sealed, before the files go.

Owner: one `Recovery`. An entry that a segment of ours holds already, or that the cursor says is in a segment of theirs, is not taken again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quiver_actors.checksum import crc32
from quiver_actors.disk.protocol import Disk
from quiver_actors.model import SEGMENT_BUNDLES_MAX, SLOTS_MAX
from quiver_actors.paths import EnginePaths
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.numbers import NumbersUsed
from quiver_actors.recovery.producers import FoundProducers
from quiver_actors.recovery.shelf import FoundSegments
from quiver_actors.sealing import seal_file, write_cursor
from quiver_actors.segment.layout import STREAMS_MAX
from quiver_actors.segment.outline import Read
from quiver_actors.transactions.keys import KeyRun, key_of
from quiver_actors.wal import layout
from quiver_actors.wal.codec import decode_entry_header, decode_slots
from quiver_actors.wal.log import Log
from quiver_actors.wal.reader import LogReader, Span
from quiver_actors.wal.recovery import FoundLog, read_entry


class Adoption:
    """See the module."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        numbers: NumbersUsed,
        shelf: FoundSegments,
        findings: Findings,
        producers: FoundProducers,
        *,
        cfg_hash: bytes,
        target_bytes: int,
        covered_position: int,
    ) -> None:
        """
        Args:
            covered_position: up to there everything is in segments of the other writer.
        """
        self._disk = disk
        self._paths = paths
        self._numbers = numbers
        self._shelf = shelf
        self._findings = findings
        self._producers = producers
        self._cfg_hash = cfg_hash
        self._target_bytes = target_bytes
        self._covered_position = covered_position

    def adopt(self, found: list[tuple[FoundLog, bool]]) -> bool:
        """Lay the entries that no segment covers into logs of ours, seal those, then remove the files they came from.

        The cursor moves when all of them are sealed: before, it says what the other writer had sealed.

        Args:
            found: the logs, and whether the file is kept aside.

        Returns:
            Whether the cursor was written.
        """
        if not found:
            return False
        adopter = _Adopter(self._new_log, self._target_bytes)
        for log, _ in found:
            file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
            try:
                reader = LogReader(file.read, file.size())
                for span in log.scan.damaged:
                    self._findings.keep_span(file.read, log.name, span)
                for span in log.scan.entries:
                    if not self._is_covered(log, span):
                        self._adopt_entry(adopter, reader, file.read, log, span)
            finally:
                file.close()
        if adopter.keys:
            self._put_in_place(adopter.logs)
            self._producers.add(adopter.keys)
            self._producers.save()
        for ours in adopter.logs:
            self._shelf.add_sealed(ours, seal_file(self._disk, self._paths, ours, self._numbers.incarnation))
            self._numbers.position = ours.position_end
        write_cursor(self._disk, self._paths, self._numbers.position)
        for log, is_kept in found:
            path = f"{self._paths.wal}/{log.name}"
            if is_kept:
                self._findings.quarantine(path, "unreadable log header; its valid entries were adopted")
            else:
                self._disk.unlink(path)
        return True

    def _put_in_place(self, logs: Sequence[Log]) -> None:
        """Make the new logs durable as logs. What producers are said to have stored has to be before that is said: a start that is cut
        off forgets what has a temporary name, and of the files that it came from the disk may have less than memory has shown."""
        for log in logs:
            log.file.fsync()
            target = self._paths.rotated(self._numbers.take_rotation())
            self._disk.rename(log.path, target)
            log.path = target
        self._disk.sync_directory(self._paths.wal)

    def _is_covered(self, log: FoundLog, span: Span) -> bool:
        return log.header is not None and _position_end(log, span) <= self._covered_position

    def _adopt_entry(self, adopter: _Adopter, reader: LogReader, read: Read, log: FoundLog, span: Span) -> None:
        entry = read_entry(reader, span)
        is_bundle = entry.entry_type == layout.ENTRY_TYPE_BUNDLE
        if is_bundle and self._shelf.holds(entry.sequence, _position_end(log, span)):
            return
        if entry.error or not is_bundle:
            self._findings.keep_span(read, log.name, span)
            return
        adopter.add(reader.body(span), entry.sequence)

    def _new_log(self, capacity_bytes: int, first_sequence: int, position_start: int | None) -> Log:
        path = self._paths.spare(self._numbers.take_rotation())
        file = self._disk.create(path)
        file.allocate(capacity_bytes)
        log = Log(file, path, capacity_bytes)
        start = self._numbers.position if position_start is None else position_start
        log.activate(self._cfg_hash, start, self._numbers.take_identity(first_sequence))
        return log


def _position_end(log: FoundLog, span: Span) -> int:
    """Log position behind an entry; 0 where the header does not tell."""
    return log.header.position_start + span.end - log.header.header_bytes if log.header else 0


class _Adopter:
    """Lays adopted entries into new logs, aligned as our format wants them.

    Attributes:
        keys: what idempotent producers have stored, by producer: of a log of ours whose header cannot be read.
        logs: the new ones, under temporary names: a crash leaves only what they came from.
    """

    def __init__(self, new_log: Callable[[int, int, int | None], Log], target_bytes: int) -> None:
        self.keys: list[tuple[str, KeyRun]] = []
        self.logs: list[Log] = []
        self._new_log = new_log
        self._target_bytes = target_bytes
        self._open: Log | None = None

    def add(self, body: bytes, sequence: int) -> None:
        entry = realign_entry(body)
        log = self._log_for(len(entry), sequence)
        offset = log.end
        log.file.write([entry], offset)
        log.crc = crc32(entry, log.crc)
        log.end = log.written_end = offset + len(entry)
        reader = LogReader(log.file.read, log.end)
        laid = read_entry(reader, Span(offset, log.end))
        index = log.builder.append(sequence, laid.ingestion_ts_nanos, -1, len(entry), laid.placements)
        if key := key_of(laid.placements, log.file.read):
            self.keys.append((key[0], KeyRun(key[1], 1, log.segment_seq, index, sequence)))
        log.sequence_end = sequence + 1
        if not laid.placements:
            self._open = None  # an entry without slots breaks the alignment of what would follow it

    def _log_for(self, entry_bytes: int, sequence: int) -> Log:
        log = self._open
        if (
            log is not None
            and log.end + entry_bytes <= log.capacity_bytes
            and log.builder.bundle_count < SEGMENT_BUNDLES_MAX
            and log.builder.stream_count + SLOTS_MAX <= STREAMS_MAX
            and sequence == log.sequence_end
        ):
            return log
        capacity = layout.HEADER_BYTES + max(self._target_bytes, entry_bytes)
        position = self.logs[-1].position_end if self.logs else None
        log = self._new_log(capacity, sequence, position)
        log.write()
        self.logs.append(log)
        self._open = log
        return log


def realign_entry(body: bytes) -> bytes:
    """A whole entry with the same slots, sequence and time, padded so that each payload starts on 64 bytes. Pure."""
    header = decode_entry_header(body)
    blocks = sorted(decode_slots(body, header.slot_bitmap), key=lambda block: block.slot_id)
    laid = bytearray(body[: layout.ENTRY_HEADER.size])
    for number, block in enumerate(blocks):
        payload = body[block.payload_offset : block.payload_offset + block.payload_bytes]
        wanted = 53 if number == len(blocks) - 1 else 22
        padding = (wanted - len(payload)) % layout.ALIGNMENT
        laid += layout.SLOT_HEAD.pack(block.slot_id, block.fingerprint, block.row_count, len(payload) + padding)
        laid += payload + bytes(padding)
    return len(laid).to_bytes(4, "little") + bytes(laid) + crc32(laid).to_bytes(4, "little")
