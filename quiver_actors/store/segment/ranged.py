"""Reads a segment of which only some blocks are here, fetching those that are missing.

The file is mapped at its full size and has holes. Before a reader touches a byte, the block of it was fetched, and was found to have the
checksum that was taken of it when the file was whole. So no value is shown that is not proven, whatever else of its bundle is missing.

Bundles that follow are fetched with the one that is asked for, up to `WINDOW_BYTES`: a source brings many blocks with few requests.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.errors import FormatError, InvalidFormat
from quiver_actors.store.segment.arrow_file import read_file_footer
from quiver_actors.store.segment.blocks import Spans, are_inside, unpack_blocks
from quiver_actors.store.segment.column_buffers import Range, column_ranges
from quiver_actors.store.segment.proven_blocks import BlockSource, ProvenBlocks
from quiver_actors.store.segment.reader import SegmentReader, StreamInfo, read_footer
from quiver_actors.store.segment.single_reads import SingleReads

WINDOW_BYTES = 32 << 20
"""Messages of about so many bytes are fetched together."""
WHOLE_BYTES = 48 << 20
"""A file of this size is fetched at once where all of it is wanted: a segment of the default size is a little larger than 32 MiB."""
_END_BLOCKS = 2
"""Blocks at the end of a file that are fetched first: they hold the footer, and mostly all that stands behind the streams."""
_STREAM_END_BYTES = 10
"""The length of an Arrow file's footer, and the magic behind it."""


class _Messages(NamedTuple):
    """The messages of a stream, as spans in the file."""

    dictionaries: Spans
    batches: Spans
    schema: pa.Schema


class RangedReader(SingleReads):
    """A reader of one segment, like `SegmentReader`, over a source of blocks. Any thread may read.

    Args:
        slots, columns: what `check` fetches of a bundle; None, or a slot that `columns` does not name: all of it. `bundle` and its like
            return columns that are named here alone.
        end: no bundle from this one on is fetched ahead; None: all may be.
        is_all_wanted: every bundle will be asked for, whole. A file of at most `WHOLE_BYTES` is then fetched at once.
        segment_seq: the segment's number, for messages.

    Raises:
        ChecksumMismatch: blocks that every reader needs are damaged.
        FormatError: it is no segment, or damaged before its checksums were taken.
        And as `BlockSource.fetch`.
    """

    def __init__(
        self,
        source: BlockSource,
        *,
        segment_seq: int | None = None,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
        end: int | None = None,
        is_all_wanted: bool = False,
    ) -> None:
        self._where = "the segment" if segment_seq is None else f"segment {segment_seq}"
        self._slots = slots
        self._columns = columns or {}
        self._blocks = blocks = ProvenBlocks(source, self._where)
        self._view = view = blocks.view
        self._messages: dict[int, _Messages] = {}
        self._fetched: set[int] = set()
        """Bundles of which all that is wanted was fetched and proven."""
        self._tried: set[int] = set()
        """Bundles whose peers were fetched with them, or were found to be damaged."""
        self._checked: set[int] = set()
        self._lock = threading.RLock()
        if is_all_wanted and view.nbytes <= WHOLE_BYTES:
            # The end says where everything is, and asking for it first costs one more request.
            with contextlib.suppress(FormatError):  # of a damaged file, what is whole is read
                blocks.need([(0, view.nbytes)])
        blocks.need([(view.nbytes - _END_BLOCKS * blocks.block_bytes, view.nbytes)])
        footer = read_footer(blocks.read, view.nbytes)
        directory_end = footer.directory_offset + footer.directory_length
        manifest_end = footer.manifest_offset + footer.manifest_length
        blocks.need([(footer.directory_offset, directory_end), (footer.manifest_offset, manifest_end)])
        self._reader = SegmentReader(self._view, segment_seq=segment_seq)
        self._end = self.bundle_count if end is None else end
        self._infos = {info.stream_id: info for info in self._reader.streams}

    # --- what the end of the file says ---------------------------------------------------------------------------------------

    @property
    def bundle_count(self) -> int:
        """Number of bundles in the segment, lost ones included."""
        return self._reader.bundle_count

    @property
    def row_count(self) -> int:
        """Rows of all slots of all bundles."""
        return self._reader.row_count

    @property
    def incarnation(self) -> bytes | None:
        """The incarnation of the directory whose engine wrote the file; None in a segment that another implementation wrote."""
        return self._reader.incarnation

    @property
    def ingestion_span(self) -> tuple[int, int] | None:
        """The ingestion times of the first and the last push, UNIX nanoseconds; None in a segment that another implementation wrote."""
        extension = self._reader.footer.extension
        return None if extension is None else (extension.first_ingestion_ts_nanos, extension.last_ingestion_ts_nanos)

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The stream directory, in file order."""
        return self._reader.streams

    def schema(self, stream_id: int) -> pa.Schema:
        """The Arrow schema of a stream. Raises as `SegmentReader.schema`."""
        with self._lock:
            self._find_messages([stream_id])
            return self._reader.schema(stream_id)

    def is_lost(self, index: int) -> bool:
        """Whether the bundle holds nothing: it was lost to damage before the segment was stored."""
        return self._reader.is_lost(index)

    def slot_ids(self, index: int) -> tuple[int, ...]:
        """The slots that a bundle has."""
        return self._reader.slot_ids(index)

    def byte_count(self, index: int) -> int | None:
        """Bytes of the bundle's log entry, None where unknown."""
        return self._reader.byte_count(index)

    def item_count(self, index: int) -> int | None:
        """How many items the producer said that the bundle holds, None where unknown."""
        return self._reader.item_count(index)

    def ingestion_ts(self, index: int) -> int | None:
        """Ingestion time in UNIX nanoseconds, None where unknown."""
        return self._reader.ingestion_ts(index)

    # --- bundles -------------------------------------------------------------------------------------------------------------

    def check(self, index: int) -> None:
        """Fetch what is wanted of a bundle, and prove it; a second time it is proven anew.

        Raises:
            IndexError: there is no such bundle.
            ChecksumMismatch: a block that holds some of it is damaged.
            And as `BlockSource.fetch`.
        """
        with self._lock:
            if index in self._checked:
                wanted = self._ranges([index], self._slots)
                self._blocks.doubt(wanted)
                self._blocks.need(wanted)
            else:
                self.fetch(index)
                self._checked.add(index)

    def fetch(self, index: int) -> None:
        """Fetch and prove what `check` will want of a bundle, and of those that follow. Raises as `check`."""
        with self._lock:
            if index in self._fetched:
                return
            window = list(self._window(index)) if index not in self._tried else [index]
            self._tried.update(window)
            try:
                self._blocks.need(self._ranges(window, self._slots))
            except FormatError:
                # Another bundle may be the damaged one: what is whole is read.
                self._blocks.need(self._ranges([index], self._slots))
                window = [index]
            self._fetched.update(window)

    def bundle(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """The record batches of a bundle by slot id, after `check`. Raises as `SegmentReader.bundle`."""
        self.check(index)
        return self.decode(index, slots)

    def decode(self, index: int, slots: Collection[int] | None = None) -> dict[int, pa.RecordBatch]:
        """Read what `bundle` reads, for a caller that has called `check` before; slots that were not wanted are fetched now."""
        with self._lock:
            if index not in self._checked or (slots != self._slots and self._slots is not None):
                self._blocks.need(self._ranges([index], slots))
            found = self._reader.decode(index, slots)
        return {slot_id: _selected(batch, self._columns.get(slot_id)) for slot_id, batch in found.items()}

    def _window(self, index: int) -> Iterator[int]:
        """The bundles that are fetched together with one."""
        size_bytes = 0
        for each in range(index, max(index + 1, min(self._end, self.bundle_count))):
            size_bytes += self.byte_count(each) or self._blocks.block_bytes
            if size_bytes > WINDOW_BYTES and each > index:
                return
            yield each

    # --- bytes ---------------------------------------------------------------------------------------------------------------

    def _ranges(self, indexes: Iterable[int], slots: Collection[int] | None) -> list[Range]:
        """Where the wanted parts of bundles are. Heads of messages that say it are fetched for it."""
        manifest = self._reader.manifest
        refs = [
            (manifest.ref_streams[ref], manifest.ref_chunks[ref], manifest.ref_slots[ref])
            for index in indexes
            for ref in manifest.refs(index)
            if slots is None or manifest.ref_slots[ref] in slots
        ]
        self._find_messages(sorted({stream_id for stream_id, _, _ in refs}))
        whole, heads = [], []
        for stream_id, chunk, slot_id in refs:
            found = self._messages.get(stream_id)
            if found is None or chunk >= len(found.batches):
                continue  # the reader says what is wrong
            offset, metadata_bytes, body_bytes = found.batches[chunk].tolist()
            if slot_id in self._columns and slot_id != ENVELOPE_SLOT:
                heads.append((stream_id, slot_id, offset, metadata_bytes, body_bytes))
            else:
                whole.append((offset, offset + metadata_bytes + body_bytes))
        self._blocks.need([(offset, offset + metadata_bytes) for _, _, offset, metadata_bytes, _ in heads])
        return whole + [piece for head in heads for piece in self._column_ranges(*head)]

    def _column_ranges(
        self, stream_id: int, slot_id: int, offset: int, metadata_bytes: int, body_bytes: int
    ) -> list[Range]:
        schema = self._messages[stream_id].schema
        head = self._view[offset : offset + metadata_bytes]
        found = column_ranges(head, schema, _numbers(schema, self._columns[slot_id]))
        if found is None:
            return [(offset, offset + metadata_bytes + body_bytes)]
        return [(offset, offset + metadata_bytes), *((offset + start, offset + end) for start, end in found)]

    def _find_messages(self, stream_ids: Iterable[int]) -> None:
        """Fetch what is needed to open streams: their footers and dictionaries."""
        infos = [self._infos[each] for each in stream_ids if each not in self._messages and each in self._infos]
        if not infos:
            return
        ends = [(info, info.byte_offset + info.byte_length) for info in infos]
        if any(end > self._view.nbytes for _, end in ends):
            raise InvalidFormat(f"{self._where} has a stream that ends behind the file's {self._view.nbytes} bytes")
        self._blocks.need([(end - _STREAM_END_BYTES, end) for _, end in ends])
        # The footers of all of them with one request, not one after the other.
        self._blocks.need([(max(info.byte_offset, end - _footer_bytes(self._view, end)), end) for info, end in ends])
        found = {info.stream_id: self._messages_of(info) for info in infos}
        self._blocks.need([piece for each in found.values() for piece in _pieces(each.dictionaries)])
        self._messages.update(found)

    def _messages_of(self, info: StreamInfo) -> _Messages:
        end = info.byte_offset + info.byte_length
        footer = read_file_footer(self._blocks.read, info.byte_offset, end)
        return _Messages(
            self._spans(footer.dictionary_blocks, info),
            self._spans(footer.batch_blocks, info),
            self._reader.schema(info.stream_id),
        )

    def _spans(self, blocks: bytes, info: StreamInfo) -> Spans:
        spans = unpack_blocks(blocks)
        if not are_inside(spans, info.byte_length).all():
            raise InvalidFormat(f"{self._where}: stream {info.stream_id} refers to messages outside of it")
        spans[:, 0] += info.byte_offset
        return spans


def _footer_bytes(view: memoryview, end: int) -> int:
    """The length of the footer of the stream that ends there, as the stream says it."""
    length = int.from_bytes(view[end - _STREAM_END_BYTES :][:4], "little", signed=True)
    return max(0, length) + _STREAM_END_BYTES


def _selected(batch: pa.RecordBatch, names: Sequence[str] | None) -> pa.RecordBatch:
    """The columns that were fetched; None: all."""
    return batch if names is None else batch.select(_numbers(batch.schema, names))


def _numbers(schema: pa.Schema, names: Iterable[str]) -> list[int]:
    return [number for name in names for number in schema.get_all_field_indices(name)]


def _pieces(spans: Spans) -> list[Range]:
    return [(offset, offset + metadata + body) for offset, metadata, body in spans.tolist()]
