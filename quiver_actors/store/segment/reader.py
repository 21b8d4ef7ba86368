"""Reads one segment file, in place, contiguous or Rust-written: it cannot tell them apart.

Zero-copy: batches point into the memory that was given and keep it alive. Streams are opened when first needed and kept.

Concurrency: one thread at a time, except where a method says otherwise.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import (
    ArrowError,
    ChecksumMismatch,
    FormatError,
    InvalidFormat,
    StreamNotFound,
)
from quiver_actors.store.segment import arrow_file
from quiver_actors.store.segment.arrow_ipc import DICTIONARIES_MAX
from quiver_actors.store.segment.codec import (
    SegmentFooter,
    StreamInfo,
    decode_directory,
    decode_footer,
    decode_manifest,
    decode_trailer,
)
from quiver_actors.store.segment.layout import CHUNKS_MAX, CRC, EXTENSION, FOOTER, TRAILER
from quiver_actors.store.segment.runs import Run, RunReader
from quiver_actors.store.segment.single_reads import SingleReads

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


class SegmentReader(SingleReads):
    """One segment file.

    Args:
        memory: the whole file. A mapping must not be closed while the reader or a batch from it is in use (`mmap.close` refuses);
            it goes by itself with the last of them.
        segment_seq: only for messages.

    Attributes:
        footer: the end of the file, decoded.
        manifest: where the slots of each bundle are.

    Raises:
        FormatError: by its subclasses: Truncated, InvalidFormat, UnsupportedVersion, ArrowError. The checksum is not verified here.
    """

    def __init__(self, memory: mmap.mmap | bytes | memoryview, *, segment_seq: int | None = None) -> None:
        self.segment_seq = segment_seq
        self._buffer = pa.py_buffer(memory)
        self._view = memoryview(memory).cast("B")
        self._readers: dict[int, pa.RecordBatchFileReader] = {}
        self._run_reader: RunReader | None = None
        with self._explained():
            self._load()
        self._bundle_count = self.manifest.bundle_count
        self._ref_ends = self.manifest.ref_ends
        self._ref_slots = self.manifest.ref_slots
        self._ref_streams = self.manifest.ref_streams
        self._ref_chunks = self.manifest.ref_chunks

    def _read_footer(self) -> SegmentFooter:
        return read_footer(self._pread, self._view.nbytes)

    def _load(self) -> None:
        """Decode what stands behind the streams."""
        self.footer = footer = self._read_footer()
        self._streams = decode_directory(self._pread(footer.directory_length, footer.directory_offset))
        self.manifest = decode_manifest(self._pread(footer.manifest_length, footer.manifest_offset))

    def _pread(self, size: int, offset: int) -> bytes:
        return bytes(self._view[offset : offset + size])

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Name the segment in errors."""
        try:
            yield
        except FormatError as error:
            raise self._named(error) from error

    def _named(self, error: FormatError) -> FormatError:
        """The error with the segment's number in front."""
        return error if self.segment_seq is None else type(error)(f"segment {self.segment_seq}: {error}")

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the segment, lost ones included."""
        return self.manifest.bundle_count

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles."""
        return sum(stream.row_count for stream in self._streams.values())

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine wrote the file; None in a segment that another implementation wrote."""
        return None if self.footer.extension is None else self.footer.extension.incarnation

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

    def check(self, index: int) -> None:
        """Prove a bundle against its checksum, which takes a `CheckedReader`: this class has nothing to prove it with, and returns.

        Raises:
            IndexError: there is no such bundle.
            ChecksumMismatch: the bundle, or what it is decoded with, is damaged; other bundles may be whole.
        """

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, checked before as `check` does.

        Args:
            index: `0 <= index < bundle_count`.
            slots: only these; streams of others are not decoded. Those that the bundle does not have are left out.

        Raises:
            IndexError: there is no such bundle.
            ChecksumMismatch, StreamNotFound, InvalidFormat, ArrowError: this bundle cannot be read; others may.
        """
        self.check(index)
        return self.decode(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """Read what `bundle` reads, for a caller that has called `check` before."""
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
                    raise _unreadable(self.segment_seq, reader, stream_id, ref_chunks[ref], error) from error
        return found

    def batch(self, index: int, slot_id: int) -> pa.RecordBatch:
        """One slot of a bundle, checked before as `check` does.

        Raises:
            SlotNotInBundle: the bundle has no such slot.
            IndexError, ChecksumMismatch, StreamNotFound, InvalidFormat, ArrowError: as `bundle`.
        """
        self.check(index)
        return self.decode_batch(index, slot_id)

    def runs(
        self,
        indexes: Sequence[int],
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Run]:
        """Read those of some bundles that can be read together, checked before as `check` does; see `RunReader.read`. Any thread may."""
        reader = self._run_reader
        if reader is None:
            reader = self._run_reader = RunReader(self._view, self._streams, self.manifest, self.check)
        return reader.read(indexes, slots, columns)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        return self.manifest.slot_ids(index)

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing: it was lost to damage before the segment was sealed, or rescued."""
        return self._ref_ends[index] == self._ref_ends[index + 1]

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds, None where unknown."""
        return self.manifest.value(self.manifest.item_count, index)

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry, None where unknown."""
        return self.manifest.value(self.manifest.byte_count, index)

    def sequence(self, index: int) -> int | None:
        """Log sequence of the bundle, None where unknown."""
        return self.manifest.value(self.manifest.sequence, index)

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds, None where unknown."""
        return self.manifest.value(self.manifest.ingestion_ts_nanos, index)

    def verify_checksum(self) -> None:
        """Check the CRC of the whole file, about 1 ms for 32 MiB.

        Raises:
            ChecksumMismatch: the file is damaged somewhere.
        """
        actual = crc32(self._view[: -CRC.size])
        if actual != self.footer.crc32:
            with self._explained():
                raise ChecksumMismatch(f"CRC-32 is {actual:#010x}: the trailer says {self.footer.crc32:#010x}")

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
                raise ArrowError(f"stream {stream_id} cannot be read as an Arrow file: {error}") from error
        self._readers[stream_id] = reader
        return reader


def _unreadable(
    segment_seq: int | None, reader: pa.RecordBatchFileReader, stream_id: int, chunk: int, error: Exception
) -> FormatError:
    where = "segment" if segment_seq is None else f"segment {segment_seq}"
    if chunk >= reader.num_record_batches:
        return StreamNotFound(f"{where}: stream {stream_id} has {reader.num_record_batches} chunks, none at {chunk}")
    return ArrowError(f"{where}: chunk {chunk} of stream {stream_id} cannot be decoded: {error}")
