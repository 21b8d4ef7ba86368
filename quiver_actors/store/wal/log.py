"""One log file of ours on its way from spare to segment, and the entries that are being laid into it.

Owner: the engine's loop thread. A job thread may sync the file at the same time, and has it alone once it is retired.

    spare      the first of its blocks reserved under a `.tmp` name, holds nothing
    active     takes entries; its name is still `.tmp` until its first sync is done, so nothing in it is acknowledged before
    published  named quiver.wal
    retired    named quiver.wal.<N>, complete and synced; becomes a segment
"""

from __future__ import annotations

from quiver_actors.base.checksum import crc32, crc32_combine
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.store.disk.protocol import DiskFile
from quiver_actors.store.segment.builder import BundleRun, SegmentBuilder
from quiver_actors.store.segment.layout import STREAMS_MAX
from quiver_actors.store.wal import layout, uniform
from quiver_actors.store.wal.admission import PUSH_ENTRIES_MAX, PUSH_SLOTS_MAX, CheckedEntries, CheckedEntry
from quiver_actors.store.wal.codec import Identity, encode_header
from quiver_actors.store.wal.lone import LoneStream

_COMBINE_FROM_BYTES = 16 << 10
"""Below this, computing an entry's CRC again is cheaper than combining two."""
_OVERHEAD_BYTES = layout.ENTRY_OVERHEAD_BYTES
_LENGTH_BYTES = layout.ENTRY_LENGTH_BYTES
_HEAD_BYTES = layout.ENTRY_HEAD.size
_CRC_BYTES = layout.ENTRY_CRC.size


class LogBytes:
    """The bytes of one log file: those that are written, and behind them those that are staged.

    A log and the builder of its segment both refer to it. The builder must not refer to the log itself: in such a circle the tables of
    every sealed segment would stay in memory until a full garbage collection.
    """

    __slots__ = ("file", "staged", "written_end")

    def __init__(self, file: DiskFile) -> None:
        self.file = file
        self.staged: list[memoryview | bytes] = []
        self.written_end = 0

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that were staged or written before."""
        at = self.written_end
        for piece in self.staged:
            if at <= offset and offset + length <= at + len(piece):
                return bytes(piece[offset - at : offset - at + length])
            at += len(piece)
        return self.file.read(length, offset)


class Log:
    """One log file of ours. Sizes and offsets are bytes of this file; `end` counts what is staged too."""

    def __init__(self, file: DiskFile, path: str, capacity_bytes: int, length_bytes: int = 0) -> None:
        """
        Args:
            capacity_bytes: blocks are reserved so far: nothing is written behind it.
            length_bytes: the file's length, up to which more of them may be reserved; 0: no more are.
        """
        self.path = path
        self._bytes = LogBytes(file)
        self.capacity_bytes = capacity_bytes
        self.length_bytes = max(capacity_bytes, length_bytes)
        self.published = False
        self.retired = False
        self.closed = False
        """Whether the log takes no more entries: its next commit rotates it."""
        self.position_start = 0
        self.identity = Identity(0, 0, bytes(16))
        self.end = 0
        self.synced_end = 0
        self.header = b""
        self.crc = 0
        """CRC-32 of the file's bytes `[0, end)`."""
        self.sequence_end = 0
        self.synced_sequence = 0
        self.first_append_ns = 0
        self.dirty_since_ns = 0
        self.has_staged = False
        """Whether something waits for `write`."""
        self.entry_type = layout.ENTRY_TYPE_BUNDLE
        self.begin_segment(0)

    def begin_segment(self, segment_seq: int) -> None:
        """Collect the bundles of a segment of that number from now on: none yet."""
        self.builder = SegmentBuilder(segment_seq, self._bytes.read)

    def activate(self, cfg_hash: bytes, position_start: int, identity: Identity) -> None:
        """Turn the spare into the file that becomes segment `identity.segment_seq`."""
        self.position_start = position_start
        self.identity = identity
        self.sequence_end = self.synced_sequence = identity.first_sequence
        self.begin_segment(identity.segment_seq)
        header = encode_header(cfg_hash, position_start, identity)
        self.header = header
        self._bytes.staged.append(header)
        self.has_staged = True
        self.crc = crc32(header)
        self.end = len(header)

    @property
    def file(self) -> DiskFile:
        """The open file; the log owns it."""
        return self._bytes.file

    @file.setter
    def file(self, file: DiskFile) -> None:
        self._bytes.file = file

    @property
    def written_end(self) -> int:
        """Everything before it is written to the file."""
        return self._bytes.written_end

    @written_end.setter
    def written_end(self, end: int) -> None:
        self._bytes.written_end = end

    @property
    def segment_seq(self) -> int:
        """Number of the segment that this log becomes."""
        return self.identity.segment_seq

    @property
    def entry_bytes(self) -> int:
        """Bytes of entries in the file, without the header."""
        return max(0, self.end - layout.HEADER_BYTES)

    @property
    def may_grow(self) -> bool:
        """Whether more blocks may be reserved for it."""
        return self.capacity_bytes < self.length_bytes

    @property
    def position_end(self) -> int:
        """Log position behind the last entry."""
        return self.position_start + self.entry_bytes

    @property
    def is_empty(self) -> bool:
        """Whether the log holds no entry."""
        return self.builder.bundle_count == 0

    @property
    def holds_another_push(self) -> bool:
        """Whether its segment has room for the bundles and streams of any push: a segment that lists too many of either is not readable."""
        builder = self.builder
        has_bundles = builder.bundle_count + PUSH_ENTRIES_MAX <= SEGMENT_BUNDLES_MAX
        return has_bundles and builder.stream_count + PUSH_SLOTS_MAX <= STREAMS_MAX

    def stage(self, span: memoryview, entries: CheckedEntries, now_unix_ns: int, now_ns: int) -> None:
        """Complete the entries in `span` (sequence, time, CRC) and queue them for `write`."""
        own = self._bytes
        clean = own.written_end == self.synced_end and self.end <= max(own.written_end, layout.HEADER_BYTES)
        own.staged.append(span)  # first, so that the builder can read back dictionaries of this very push
        self.has_staged = True
        if isinstance(entries, uniform.UniformEntries):
            self._stage_uniform(span, entries, now_unix_ns)
        else:
            self._stage_each(span, entries, now_unix_ns)
        if clean:
            self.dirty_since_ns = now_ns
        self.first_append_ns = self.first_append_ns or now_ns
        self.sequence_end += len(entries)
        self.end += len(span)

    def _stage_uniform(self, span: memoryview, entries: uniform.UniformEntries, now_unix_ns: int) -> None:
        times = uniform.complete(span, entries, self.entry_type, self.sequence_end, now_unix_ns)
        self.builder.append_run(
            BundleRun(
                entries.schemas,
                self.sequence_end,
                times,
                entries.item_counts,
                entries.sizes,
                entries.of_slots.row_counts,
                entries.batch_starts + self.end,
                entries.of_slots.metadata_bytes,
                entries.of_slots.body_bytes,
                entries.row_count,
            )
        )
        self.crc = crc32(span, self.crc)

    def _stage_each(self, span: memoryview, entries: list[CheckedEntry], now_unix_ns: int) -> None:
        sequence = self.sequence_end
        pack_head, pack_crc, append = layout.ENTRY_HEAD.pack_into, layout.ENTRY_CRC.pack_into, self.builder.append
        crc_of_file, entry_type = self.crc, self.entry_type
        for offset, entry_bytes, crc_of_slots, bitmap, item_count, ingestion_ts, placements in entries:
            ingestion_ts = ingestion_ts or now_unix_ns
            end = offset + entry_bytes
            pack_head(span, offset, entry_bytes - _OVERHEAD_BYTES, entry_type, ingestion_ts, sequence, bitmap)
            if entry_bytes < _COMBINE_FROM_BYTES:
                pack_crc(span, end - _CRC_BYTES, crc32(span[offset + _LENGTH_BYTES : end - _CRC_BYTES]))
                crc_of_file = crc32(span[offset:end], crc_of_file)
            else:
                crc_of_file = _complete_large(span, offset, end, crc_of_slots, crc_of_file)
            append(sequence, ingestion_ts, item_count, entry_bytes, placements)
            sequence += 1
        self.crc = crc_of_file

    def write_lone(
        self,
        span: memoryview,
        stream: LoneStream,
        row_count: int,
        metadata_bytes: int,
        body_bytes: int,
        item_count: int,
        now_unix_ns: int,
        now_ns: int,
    ) -> None:
        """`stage` and `write` of one checked entry of one slot into a clean log. Raises DiskError."""
        size_bytes, sequence, own = len(span), self.sequence_end, self._bytes
        layout.ENTRY_HEAD.pack_into(
            span, 0, size_bytes - _OVERHEAD_BYTES, self.entry_type, now_unix_ns, sequence, stream.bitmap
        )
        layout.ENTRY_CRC.pack_into(span, size_bytes - _CRC_BYTES, crc32(span[_LENGTH_BYTES : size_bytes - _CRC_BYTES]))
        placement = stream.schema, row_count, self.end + stream.message_end, metadata_bytes, body_bytes, ()
        self.builder.append(sequence, now_unix_ns, item_count, size_bytes, (placement,))
        self.crc = crc32(span, self.crc)
        self.dirty_since_ns = now_ns
        self.first_append_ns = self.first_append_ns or now_ns
        self.sequence_end = sequence + 1
        self.end += size_bytes
        own.file.write((span,), own.written_end)
        own.written_end = self.end

    def write(self) -> None:
        """Write what is staged with one call. After an error the engine has failed and this log is left alone."""
        own = self._bytes
        staged, own.staged, self.has_staged = own.staged, [], False
        own.file.write(staged, own.written_end)
        own.written_end = self.end


def _complete_large(span: memoryview, offset: int, end: int, crc_of_slots: int, crc_of_file: int) -> int:
    """Write the CRC of an entry whose head is filled and whose slots were checked, without reading the slots again.

    Returns:
        The CRC of the file up to the entry's end.
    """
    slots_bytes = end - offset - _HEAD_BYTES - _CRC_BYTES
    head = span[offset : offset + _HEAD_BYTES]
    crc = crc32_combine(crc32(head[_LENGTH_BYTES:]), crc_of_slots, slots_bytes)
    layout.ENTRY_CRC.pack_into(span, end - _CRC_BYTES, crc)
    crc_of_file = crc32_combine(crc32(head, crc_of_file), crc_of_slots, slots_bytes)
    return crc32(span[end - _CRC_BYTES : end], crc_of_file)
