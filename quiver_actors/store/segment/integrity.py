"""Proof, bundle by bundle, that a segment file holds what was written into it. Pure: works on the file's memory.

| the file was | what is proven once | what is proven of a bundle each time |
|---|---|---|
| sealed in place | header and tail, from the CRC of the whole file | its log entry, by the CRC of the entry |
| compacted | that footers and heads of its streams agree | its messages, schemas, dictionaries, and manifest row: `bundle_crc32` |
| another writer's | all of it, by the CRC of the whole file | its messages, by CRCs that were taken just before that |

What is proven once is frozen before: damage that comes to the file later does not reach it. Whatever is used to decode a bundle (footers,
schemas, dictionaries) belongs to it; only the bundle's own bytes are read where they stand, each time anew. Any thread may check.

The CRC of a file that was sealed in place is computed without its entries: an intact entry of a known length adds to it what its length
says, whatever it holds (the CRC of a body that its own CRC follows is always the same number).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32, crc32_combine, crc32_of_run
from quiver_actors.base.locks import new_lock
from quiver_actors.errors import ChecksumMismatch, InvalidFormat, StreamNotFound
from quiver_actors.store.segment.arrow_file import FILE_START, read_file_footer, read_footer_counts
from quiver_actors.store.segment.blocks import Spans, are_inside, unpack_blocks
from quiver_actors.store.segment.codec import FooterExtension, SegmentFooter
from quiver_actors.store.segment.compaction import BUNDLE_FIELDS, bundle_rows
from quiver_actors.store.segment.contents import Contents
from quiver_actors.store.segment.entry_places import CRC_OF_WHOLE, LENGTH_BYTES, entry_places
from quiver_actors.store.segment.layout import CRC, LOG_HEADER_BYTES
from quiver_actors.store.segment.outline import manifest_columns

_RUN_COST_BYTES = 8 << 10
"""How many bytes are checked in the time that the CRC of one run of entries takes."""
_ROW_BYTES = BUNDLE_FIELDS.itemsize
_REF = struct.Struct("<II").pack


class Integrity(Protocol):
    """The proof of one segment file. All methods raise FormatError by its subclasses; ChecksumMismatch where bytes are damaged."""

    def check(self, index: int) -> None:
        """Prove bundle `index`, with all that it is decoded with. IndexError: there is none."""

    def check_file(self) -> None:
        """Prove what belongs to no single bundle: directory, footer, schemas. Once a file."""


def is_in_place(view: memoryview) -> bool:
    """Whether the file was sealed in place: a contiguous one begins with its first stream."""
    return view[: len(FILE_START)] != FILE_START


def frozen_start(footer: SegmentFooter, view: memoryview) -> int:
    """File offset from which on the end of a file is to be frozen before it is decoded. A damaged footer may say anything here."""
    if footer.extension is None or not is_in_place(view):
        return footer.directory_offset
    return max(0, min(_entries_end(footer.extension), footer.directory_offset))


def integrity_of(contents: Contents) -> Integrity:
    """Choose the proof by the kind of the file."""
    footer, manifest = contents.footer, contents.manifest
    if footer.extension is not None and is_in_place(contents.view):
        return InPlace(contents, footer.extension)
    if footer.extension is not None and manifest.bundle_crc32 is not None:
        return Compacted(contents, footer.extension)
    return Foreign(contents)


def _entries_end(extension: FooterExtension) -> int:
    return LOG_HEADER_BYTES + extension.wal_position_end - extension.wal_position_start


def _check_whole(contents: Contents) -> None:
    actual = crc32(contents.view[: -CRC.size])
    if actual != contents.footer.crc32:
        raise ChecksumMismatch(
            f"the file is damaged: its CRC-32 is {actual:#010x}, the trailer says {contents.footer.crc32:#010x}"
        )


def _damaged(index: int) -> ChecksumMismatch:
    return ChecksumMismatch(f"bundle {index} is damaged: its bytes do not have the checksum that was stored with them")


# --- sealed in place ---------------------------------------------------------------------------------------------------------


class InPlace:
    """A former log. The tail is proven when this is made."""

    def __init__(self, contents: Contents, extension: FooterExtension) -> None:
        self._contents = contents
        self._view = contents.view
        entries_end = _entries_end(extension)
        if not LOG_HEADER_BYTES <= entries_end <= contents.footer.directory_offset:
            raise ChecksumMismatch(f"the footer is damaged: it says that the log entries end at {entries_end}")
        starts, sizes = entry_places(contents, extension, entries_end)
        _check_tail(contents, starts, sizes, entries_end)
        self._starts: Sequence[int] = (starts + LENGTH_BYTES).data
        """Start of the part of each entry that its CRC covers; the same as the end for a bundle that was lost."""
        self._ends: Sequence[int] = (starts + np.maximum(sizes, LENGTH_BYTES)).data
        self._unproven = set(contents.streams)
        """Streams whose dictionaries, if they have any, were not proven yet."""
        self._lock = new_lock()

    def check(self, index: int) -> None:
        """Check the CRC of the log entry that holds the bundle. Raises ChecksumMismatch."""
        start, end = self._starts[index], self._ends[index]
        if crc32(self._view[start:end]) != CRC_OF_WHOLE and start < end:
            raise _damaged(index)
        if self._unproven:
            self._prove_dictionaries(index)

    def check_file(self) -> None:
        """Do nothing: the tail was proven when this was made."""

    def _prove_dictionaries(self, index: int) -> None:
        """Freeze and prove the dictionaries of the bundle's streams: they stand in the entry of the bundle that brought them last."""
        manifest = self._contents.manifest
        for ref in range(manifest.ref_ends[index], manifest.ref_ends[index + 1]):
            stream_id = manifest.ref_streams[ref]
            if stream_id in self._unproven:
                with self._lock:
                    self._prove_dictionaries_of(stream_id, index)
                    self._unproven.discard(stream_id)

    def _prove_dictionaries_of(self, stream_id: int, index: int) -> None:
        info = self._contents.streams[stream_id]
        end = info.byte_offset + info.byte_length
        if not read_footer_counts(self._view, info.byte_offset, end).dictionaries:
            return
        spans = unpack_blocks(read_file_footer(self._contents.read, info.byte_offset, end).dictionary_blocks)
        starts, ends = np.asarray(self._starts), np.asarray(self._ends)
        for offset, metadata_bytes, body_bytes in spans.tolist():
            at = info.byte_offset + offset
            self._contents.freeze(at, at + metadata_bytes + body_bytes)
            for owner in np.flatnonzero((starts <= at) & (at < ends)).tolist():
                if crc32(self._view[starts[owner] : ends[owner]]) != CRC_OF_WHOLE:
                    raise ChecksumMismatch(
                        f"bundle {index} uses a dictionary that came with bundle {owner}, which is damaged: its bytes do not have "
                        "the checksum that was stored with them"
                    )


def _check_tail(
    contents: Contents, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64], entries_end: int
) -> None:
    """Prove the header, the tail, and whatever else is no entry, from the CRC of the whole file.

    Raises:
        ChecksumMismatch: something of that is damaged.
    """
    kept = sizes > 0
    starts, sizes = starts[kept], sizes[kept]
    is_new = (starts[1:] != starts[:-1] + sizes[:-1]) | (sizes[1:] != sizes[:-1])
    firsts = np.flatnonzero(np.append(True, is_new)[: len(sizes)])
    # Small entries of many sizes: reading them is faster. Where one of them is damaged, the tail may still be whole.
    is_read_faster = len(firsts) * _RUN_COST_BYTES > entries_end
    if is_read_faster and crc32(contents.view[: -CRC.size]) == contents.footer.crc32:
        return
    counts = np.diff(np.append(firsts, len(sizes)))
    crc, at, view = 0, 0, contents.view
    runs = zip(starts[firsts].tolist(), sizes[firsts].tolist(), counts.tolist(), strict=True)
    for start, size, count in runs:
        crc = crc32(view[at:start], crc)
        length, rest_bytes = (size - 2 * LENGTH_BYTES).to_bytes(LENGTH_BYTES, "little"), size - LENGTH_BYTES
        if count == 1:
            crc = crc32_combine(crc32(length, crc), CRC_OF_WHOLE, rest_bytes)
        else:
            of_entry = crc32_combine(crc32(length), CRC_OF_WHOLE, rest_bytes)
            crc = crc32_combine(crc, crc32_of_run(of_entry, size, count), size * count)
        at = start + size * count
    crc = crc32(view[at : -CRC.size], crc)
    if crc != contents.footer.crc32:
        raise ChecksumMismatch(
            f"the end of the file is damaged: with it the CRC-32 is {crc:#010x}, the trailer says {contents.footer.crc32:#010x}"
        )


# --- contiguous --------------------------------------------------------------------------------------------------------------


class _Stream(NamedTuple):
    """A stream whose footer, schema and dictionaries are frozen. Not a word of it is proven by that."""

    starts: npt.NDArray[np.int64]
    """File offset of the message of each batch."""
    ends: npt.NDArray[np.int64]
    head_crc: int
    """CRC-32 of what stands before the first batch."""


class _Contiguous:
    """What the two kinds of contiguous segments have in common: for each slot reference of the manifest, where its message is. Known as
    soon as its stream is frozen; until then the message ends at 0."""

    def __init__(self, contents: Contents) -> None:
        manifest, count = contents.manifest, len(contents.manifest.ref_streams)
        self._contents = contents
        self._view = contents.view
        self._streams: dict[int, _Stream] = {}
        self._lock = new_lock()
        self._ref_ends = manifest.ref_ends
        self._ref_chunks = np.asarray(manifest.ref_chunks)
        streams = np.asarray(manifest.ref_streams)
        self._by_stream = np.argsort(streams, kind="stable")
        self._sorted_streams = streams[self._by_stream]
        self._starts, self._ends, self._heads = (np.zeros(count, np.int64) for _ in range(3))
        self._start_of: Sequence[int] = self._starts.data
        self._end_of: Sequence[int] = self._ends.data
        self._head_of: Sequence[int] = self._heads.data
        """The `head_crc` of the stream of each slot reference."""

    def _find(self, ref: int) -> int:
        """Return the end of the message of a reference to an unfrozen stream, and learn all messages of that stream."""
        stream_id = self._contents.manifest.ref_streams[ref]
        stream = self._stream(stream_id)
        if not self._end_of[ref]:
            raise StreamNotFound(
                f"stream {stream_id} has {len(stream.starts)} chunks: a bundle is said to be at {self._ref_chunks[ref]}"
            )
        return self._end_of[ref]

    def _stream(self, stream_id: int) -> _Stream:
        with self._lock:
            stream = self._streams.get(stream_id)
            if stream is None:
                stream = self._streams[stream_id] = self._frozen_stream(stream_id)
                first, last = np.searchsorted(self._sorted_streams, [stream_id, stream_id + 1])
                refs = self._by_stream[first:last]
                refs = refs[self._ref_chunks[refs] < len(stream.starts)]
                chunks = self._ref_chunks[refs]
                self._starts[refs], self._heads[refs] = stream.starts[chunks], stream.head_crc
                # Last: other threads take this for the sign that the rest is there.
                self._ends[refs] = stream.ends[chunks]
            return stream

    def _frozen_stream(self, stream_id: int) -> _Stream:
        info = self._contents.streams.get(stream_id)
        if info is None:
            raise StreamNotFound(f"stream {stream_id} is not in the directory of {len(self._contents.streams)} streams")
        start, end = info.byte_offset, info.byte_offset + info.byte_length
        read, freeze = self._contents.read, self._contents.freeze
        # The length of the footer stands before the last six bytes; a damaged one is noticed behind this.
        freeze(max(start, end - 10 - int.from_bytes(read(4, end - 10), "little")), end)
        footer = read_file_footer(read, start, end)
        batches, dictionaries = unpack_blocks(footer.batch_blocks), unpack_blocks(footer.dictionary_blocks)
        if not (are_inside(batches, info.byte_length).all() and are_inside(dictionaries, info.byte_length).all()):
            raise InvalidFormat(f"stream {stream_id} refers to messages outside its {info.byte_length} bytes")
        first = int(batches[:, 0].min()) if len(batches) else info.byte_length
        head_end = start + first
        freeze(start, head_end)
        for offset, metadata_bytes, body_bytes in dictionaries.tolist():
            freeze(start + offset, start + offset + metadata_bytes + body_bytes)
        self._check_head(stream_id, footer.schema_message, dictionaries, self._view[start:head_end])
        starts = start + batches[:, 0]
        ends = starts + batches[:, 1] + batches[:, 2]
        return _Stream(starts, ends, crc32(self._view[start:head_end]))

    def _check_head(self, stream_id: int, schema_message: bytes | None, dictionaries: Spans, head: memoryview) -> None:
        """Check what the footer says of schema and dictionaries against what stands before the batches."""


class Compacted(_Contiguous):
    """A file of ours whose manifest has a checksum of each bundle (see `segment.compaction`)."""

    def __init__(self, contents: Contents, extension: FooterExtension) -> None:
        super().__init__(contents)
        columns = manifest_columns(contents.manifest)
        first = np.uint64(extension.first_sequence)
        if columns.bundle_crc32 is None or (columns.sequence - first != np.arange(len(columns.sequence))).any():
            raise ChecksumMismatch("the manifest is damaged: its bundles are not numbered as the footer says")
        self._stored: Sequence[int] = columns.bundle_crc32.data
        self._rows = memoryview(bundle_rows(columns))
        self._slots = contents.manifest.ref_slots
        self._is_whole = False

    def check(self, index: int) -> None:
        """Check the bundle's row of the manifest and its batch messages against `bundle_crc32`. Raises ChecksumMismatch."""
        stored, at = self._stored[index], index * _ROW_BYTES
        crc = crc32(self._rows[at : at + _ROW_BYTES])
        for ref in range(self._ref_ends[index], self._ref_ends[index + 1]):
            end = self._end_of[ref] or self._find(ref)
            of_message = crc32(self._view[self._start_of[ref] : end], self._head_of[ref])
            crc = crc32(_REF(self._slots[ref], of_message), crc)
        if crc != stored:
            raise _damaged(index)

    def check_file(self) -> None:
        """Check the whole file once; later calls return at once."""
        if not self._is_whole:
            for stream_id in self._contents.streams:
                self._stream(stream_id)
            _check_whole(self._contents)
            self._is_whole = True

    def _check_head(self, stream_id: int, schema_message: bytes | None, dictionaries: Spans, head: memoryview) -> None:
        """The checksums are of the head, and decoding goes by the footer: they must say the same."""
        at = len(FILE_START) + len(schema_message or b"")
        sizes_agree = True
        for offset, metadata_bytes, body_bytes in dictionaries.tolist():
            prefix = 8 + int.from_bytes(head[offset + 4 : offset + 8], "little")
            sizes_agree = sizes_agree and offset == at and metadata_bytes == prefix
            at += metadata_bytes + body_bytes
        schema_agrees = schema_message is not None and head[len(FILE_START) :][: len(schema_message)] == schema_message
        if not (schema_agrees and sizes_agree and at == len(head)):
            raise ChecksumMismatch(
                f"the footer of stream {stream_id} is damaged: it names other messages than there are"
            )


class Foreign(_Contiguous):
    """A file with one CRC for all. It is proven when this is made."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents)
        view = contents.view
        for stream_id in contents.streams:
            self._stream(stream_id)
        self._crcs = [crc32(view[start:end]) for start, end in zip(self._start_of, self._end_of, strict=True)]
        # Last: what these CRCs were taken of is proven with the rest.
        _check_whole(contents)

    def check(self, index: int) -> None:
        """Check the messages of the bundle against the CRCs taken when the whole file was checked. Raises ChecksumMismatch."""
        for ref in range(self._ref_ends[index], self._ref_ends[index + 1]):
            if crc32(self._view[self._start_of[ref] : self._end_of[ref] or self._find(ref)]) != self._crcs[ref]:
                raise _damaged(index)

    def check_file(self) -> None:
        """Do nothing: the whole file was proven when this was made."""
