"""Rewriting a sealed segment into contiguous streams by moving its encoded messages. Pure: reads through a function, gives parts.

Source: docs/formats.md section 4, "Compacted segments", and section 3.4, "Checksums of bundles in compacted segments".

Schema and dictionaries once a stream instead of once a bundle; streams that differ only in dictionaries become one (`unify`). Bundle
indexes, item counts, sequences, times, lost bundles, and what a reader gets of each bundle stay as they were.

A segment sealed in place has a checksum in every entry, a contiguous one has none but that of the whole file. So that damage goes
on costing only the bundles that it touches, the manifest gets a column more, nullable and unknown to other readers:

    bundle_crc32  uint32    CRC-32 of: u64 sequence | i64 ingestion_ts_nanos | i64 item_count (-1 unknown) | u64 byte_count, then for
                            each slot reference: u32 slot_id | u32 CRC-32 of the stream's bytes before its first batch (magic,
                            schema, dictionaries) and of the bundle's batch message

Memory: about 2 MiB at a time (or the largest message), the dictionaries of one schema, 30 bytes a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from quiver_actors.base.checksum import crc32
from quiver_actors.errors import InvalidFormat
from quiver_actors.store.segment.arrow_file import BLOCK, FILE_START, encode_footer
from quiver_actors.store.segment.arrow_ipc import END_OF_STREAM
from quiver_actors.store.segment.blocks import BLOCKS
from quiver_actors.store.segment.codec import (
    SegmentFooter,
    StreamInfo,
    encode_directory,
    encode_footer_and_trailer,
    encode_manifest,
)
from quiver_actors.store.segment.layout import (
    CRC,
    END_MARK,
    IN_PLACE_STREAM_OFFSET,
    LOG_HEADER_BYTES,
    STREAM_ALIGNMENT,
    Part,
)
from quiver_actors.store.segment.manifest import ManifestColumns
from quiver_actors.store.segment.outline import Outline, Read, read_messages
from quiver_actors.store.segment.placement import StreamSchema
from quiver_actors.store.segment.unify import Member, remapped_messages, unify

PIECE_BYTES = 32 << 10
"""Smaller messages are brought together up to about this size; a larger one goes to the file from where it was read."""
PART_BYTES = 1 << 20
"""How many bytes are written at once. With fewer the kernel takes smaller pages for a new file, and twice as long."""
SMALL_ENTRY_BYTES = 4 << 10
OVERHEAD_SHARE_MIN = 0.25
SAVING_BYTES_MIN = 64 << 10
"""A rewriting costs two syncs and two readings of the file: it has to bring something."""
EXTRA_STREAMS_MIN = 8
"""Streams beyond one per slot and fingerprint from which on bringing them together pays."""

# What an entry carries beside its message and a new stream does not: entry head and CRC; slot head, padding on average, end of stream.
_ENTRY_OVERHEAD_BYTES = 33
_SLOT_OVERHEAD_BYTES = 42 + 32 + 8
_FOOTER_OVERHEAD_BYTES = 64
"""Size of an Arrow footer without its blocks and its schema: its own fields, and the average padding."""
BUNDLE_FIELDS = np.dtype([("sequence", "<u8"), ("time", "<i8"), ("item_count", "<i8"), ("byte_count", "<u8")])
_REF_FIELDS = np.dtype([("slot_id", "<u4"), ("crc", "<u4")])


class Verdict(NamedTuple):
    """Whether a segment is to be compacted, and why."""

    pays: bool
    reason: str
    saving_bytes: int = 0
    """How many bytes would go at least; dictionaries that were sent again and again come on top."""


def judge(footer: SegmentFooter, streams: Sequence[StreamInfo]) -> Verdict:
    """Decide from the end of the file alone. A segment is compacted once: contiguous ones are left as they are."""
    extension = footer.extension
    if extension is None or not streams:
        return Verdict(False, "written by another implementation" if streams else "empty")
    if any(stream.byte_offset != IN_PLACE_STREAM_OFFSET for stream in streams):
        return Verdict(False, "contiguous already")
    entries_bytes = extension.wal_position_end - extension.wal_position_start
    saving = _saving_bytes(footer, streams, entries_bytes)
    extra = len(streams) - len({(stream.slot_id, stream.schema_fingerprint) for stream in streams})
    if extra >= EXTRA_STREAMS_MIN:
        return Verdict(True, f"{extra} streams more than schemas", saving)
    if entries_bytes >= SMALL_ENTRY_BYTES * footer.bundle_count:
        return Verdict(False, f"entries of {entries_bytes // max(1, footer.bundle_count)} bytes on average", saving)
    if saving < max(SAVING_BYTES_MIN, OVERHEAD_SHARE_MIN * entries_bytes):
        return Verdict(False, f"only {saving} bytes of {entries_bytes} would go", saving)
    return Verdict(True, f"{saving} bytes of {entries_bytes} are schemas and padding", saving)


def _saving_bytes(footer: SegmentFooter, streams: Sequence[StreamInfo], entries_bytes: int) -> int:
    """About how many bytes are repeated. The Arrow footers stand one behind the other, so their lengths tell those of the schemas."""
    chunks = np.array([stream.chunk_count for stream in streams])
    ends = np.array([stream.byte_offset + stream.byte_length for stream in streams])
    begins = np.array([LOG_HEADER_BYTES + entries_bytes + len(END_MARK), *ends[:-1].tolist()])
    schemas = np.maximum(0, ends - begins - BLOCK.size * chunks - _FOOTER_OVERHEAD_BYTES)
    repeated = int((schemas * np.maximum(0, chunks - 1)).sum())
    overhead = footer.bundle_count * _ENTRY_OVERHEAD_BYTES + int(chunks.sum()) * _SLOT_OVERHEAD_BYTES
    return min(entries_bytes, repeated + overhead)


# --- the new file --------------------------------------------------------------------------------------------------------


class NewStream(NamedTuple):
    """One stream of the new file: the batches of its members, one member behind the other."""

    schema: StreamSchema
    row_count: int
    dictionaries: tuple[bytes, ...] | None
    """Whole dictionary messages; None: the stream has those of its one member."""
    members: tuple[Member, ...]


class Rewriting:
    """One contiguous file in the making.

    Args:
        outline: the segment as it is.
        read: reads it; what it gives must have been checked before, or damage gets a new, valid checksum.
    """

    def __init__(self, outline: Outline, read: Read) -> None:
        self._old = outline
        self._read = read
        self._streams = plan_streams(outline, read)
        self._offset = 0
        self._crc = 0

    def parts(self) -> Iterator[list[Part]]:
        """The bytes of the file: one part behind the other, each to be written in one call. Once only.

        Raises:
            FormatError: a message is not where it should be, or cannot be joined with others: leave the segment as it is.
        """
        part: list[Part] = []
        size_bytes = 0
        for piece in self._pieces():
            part.append(piece)
            size_bytes += len(piece)
            if size_bytes >= PART_BYTES:
                yield part
                part, size_bytes = [], 0
        yield part

    def _pieces(self) -> Iterator[Part]:
        infos: list[StreamInfo] = []
        checksums: dict[int, list[int]] = {}
        for stream_id, stream in enumerate(self._streams):
            yield self._counted(bytes(-self._offset % STREAM_ALIGNMENT))
            start = self._offset
            batch_checksums: list[int] = []
            for part in self._stream_parts(stream, batch_checksums):
                yield self._counted(part)
            slot_id, fingerprint, _ = stream.schema
            counts = (stream.row_count, len(batch_checksums))
            infos.append(StreamInfo(stream_id, slot_id, fingerprint, start, self._offset - start, *counts))
            checksums[stream_id] = batch_checksums
        yield self._counted(self._encode_end(infos, checksums))
        yield CRC.pack(self._crc)

    def _counted(self, part: Part) -> Part:
        self._offset += len(part)
        self._crc = crc32(part, self._crc)
        return part

    def _stream_parts(self, stream: NewStream, checksums: list[int]) -> Iterator[Part]:
        dictionaries = self._dictionaries(stream)
        head = b"".join((FILE_START, stream.schema.message, *dictionaries))
        head_crc = crc32(head)
        yield head
        pending: list[bytes | memoryview] = []
        pending_bytes = 0
        for message in self._messages(stream):
            checksums.append(crc32(message, head_crc))
            pending.append(message)
            pending_bytes += len(message)
            if pending_bytes >= PIECE_BYTES:
                yield message if len(pending) == 1 else b"".join(pending)
                pending, pending_bytes = [], 0
        yield b"".join((*pending, END_OF_STREAM, *self._encode_footer(stream, dictionaries)))

    def _dictionaries(self, stream: NewStream) -> list[bytes]:
        if stream.dictionaries is not None:
            return list(stream.dictionaries)
        spans = self._old.streams[stream.members[0].stream].dictionaries
        return [bytes(message) for message in read_messages(self._read, spans)]

    def _messages(self, stream: NewStream) -> Iterator[bytes | memoryview]:
        for member in stream.members:
            old = self._old.streams[member.stream]
            if any(mapping is not None for mapping in member.mappings):
                yield from remapped_messages(old, member.mappings, self._read)
            else:
                yield from read_messages(self._read, old.batches)

    def _encode_footer(self, stream: NewStream, dictionaries: Sequence[bytes]) -> list[Part]:
        start = len(FILE_START) + len(stream.schema.message)
        head_bytes = start + sum(map(len, dictionaries))
        metadata = [8 + int.from_bytes(message[4:8], "little") for message in dictionaries]
        sizes = [(first, len(message) - first) for first, message in zip(metadata, dictionaries, strict=True)]
        batches = np.concatenate([self._old.streams[member.stream].batches[:, 1:] for member in stream.members])
        dictionary_blocks = _blocks(np.array(sizes, np.int64).reshape(-1, 2), start)
        return encode_footer(stream.schema.message, dictionary_blocks, _blocks(batches, head_bytes))

    def _encode_end(self, infos: list[StreamInfo], checksums: dict[int, list[int]]) -> bytes:
        """Directory, manifest, footer, and trailer without its CRC."""
        refs = self._new_refs()
        columns = self._old.columns._replace(refs=refs)
        flat = np.array([crc for stream_id in range(len(infos)) for crc in checksums[stream_id]], np.uint32)
        starts = np.cumsum([0, *(info.chunk_count for info in infos)])
        columns = columns._replace(bundle_crc32=bundle_checksums(columns, flat[starts[refs[:, 1]] + refs[:, 2]]))
        directory, manifest = encode_directory(infos), encode_manifest(columns)
        footer = SegmentFooter(
            stream_count=len(infos),
            bundle_count=self._old.footer.bundle_count,
            directory_offset=self._offset,
            directory_length=len(directory),
            manifest_offset=self._offset + len(directory),
            manifest_length=len(manifest),
            extension=self._old.extension,
            crc32=0,
        )
        return b"".join((directory, manifest, encode_footer_and_trailer(footer)))

    def _new_refs(self) -> npt.NDArray[np.uint32]:
        new_ids = np.zeros(len(self._old.streams), np.uint32)
        first_chunks = np.zeros(len(self._old.streams), np.uint32)
        for stream_id, stream in enumerate(self._streams):
            chunks = 0
            for member in stream.members:
                new_ids[member.stream], first_chunks[member.stream] = stream_id, chunks
                chunks += len(self._old.streams[member.stream].batches)
        refs = self._old.columns.refs.copy()
        refs[:, 2] += first_chunks[refs[:, 1]]
        refs[:, 1] = new_ids[refs[:, 1]]
        return refs


def plan_streams(outline: Outline, read: Read) -> list[NewStream]:
    """The streams of the new file, in the order of their first members."""
    groups: dict[StreamSchema, list[int]] = {}
    for index, stream in enumerate(outline.streams):
        groups.setdefault(stream.schema, []).append(index)
    planned: list[NewStream] = []
    for group in groups.values():
        unions = unify(outline.streams, group, read)
        united = {member.stream for union in unions for member in union.members}
        planned += [_new_stream(outline, union.dictionaries, union.members) for union in unions]
        for index in (index for index in group if index not in united):
            planned.append(_new_stream(outline, None, (Member(index, ()),)))
    return sorted(planned, key=lambda stream: stream.members[0].stream)


def _new_stream(outline: Outline, dictionaries: tuple[bytes, ...] | None, members: tuple[Member, ...]) -> NewStream:
    streams = [outline.streams[member.stream] for member in members]
    return NewStream(streams[0].schema, sum(stream.row_count for stream in streams), dictionaries, members)


def _blocks(sizes: npt.NDArray[np.int64], start: int) -> bytes:
    """Packed `BLOCK`s of messages (metadata bytes, body bytes) that stand one behind the other from `start` on."""
    blocks = np.zeros(len(sizes), BLOCKS)
    lengths = sizes.sum(axis=1)
    blocks["offset"] = start + np.cumsum(lengths) - lengths
    blocks["metadata_bytes"], blocks["body_bytes"] = sizes[:, 0], sizes[:, 1]
    return blocks.tobytes()


# --- checksums of bundles ------------------------------------------------------------------------------------------------


def bundle_rows(columns: ManifestColumns) -> bytes:
    """What `bundle_crc32` begins with, `BUNDLE_FIELDS` for each bundle."""
    fields = np.zeros(len(columns.sequence), BUNDLE_FIELDS)
    fields["sequence"], fields["time"] = columns.sequence, columns.ingestion_ts_nanos
    fields["item_count"], fields["byte_count"] = columns.item_count, columns.byte_count
    return fields.tobytes()


def bundle_checksums(columns: ManifestColumns, ref_checksums: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The column `bundle_crc32`, from the checksums of all slot references."""
    refs = np.zeros(len(columns.refs), _REF_FIELDS)
    refs["slot_id"], refs["crc"] = columns.refs[:, 0], ref_checksums
    heads, tails = memoryview(bundle_rows(columns)), memoryview(refs.tobytes())
    size, ref_size = BUNDLE_FIELDS.itemsize, _REF_FIELDS.itemsize
    ends = np.cumsum([0, *columns.slot_counts.tolist()]).tolist()
    return np.array(
        [
            crc32(tails[ends[i] * ref_size : ends[i + 1] * ref_size], crc32(heads[i * size : (i + 1) * size]))
            for i in range(len(columns.sequence))
        ],
        np.uint32,
    )


def check_rewriting(old: Outline, new: Outline) -> None:
    """Compare the manifests of a segment and of its rewriting, and the sizes of all messages.

    Raises:
        InvalidFormat: they differ in something that must not change.
    """
    kept = [name for name in ManifestColumns._fields if name not in ("refs", "bundle_crc32")]
    differing = [name for name in kept if not np.array_equal(getattr(old.columns, name), getattr(new.columns, name))]
    if (
        differing
        or old.extension != new.extension
        or not np.array_equal(old.columns.refs[:, 0], new.columns.refs[:, 0])
    ):
        raise InvalidFormat(f"the rewritten segment differs in {differing or 'its footer'}")
    pairs = np.unique(old.columns.refs[:, 1].astype(np.uint64) << 32 | new.columns.refs[:, 1]).tolist()
    same_schemas = all(old.streams[pair >> 32].schema == new.streams[pair & 0xFFFFFFFF].schema for pair in pairs)
    if not same_schemas or not np.array_equal(_sizes_of_references(old), _sizes_of_references(new)):
        raise InvalidFormat("the rewritten segment refers to other messages")


def _sizes_of_references(outline: Outline) -> npt.NDArray[np.int64]:
    """Metadata and body bytes of the batch that each slot reference names."""
    sizes = np.concatenate([np.empty((0, 2), np.int64), *(stream.batches[:, 1:] for stream in outline.streams)])
    starts = np.cumsum([0, *(len(stream.batches) for stream in outline.streams)])
    found: npt.NDArray[np.int64] = sizes[starts[outline.columns.refs[:, 1]] + outline.columns.refs[:, 2]]
    return found
