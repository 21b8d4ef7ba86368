"""Reads one segment file, in place, contiguous or Rust-written: it cannot tell them apart.

Zero-copy: batches point into the memory that was given and keep it alive. Streams are opened when first needed and kept.

Concurrency: one thread at a time.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa

from quiver_actors.checksum import crc32
from quiver_actors.errors import (
    ArrowError,
    ChecksumMismatch,
    FormatError,
    InvalidFormat,
    SlotNotInBundle,
    StreamNotFound,
)
from quiver_actors.segment import arrow_file
from quiver_actors.segment.arrow_ipc import DICTIONARIES_MAX
from quiver_actors.segment.codec import (
    SegmentFooter,
    StreamInfo,
    decode_directory,
    decode_footer,
    decode_manifest,
    decode_trailer,
)
from quiver_actors.segment.layout import CHUNKS_MAX, CRC, EXTENSION, FOOTER, TRAILER

__all__ = ["SegmentFooter", "SegmentReader", "StreamInfo", "read_footer"]

_END_BYTES = FOOTER.size + EXTENSION.size + TRAILER.size


def read_footer(pread: Callable[[int, int], bytes], file_size: int) -> SegmentFooter:
    """Read only the end of a segment file: one call of `pread(size, offset)`, a second one if the footer is longer than ours.

    Raises:
        Truncated, InvalidFormat, UnsupportedVersion: it is no complete segment of a version that we know.
    """
    size = min(file_size, _END_BYTES)
    tail = pread(size, file_size - size)
    needed = decode_trailer(tail, file_size) + TRAILER.size
    if needed > size:
        tail = pread(needed, file_size - needed)
    return decode_footer(tail, file_size)


class SegmentReader:
    """One segment file.

    Args:
        memory: the whole file. A mapping must not be closed while the reader or a batch from it is in use (`mmap.close` refuses);
            it goes by itself with the last of them.
        segment_seq: only for messages.

    Raises:
        FormatError: by its subclasses: Truncated, InvalidFormat, UnsupportedVersion, ArrowError. The checksum is not verified here.
    """

    def __init__(self, memory: mmap.mmap | bytes | memoryview, *, segment_seq: int | None = None) -> None:
        self.segment_seq = segment_seq
        self._buffer = pa.py_buffer(memory)
        self._view = memoryview(memory).cast("B")
        self._readers: dict[int, pa.RecordBatchFileReader] = {}
        with self._explained():
            self.footer = read_footer(self._pread, self._view.nbytes)
            self._streams = decode_directory(self._pread(self.footer.directory_length, self.footer.directory_offset))
            self._manifest = decode_manifest(self._pread(self.footer.manifest_length, self.footer.manifest_offset))
        self._bundle_count = self._manifest.bundle_count
        self._ref_ends = self._manifest.ref_ends
        self._ref_slots = self._manifest.ref_slots
        self._ref_streams = self._manifest.ref_streams
        self._ref_chunks = self._manifest.ref_chunks

    def _pread(self, size: int, offset: int) -> bytes:
        return bytes(self._view[offset : offset + size])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the segment in errors."""
        try:
            yield
        except FormatError as error:
            if self.segment_seq is None:
                raise
            raise type(error)(f"segment {self.segment_seq}: {error}") from error

    @property
    def bundle_count(self) -> int:
        return self._manifest.bundle_count

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles."""
        return sum(stream.row_count for stream in self._streams.values())

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The stream directory, in file order."""
        return tuple(self._streams.values())

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream.

        Raises:
            StreamNotFound, InvalidFormat, ArrowError: the stream is not in the directory, or damaged.
        """
        return (self._readers.get(stream_id) or self._open_stream(stream_id)).schema

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id.

        Args:
            index: `0 <= index < bundle_count`.
            slots: only these; streams of others are not touched. Those that the bundle does not have are left out.

        Raises:
            IndexError: there is no such bundle.
            StreamNotFound, InvalidFormat, ArrowError: this bundle cannot be read; others may.
        """
        if not 0 <= index < self._bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self._bundle_count - 1}")
        found: dict[int, pa.RecordBatch] = {}
        readers, ref_slots, ref_streams, ref_chunks = (
            self._readers,
            self._ref_slots,
            self._ref_streams,
            self._ref_chunks,
        )
        for ref in range(self._ref_ends[index], self._ref_ends[index + 1]):
            slot_id = ref_slots[ref]
            if slots is None or slot_id in slots:
                stream_id = ref_streams[ref]
                reader = readers[stream_id] if stream_id in readers else self._open_stream(stream_id)
                try:
                    found[slot_id] = reader.get_batch(ref_chunks[ref])
                except (pa.ArrowException, ValueError, OverflowError, OSError) as error:
                    raise self._unreadable(reader, ref, error) from error
        return found

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle.

        Raises:
            SlotNotInBundle: the bundle has no such slot.
            IndexError, StreamNotFound, InvalidFormat, ArrowError: as `bundle`.
        """
        found = self.bundle(index, (slot_id,))
        if slot_id not in found:
            raise SlotNotInBundle(f"bundle {index} has no slot {slot_id}: it has {list(self.slot_ids(index))}")
        return found[slot_id]

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        refs = self._refs_of(index)
        return tuple(self._ref_slots[refs.start : refs.stop])

    def bundles_without_slots(self) -> tuple[int, ...]:
        """Indexes of bundles that hold nothing: those that were lost to damage before the segment was sealed."""
        ends = self._ref_ends
        return tuple(index for index in range(self.bundle_count) if ends[index] == ends[index + 1])

    def row_counts(self, index: int) -> dict[int, int]:
        """Rows of each slot of a bundle; reads the heads of its batches."""
        return {slot_id: batch.num_rows for slot_id, batch in self.bundle(index).items()}

    def item_count(self, index: int) -> int | None:
        """What the producer said it holds, None where unknown."""
        return self._value(self._manifest.item_count, index)

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry, None where unknown."""
        return self._value(self._manifest.byte_count, index)

    def sequence(self, index: int) -> int | None:
        """Log sequence of the bundle, None where unknown."""
        return self._value(self._manifest.sequence, index)

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds, None where unknown."""
        return self._value(self._manifest.ingestion_ts_nanos, index)

    def verify_checksum(self) -> None:
        """Check the CRC of the whole file, about 1 ms for 32 MiB.

        Raises:
            ChecksumMismatch: the file is damaged somewhere.
        """
        actual = crc32(self._view[: -CRC.size])
        if actual != self.footer.crc32:
            with self._explained():
                raise ChecksumMismatch(f"CRC-32 is {actual:#010x}: the trailer says {self.footer.crc32:#010x}")

    def _refs_of(self, index: int) -> range:
        if not 0 <= index < self._manifest.bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self._manifest.bundle_count - 1}")
        return range(self._ref_ends[index], self._ref_ends[index + 1])

    def _value(self, column: Sequence[int | None] | None, index: int) -> int | None:
        if not 0 <= index < self._manifest.bundle_count:
            raise IndexError(f"bundle {index} is not in 0..{self._manifest.bundle_count - 1}")
        return None if column is None else column[index]

    def _open_stream(self, stream_id: int) -> pa.RecordBatchFileReader:
        with self._explained():
            info = self._streams.get(stream_id)
            if info is None:
                raise StreamNotFound(f"stream {stream_id} is not in the directory of {len(self._streams)} streams")
            end = info.byte_offset + info.byte_length
            if end > self._view.nbytes:
                raise InvalidFormat(f"stream {stream_id} ends at {end}, behind the file's {self._view.nbytes} bytes")
            counts = arrow_file.read_footer_counts(self._view, info.byte_offset, end)
            if counts.batches > CHUNKS_MAX or counts.dictionaries > DICTIONARIES_MAX:
                raise InvalidFormat(f"stream {stream_id} is over the limits: {counts}")
            try:
                reader = pa.ipc.open_file(self._buffer.slice(info.byte_offset, info.byte_length))
            except (pa.ArrowException, OSError) as error:
                raise ArrowError(f"stream {stream_id} is no readable Arrow file: {error}") from error
        self._readers[stream_id] = reader
        return reader

    def _unreadable(self, reader: pa.RecordBatchFileReader, ref: int, error: Exception) -> FormatError:
        where = "segment" if self.segment_seq is None else f"segment {self.segment_seq}"
        stream_id, chunk = self._ref_streams[ref], self._ref_chunks[ref]
        if chunk >= reader.num_record_batches:
            return StreamNotFound(
                f"{where}: stream {stream_id} has {reader.num_record_batches} chunks, none at {chunk}"
            )
        return ArrowError(f"{where}: chunk {chunk} of stream {stream_id} cannot be decoded: {error}")
