"""Reads many small bundles of a segment at once: a run of bundles that are laid out alike becomes one batch for each slot.

Batches whose metadata is the same, byte for byte, have their values at the same places of their bodies. So the metadata of a run is read
once, and the values of a column are copied out of all its bodies to stand one behind the other. Making a batch of each bundle costs
2 to 3 us, whatever its size; its share of a run's copy, with new memory for it, costs as much at about 8 KiB.

What is no run is left to the caller: columns of variable width or with nulls, dictionaries, large bodies, few bundles, damage.

Guarantee: every bundle of a run was proven, whole, before anything of it was copied, and the copies are nobody else's.

Concurrency: any number of threads.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.errors import ArrowError, FormatError
from quiver_actors.store.segment.arrow_file import read_file_footer
from quiver_actors.store.segment.arrow_ipc import schema_in
from quiver_actors.store.segment.blocks import Spans, are_inside, unpack_blocks
from quiver_actors.store.segment.bodies import batch_buffers
from quiver_actors.store.segment.codec import StreamInfo
from quiver_actors.store.segment.flatbuffers import field_at
from quiver_actors.store.segment.manifest import Manifest

RUN_BUNDLES_MIN = 16
"""Fewest bundles of a run: it costs as much as decoding so many, whatever it holds."""
BODY_BYTES_MAX = 8 << 10
"""Largest body of a batch that is copied."""
_LAYOUTS_MAX = 1024
"""Layouts that are remembered for one segment."""

_Integers: TypeAlias = npt.NDArray[np.int64]
_Flags: TypeAlias = npt.NDArray[np.bool_]


class Run(NamedTuple):
    """Bundles that were read together. The envelope (slot 63) is left out."""

    first: int
    """Position of the first bundle among those that were asked for; the others follow it there."""
    bundle_count: int
    batches: dict[int, pa.RecordBatch]
    """Rows of all of them by slot id, in their order."""
    row_counts: dict[int, int]
    """Rows that each of them has, by slot id."""


class _Stream(NamedTuple):
    """A stream whose columns all have a fixed width, and whose batches are small."""

    stream_id: int
    schema: pa.Schema
    widths: tuple[int, ...]
    """Bytes of a value of each column."""
    spans: Spans


class _Layout(NamedTuple):
    """What batches with the same metadata have in common."""

    body_bytes: int
    row_count: int
    places: tuple[tuple[int, int], ...]
    """Offset from the start of the body, and size, of the values of each column."""


class _Messages(NamedTuple):
    """The batches that one slot of some bundles has."""

    slot_id: int
    stream: _Stream
    columns: Sequence[int]
    """Numbers of the columns that are asked for."""
    spans: Spans

    def part(self, first: int, stop: int) -> _Messages:
        """Return those of bundles `first` to `stop`."""
        return self._replace(spans=self.spans[first:stop])


class RunReader:
    """Reads runs of one segment.

    Args:
        view: the whole file.
        check: proves one bundle, and that the footers of its streams stay as they are; raises FormatError.
    """

    def __init__(
        self,
        view: memoryview,
        streams: Mapping[int, StreamInfo],
        manifest: Manifest,
        check: Callable[[int], None],
    ) -> None:
        self._view = view
        self._infos = streams
        self._check = check
        self._bundle_count = manifest.bundle_count
        self._ref_ends = np.asarray(manifest.ref_ends, np.int64)
        columns = (manifest.ref_slots, manifest.ref_streams, manifest.ref_chunks)
        self._ref_slots, self._ref_streams, self._ref_chunks = (np.asarray(each, np.int64) for each in columns)
        self._streams: dict[int, _Stream | None] = {}
        self._layouts: dict[tuple[int, bytes], _Layout | None] = {}

    def read(
        self,
        indexes: Sequence[int],
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> list[Run]:
        """Read the runs among some bundles.

        Args:
            indexes: the bundles.
            slots: only these slots; None: all.
            columns: names of the columns to read, by slot id; slots that are not named are read with all.

        Returns:
            In the order of `indexes`; what is in none of them is to be read bundle by bundle.
        """
        wanted = np.asarray(indexes, np.int64)
        if len(wanted) < RUN_BUNDLES_MIN or wanted.min() < 0 or wanted.max() >= self._bundle_count:
            return []
        firsts = self._ref_ends[wanted]
        counts = self._ref_ends[wanted + 1] - firsts
        if self._is_known_to_have_none(range(firsts[0], firsts[0] + counts[0]), slots):
            return []
        found: list[Run] = []
        for first, stop in _stretches(counts[1:] == counts[:-1]):
            refs = firsts[first:stop, None] + np.arange(counts[first])
            streams, slot_ids = self._ref_streams[refs], self._ref_slots[refs]
            is_like = (streams[1:] == streams[:-1]) & (slot_ids[1:] == slot_ids[:-1])
            for start, end in _stretches(is_like.all(axis=1)):
                messages = self._messages(refs[start:end], indexes[first + start], slots, columns or {})
                if messages:
                    found += self._runs(messages, wanted, first + start)
        return found

    def _is_known_to_have_none(self, refs: Iterable[int], slots: Collection[int] | None) -> bool:
        """Whether one of these batches is of a stream without runs: a look at the first bundle that saves looking at the others."""
        streams = [int(self._ref_streams[ref]) for ref in refs if _is_asked_for(int(self._ref_slots[ref]), slots)]
        return any(self._streams.get(stream_id, True) is None for stream_id in streams)

    def _messages(
        self,
        refs: _Integers,
        first_index: int,
        slots: Collection[int] | None,
        columns: Mapping[int, Sequence[str]],
    ) -> list[_Messages]:
        """The batches of bundles that have the same slots in the same streams; empty: they are not to be read together.

        Args:
            refs: a row of slot references for each bundle.
        """
        found: list[_Messages] = []
        for number, ref in enumerate(refs[0].tolist()):
            slot_id = int(self._ref_slots[ref])
            if not _is_asked_for(slot_id, slots):
                continue
            stream = self._stream(int(self._ref_streams[ref]), first_index)
            chunks = self._ref_chunks[refs[:, number]]
            if stream is None or chunks.max() >= len(stream.spans):
                return []
            names = columns.get(slot_id)
            if names is None:
                chosen: Sequence[int] = range(len(stream.schema))
            else:
                chosen = [column for name in names for column in stream.schema.get_all_field_indices(name)]
            if not chosen:
                return []
            spans = stream.spans[chunks]
            if spans[0, 2] > BODY_BYTES_MAX:
                return []
            found.append(_Messages(slot_id, stream, chosen, spans))
        return found

    def _runs(self, messages: list[_Messages], wanted: _Integers, position: int) -> Iterator[Run]:
        """Read the runs among the bundles from `position` on."""
        is_like = np.ones(len(messages[0].spans) - 1, np.bool_)
        for each in messages:
            is_like &= (each.spans[1:, 1:] == each.spans[:-1, 1:]).all(axis=1)
        for first, stop in _stretches(is_like):
            part = [each.part(first, stop) for each in messages]
            # A look at what is not proven yet: a layout that does not fit is none when it is proven either.
            if any(self._layout(each) is None for each in part):
                continue
            is_like_next = self._are_whole(wanted[position + first : position + stop])
            for each in part:
                metadata = self._pieces(each.spans[:, 0], int(each.spans[0, 1]))
                is_like_next &= (metadata[1:] == metadata[:-1]).all(axis=1)
            for start, end in _stretches(is_like_next):
                run = self._gathered([each.part(start, end) for each in part], position + first + start)
                if run is not None:
                    yield run

    def _are_whole(self, indexes: _Integers) -> _Flags:
        """Prove bundles. Returns of each but the last one whether it and the next one are whole."""
        found = np.ones(len(indexes), np.bool_)
        for number, index in enumerate(indexes.tolist()):
            try:
                self._check(index)
            except FormatError:
                # Whoever reads it by itself says what is wrong.
                found[number] = False
        return np.asarray(found[1:] & found[:-1], np.bool_)

    def _gathered(self, messages: Sequence[_Messages], position: int) -> Run | None:
        batches: dict[int, pa.RecordBatch] = {}
        row_counts: dict[int, int] = {}
        for each in messages:
            layout = self._layout(each)
            if layout is None:
                return None
            batches[each.slot_id] = self._batch(each, layout)
            row_counts[each.slot_id] = layout.row_count
        return Run(position, len(messages[0].spans), batches, row_counts)

    def _batch(self, messages: _Messages, layout: _Layout) -> pa.RecordBatch:
        schema, spans = messages.stream.schema, messages.spans
        bodies = spans[:, 0] + spans[:, 1]
        row_count = layout.row_count * len(spans)
        arrays = []
        for column in messages.columns:
            offset, size_bytes = layout.places[column]
            values = self._copied(bodies + offset, size_bytes)
            arrays.append(pa.Array.from_buffers(schema.field(column).type, row_count, [None, values], 0))
        if len(arrays) != len(schema) or isinstance(messages.columns, list):
            schema = pa.schema([schema.field(column) for column in messages.columns], schema.metadata)
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _copied(self, starts: _Integers, size_bytes: int) -> pa.Buffer:
        """The pieces of the file that begin there, one behind the other."""
        copied = pa.allocate_buffer(len(starts) * size_bytes)
        np.copyto(np.frombuffer(copied, np.uint8).reshape(-1, size_bytes), self._pieces(starts, size_bytes))
        return copied

    def _pieces(self, starts: _Integers, size_bytes: int) -> npt.NDArray[np.uint8]:
        """The pieces of the file that begin there, as rows; in the file's memory if they are equally far apart."""
        first, distance = int(starts[0]), int(starts[1] - starts[0])
        if distance > 0 and (starts[1:] - starts[:-1] == distance).all():
            return np.ndarray((len(starts), size_bytes), np.uint8, self._view, first, (distance, 1))
        pieces = [self._view[start : start + size_bytes] for start in starts.tolist()]
        return np.frombuffer(b"".join(pieces), np.uint8).reshape(-1, size_bytes)

    def _layout(self, messages: _Messages) -> _Layout | None:
        """How the first of the batches is laid out; None: not as a run's is."""
        offset, metadata_bytes, body_bytes = messages.spans[0].tolist()
        metadata = bytes(self._view[offset : offset + metadata_bytes])
        key = (messages.stream.stream_id, metadata)
        if key not in self._layouts:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            self._layouts[key] = _layout_of(metadata, messages.stream.widths)
        layout = self._layouts[key]
        return layout if layout is not None and layout.body_bytes == body_bytes else None

    def _stream(self, stream_id: int, index: int) -> _Stream | None:
        """A stream that can have runs, else None.

        Args:
            index: a bundle of that stream.
        """
        if stream_id not in self._streams:
            try:
                # What the check goes by stays as it is from then on, and is read behind it.
                self._check(index)
            except FormatError:
                return None
            try:
                self._streams[stream_id] = self._opened(stream_id)
            except FormatError:
                self._streams[stream_id] = None
        return self._streams[stream_id]

    def _opened(self, stream_id: int) -> _Stream | None:
        info = self._infos.get(stream_id)
        if info is None:
            return None
        # A stream that ends behind the file has no footer there: that is refused.
        footer = read_file_footer(self._pread, info.byte_offset, info.byte_offset + info.byte_length)
        spans = unpack_blocks(footer.batch_blocks)
        is_ours = footer.schema_message is not None and not footer.dictionary_blocks
        if (
            not (is_ours and len(spans) and are_inside(spans, info.byte_length).all())
            or np.median(spans[:, 2]) > BODY_BYTES_MAX
        ):
            return None
        spans[:, 0] += info.byte_offset
        return _stream_of(stream_id, footer.schema_message or b"", spans)

    def _pread(self, size_bytes: int, offset: int) -> bytes:
        return bytes(self._view[offset : offset + size_bytes])


def _stream_of(stream_id: int, schema_message: bytes, spans: Spans) -> _Stream | None:
    if not _is_little_endian(schema_message):
        return None
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(schema_message))
    except (pa.ArrowException, OSError) as error:
        raise ArrowError(f"stream {stream_id} has a schema that cannot be read: {error}") from error
    widths = tuple(_width_of(field.type) for field in schema)
    return _Stream(stream_id, schema, widths, spans) if all(widths) else None


def _is_little_endian(schema_message: bytes) -> bool:
    """Whether values are stored so: the default, which is left out. Raises as `schema_in`, or ArrowError."""
    message = schema_in(schema_message)
    try:
        return not field_at(message.flatbuffer, message.header, 0)
    except struct.error as error:
        raise ArrowError(f"Arrow schema has a broken flatbuffer: {error}") from error


def _width_of(data_type: pa.DataType) -> int:
    """Bytes of a value, where a column is its values and nothing else; else 0."""
    if isinstance(data_type, pa.BaseExtensionType) or pa.types.is_dictionary(data_type):
        return 0
    if data_type.num_fields or data_type.num_buffers != 2:
        return 0
    try:
        bits: int = data_type.bit_width
    except ValueError:
        return 0
    return 0 if bits % 8 else bits // 8


def _layout_of(metadata: bytes, widths: Sequence[int]) -> _Layout | None:
    """The layout that metadata describes; None where it is not only values."""
    try:
        found = batch_buffers(metadata)
    except FormatError:
        return None
    if found is None or found.metadata_bytes != len(metadata) or found.row_count < 1:
        return None
    if found.nodes != [(found.row_count, 0)] * len(widths) or len(found.buffers) != 2 * len(widths):
        return None
    places = []
    for (offset, length), width in zip(found.buffers[1::2], widths, strict=True):
        size_bytes = found.row_count * width
        if not 0 <= offset <= found.body_bytes - length or size_bytes > length:
            return None
        places.append((offset, size_bytes))
    return _Layout(found.body_bytes, found.row_count, tuple(places))


def _is_asked_for(slot_id: int, slots: Collection[int] | None) -> bool:
    return slot_id != ENVELOPE_SLOT and (slots is None or slot_id in slots)


def _stretches(is_like: _Flags) -> Iterator[tuple[int, int]]:
    """The stretches of like things that are long enough for a run, as first and end.

    Args:
        is_like: of each thing but the last one, whether the next one is like it.
    """
    first = 0
    for stop in (*(np.flatnonzero(~is_like) + 1).tolist(), len(is_like) + 1):
        if stop - first >= RUN_BUNDLES_MIN:
            yield first, stop
        first = stop
