"""Streams of a segment, or of a log, as plain Arrow files or Parquet. Writes new files only.

A log is read as the segment that it would become: its valid entries are laid out again in memory and given a segment's tail, so both
give the same streams. Each bundle of a segment is proven against its checksum before it is exported. What is damaged is left out and told;
a contiguous file without checksums of its bundles, which nothing proves when its one checksum does not match, is not exported at all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.base.checksum import crc32
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import FormatError, InvalidFormat, UsageError
from quiver_actors.store.inspection.decoding import one_line
from quiver_actors.store.inspection.findings import Finding, damage
from quiver_actors.store.inspection.recognise import FileKind, recognise
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.recovery import realign_entry
from quiver_actors.store.segment.builder import SegmentBuilder
from quiver_actors.store.segment.checked import CheckedReader
from quiver_actors.store.segment.reader import SegmentReader, StreamInfo
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, decode_header, encode_header
from quiver_actors.store.wal.reader import LogReader, LogScan, Span
from quiver_actors.store.wal.recovery import find_start, read_entry

FORMATS = ("arrow", "parquet")
_FOREIGN = Identity(0, 0, bytes(16))


class ExportedStream(msgspec.Struct, kw_only=True):
    """One stream, and the file that it was written to."""

    file: str
    slot_id: int
    stream_id: int
    row_count: int
    batch_count: int
    left_out: int
    """Batches that could not be decoded."""


@dataclass(slots=True)
class Export:
    """Result of an export: the written streams, the damage that was found, and streams that the format cannot hold."""

    streams: list[ExportedStream] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Damage that was found: what it concerns is missing from the export."""
    unsupported: list[str] = field(default_factory=list)
    """Streams that the format cannot hold, with the reason."""


def export_file(source: Source, output: str, file_format: str) -> Export:
    """Write each stream of a file to `output`/`<file>-slot<n>-stream<m>.<format>`.

    Raises:
        UsageError: a file of that name is there already (nothing was written), or the file holds no streams.
        FormatError: nothing of it can be read.
        DiskError, OSError: reading, or writing, failed.
    """
    export = Export()
    parts = list(_parts(source, export))
    targets = [_target(source, output, stream, file_format) for part in parts for stream in part.streams]
    taken = next((target for target in targets if os.path.exists(target)), None)
    if taken is not None:
        raise UsageError(f"{taken} is there already: remove it, or give another directory with --out")
    os.makedirs(output, exist_ok=True)
    for part in parts:
        for stream in part.reader.streams:
            numbered = stream._replace(stream_id=stream.stream_id + part.first_stream_id)
            target = _target(source, output, numbered, file_format)
            _export_stream(part, stream, numbered.stream_id, target, file_format, source.path, export)
    return export


@dataclass(slots=True)
class _Part:
    """A whole segment in memory. Its streams are numbered from `first_stream_id` on in the names of files."""

    memory: bytes
    reader: SegmentReader
    first_stream_id: int = 0
    proof: CheckedReader | None = None
    """Proves a segment's bundles; None where the bundles were made from log entries whose checksums were right."""

    @property
    def streams(self) -> list[StreamInfo]:
        return [stream._replace(stream_id=stream.stream_id + self.first_stream_id) for stream in self.reader.streams]


def _target(source: Source, output: str, stream: StreamInfo, file_format: str) -> str:
    name = f"{source.name.removesuffix('.qseg')}-slot{stream.slot_id}-stream{stream.stream_id}.{file_format}"
    return os.path.join(output, name)


# --- where the streams come from -----------------------------------------------------------------------------------------------------


def _parts(source: Source, export: Export) -> Iterator[_Part]:
    kind, _ = recognise(source)
    if kind is FileKind.SEGMENT:
        try:
            memory = source.read(source.size_bytes, 0)
            yield _Part(memory, SegmentReader(memory), proof=CheckedReader(memory))
        except FormatError as error:
            if not source.read(len(layout.WAL_MAGIC), 0) == layout.WAL_MAGIC:
                raise
            _lose(export, source, None, f"is read by its log entries, as its tail is damaged: {one_line(error)}")
        else:
            return
    elif kind is not FileKind.LOG:
        raise UsageError(f"{source.path} holds no streams (it is: {kind}): expected a segment or a log file")
    yield from _parts_of_log(source, export)


def _parts_of_log(source: Source, export: Export) -> Iterator[_Part]:
    reader = LogReader(source.read, source.size_bytes)
    scan = _scan(source, reader)
    for span in scan.damaged:
        _lose(export, source, span.start, f"bytes {span.start} to {span.end} are damaged: what they held is missing")
    if not scan.entry_count:
        raise UsageError(f"{source.path} holds no valid entry: there is nothing to export")
    streams = 0
    part = _VirtualSegment()
    for span in scan.entries:
        try:
            if not part.add(reader.body(span)):
                yield _Part(*part.finish(), streams)
                streams += part.stream_count
                part = _VirtualSegment()
                part.add(reader.body(span))
        except FormatError as error:
            _lose(export, source, span.start, f"an entry cannot be used: {one_line(error)}")
    yield _Part(*part.finish(), streams)


def _scan(source: Source, reader: LogReader) -> LogScan:
    """The entries, wherever they start: the header may be damaged."""
    header = None
    with suppress(FormatError):
        header = decode_header(source.read(layout.HEADER_BYTES, 0))
    start = find_start(header, reader)[1]
    return reader.scan(start.offset, start.stride)


class _VirtualSegment:
    """Entries of a log laid out as our logs are, to be given a tail."""

    def __init__(self) -> None:
        self._laid = bytearray(encode_header(layout.DEFAULT_CFG_HASH, 0, _FOREIGN))
        self._builder = SegmentBuilder(0, self._read)

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self._laid[offset : offset + length])

    @property
    def stream_count(self) -> int:
        return self._builder.stream_count

    def add(self, body: bytes) -> bool:
        """Take one entry's body; False if the segment is full. Raises FormatError if it cannot be used."""
        if body[0] not in (layout.ENTRY_TYPE_BUNDLE, layout.ENTRY_TYPE_STAGED):
            return True
        start = len(self._laid)
        self._laid += realign_entry(body)
        end = len(self._laid)
        entry = read_entry(LogReader(lambda length, at: self._read(at, length), end), Span(start, end))
        is_full = self._builder.bundle_count >= SEGMENT_BUNDLES_MAX
        if is_full or not entry.placements:
            del self._laid[start:]
        else:
            self._builder.append(entry.sequence, entry.ingestion_ts_nanos, -1, 0, entry.placements)
        if entry.error:
            raise InvalidFormat(entry.error)
        return not is_full

    def finish(self) -> tuple[bytes, SegmentReader]:
        end = len(self._laid)
        tail = encode_tail(
            self._builder,
            entries_end=end,
            crc32_of_entries=crc32(self._laid),
            wal_position_start=0,
            wal_position_end=0,
            incarnation=bytes(16),
        )
        memory = b"".join((self._laid, *tail))
        return memory, SegmentReader(memory)


# --- where they go -------------------------------------------------------------------------------------------------------------------


def _export_stream(
    part: _Part, stream: StreamInfo, stream_id: int, target: str, file_format: str, path: str, export: Export
) -> None:
    exported = ExportedStream(
        file=target, slot_id=stream.slot_id, stream_id=stream_id, row_count=0, batch_count=0, left_out=0
    )
    try:
        schema = part.reader.schema(stream.stream_id)
        region = pa.py_buffer(part.memory).slice(stream.byte_offset, stream.byte_length)
        batches = _batches(pa.ipc.open_file(region), _proofs(part, stream), exported, path, export)
        _write(target, file_format, schema, batches, exported)
    except (FormatError, pa.ArrowInvalid) as error:
        message = f"stream {stream.stream_id} of slot {stream.slot_id} cannot be read: {one_line(error)}"
        export.findings.append(_missing(path, stream.byte_offset, message))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        export.unsupported.append(f"stream {stream_id} of slot {stream.slot_id}: {one_line(error)}")
    else:
        export.streams.append(exported)


def _proofs(part: _Part, stream: StreamInfo) -> dict[int, Callable[[], None]]:
    """Return a function for each chunk of a stream. It raises ChecksumMismatch if the bundle of the chunk is damaged."""
    if part.proof is None:
        return {}
    return {
        chunk: functools.partial(part.proof.check, index)
        for index in range(part.reader.bundle_count)
        for stream_id, chunk in part.reader.manifest.chunks(index)
        if stream_id == stream.stream_id
    }


def _batches(
    reader: pa.RecordBatchFileReader,
    proofs: Mapping[int, Callable[[], None]],
    exported: ExportedStream,
    path: str,
    export: Export,
) -> Iterator[pa.RecordBatch]:
    """The batches that are proven and can be decoded; counts all."""
    for index in range(reader.num_record_batches):
        try:
            if index in proofs:
                proofs[index]()
            batch = reader.get_batch(index)
            batch.validate(full=True)
        except (FormatError, pa.ArrowException, OSError, ValueError) as error:
            exported.left_out += 1
            where = f"chunk {index} of stream {exported.stream_id} (slot {exported.slot_id})"
            export.findings.append(_missing(path, None, f"{where} cannot be decoded: {one_line(error)}"))
            continue
        exported.batch_count += 1
        exported.row_count += batch.num_rows
        yield batch


def _write(
    target: str, file_format: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], exported: ExportedStream
) -> None:
    """Write the file under a temporary name, so that one of the final name is always whole."""
    temporary = f"{target}.tmp"
    try:
        with pa.OSFile(temporary, "wb") as sink:
            writer = pq.ParquetWriter(sink, schema) if file_format == "parquet" else pa.ipc.new_file(sink, schema)
            with writer:
                for batch in batches:
                    writer.write_batch(batch)
        os.rename(temporary, target)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(temporary)


def _lose(export: Export, source: Source, offset: int | None, message: str) -> None:
    export.findings.append(_missing(source.path, offset, message))


def _missing(path: str, offset: int | None, message: str) -> Finding:
    return damage("export.missing", path, offset, message, action="none of it is exported")
