"""One log file of ours on its way from spare to segment, and the entries that are being laid into it.

Owner: the engine's loop thread. A job thread may sync the file at the same time, and has it alone once it is retired.

    spare      preallocated under a `.tmp` name, holds nothing
    active     takes entries; its name is still `.tmp` until its first sync is done, so nothing in it is acknowledged before
    published  named quiver.wal
    retired    named quiver.wal.<N>, complete and synced; becomes a segment
"""

from __future__ import annotations

from quiver_actors.checksum import crc32, crc32_combine
from quiver_actors.disk.protocol import DiskFile
from quiver_actors.model import SEGMENT_BUNDLES_MAX
from quiver_actors.segment.builder import BundleRun, SegmentBuilder
from quiver_actors.segment.layout import STREAMS_MAX
from quiver_actors.wal import layout, uniform
from quiver_actors.wal.admission import PUSH_ENTRIES_MAX, PUSH_SLOTS_MAX, CheckedEntries, CheckedEntry
from quiver_actors.wal.codec import Identity, encode_header

_COMBINE_FROM_BYTES = 16 << 10
"""Below this, computing an entry's CRC again is cheaper than combining two."""
_OVERHEAD_BYTES = layout.ENTRY_OVERHEAD_BYTES
_LENGTH_BYTES = layout.ENTRY_LENGTH_BYTES
_HEAD_BYTES = layout.ENTRY_HEAD.size
_CRC_BYTES = layout.ENTRY_CRC.size


class Log:
    """See the module. Sizes and offsets are bytes of this file; `end` counts what is staged too."""

    def __init__(self, file: DiskFile, path: str, capacity_bytes: int) -> None:
        self.file = file
        self.path = path
        self.capacity_bytes = capacity_bytes
        self.published = False
        self.retired = False
        self.closed = False
        """No more entries: it is rotated with its next commit."""
        self.position_start = 0
        self.identity = Identity(0, 0, bytes(16))
        self.end = 0
        self.written_end = 0
        self.synced_end = 0
        self.header = b""
        self.crc = 0
        """CRC-32 of bytes 0..end."""
        self.sequence_end = 0
        self.synced_sequence = 0
        self.first_append_ns = 0
        self.dirty_since_ns = 0
        self._staged: list[memoryview | bytes] = []
        self.has_staged = False
        """Something waits for `write`."""
        self.entry_type = layout.ENTRY_TYPE_BUNDLE
        self.builder = SegmentBuilder(0, self.read)

    def activate(self, cfg_hash: bytes, position_start: int, identity: Identity) -> None:
        """Turn the spare into the file that becomes segment `identity.segment_seq`."""
        self.position_start = position_start
        self.identity = identity
        self.sequence_end = self.synced_sequence = identity.first_sequence
        self.builder = SegmentBuilder(identity.segment_seq, self.read)
        header = encode_header(cfg_hash, position_start, identity)
        self.header = header
        self._staged.append(header)
        self.has_staged = True
        self.crc = crc32(header)
        self.end = len(header)

    @property
    def segment_seq(self) -> int:
        return self.identity.segment_seq

    @property
    def entry_bytes(self) -> int:
        return max(0, self.end - layout.HEADER_BYTES)

    @property
    def position_end(self) -> int:
        return self.position_start + self.entry_bytes

    @property
    def is_empty(self) -> bool:
        return self.builder.bundle_count == 0

    @property
    def holds_another_push(self) -> bool:
        """Its segment has bundles and streams left for any push: one that lists more of either is not readable any more."""
        builder = self.builder
        has_bundles = builder.bundle_count + PUSH_ENTRIES_MAX <= SEGMENT_BUNDLES_MAX
        return has_bundles and builder.stream_count + PUSH_SLOTS_MAX <= STREAMS_MAX

    def stage(self, span: memoryview, entries: CheckedEntries, now_unix_ns: int, now_ns: int) -> None:
        """Complete the entries in `span` (sequence, time, CRC) and queue them for `write`."""
        clean = self.written_end == self.synced_end and self.end <= max(self.written_end, layout.HEADER_BYTES)
        self._staged.append(span)  # first, so that the builder can read back dictionaries of this very push
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

    def write(self) -> None:
        """Write what is staged with one call. After an error the engine has failed and this log is left alone."""
        staged, self._staged, self.has_staged = self._staged, [], False
        self.file.write(staged, self.written_end)
        self.written_end = self.end

    def read(self, offset: int, length: int) -> bytes:
        """Bytes that were staged or written before; the segment builder compares dictionaries with them."""
        at = self.written_end
        for piece in self._staged:
            if at <= offset and offset + length <= at + len(piece):
                return bytes(piece[offset - at : offset - at + length])
            at += len(piece)
        return self.file.read(length, offset)


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
