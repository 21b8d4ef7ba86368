"""An independent reader of Quiver's files: `struct` and `zlib` only, written from the published layouts
(docs/formats.md) and the Arrow specification.

It shares no line with the package and checks every byte that has a fixed meaning, so that a mistake which our encoder and decoder
make alike does not go unnoticed. Slow and simple on purpose.

    parse_log(data)        -> Log          entries of a `quiver.wal`, `quiver.wal.<N>` or of a segment sealed in place
    parse_segment(data)    -> Segment      a `.qseg`, contiguous or sealed in place
    parse_progress(data)   -> Progress     a `quiver.sub.<id>`
    parse_cursor(data)     -> int          a `quiver.wal.cursor`

Anything that is not as it should be raises ParseError.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from tests.golden.arrow_parser import (
    ArrowFile,
    Columns,
    Payload,
    check,
    crc32c,
    number,
    parse_arrow_file,
    parse_stream,
    unpack,
)

# --- log -----------------------------------------------------------------------------------------------------------------------


@dataclass
class LogSlot:
    slot_id: int
    fingerprint: bytes
    row_count: int
    payload_at: int
    payload: Payload


@dataclass
class LogEntry:
    at: int
    end: int
    ingestion_ts_nanos: int
    sequence: int
    slots: dict[int, LogSlot]

    @property
    def bundle(self) -> dict[int, Columns]:
        return {slot_id: slot.payload.columns for slot_id, slot in self.slots.items()}


@dataclass
class Log:
    header_size: int
    config_hash: bytes
    position_start: int
    entries: list[LogEntry] = field(default_factory=list)
    identity: tuple[int, int, bytes] | None = None
    """What our own header says behind ARROW1: segment, first sequence, incarnation. None where it is zero."""
    end: int = 0
    """File offset behind the last entry."""
    ends_with: str = ""
    """`end of file`, `end mark` or `torn`."""

    @property
    def position_end(self) -> int:
        return self.position_start + self.end - self.header_size


def parse_log(data: bytes, *, aligned: bool = False) -> Log:
    """The header and all entries up to the end mark, the end of the file or a torn entry.

    Args:
        aligned: also demand the alignment that our own files have.
    """
    check(data[:10] == b"QUIVER\0WAL", "log magic")
    version, header_size = unpack("HH", data, 10)
    check(version == 1 and header_size >= 38, f"log version {version}, header of {header_size} bytes")
    log = Log(header_size, data[14:30], number("Q", data, 30), end=header_size)
    if aligned:
        check(header_size == 121 and data[38:72] == bytes(26) + b"ARROW1\0\0", "our log header: ARROW1 at 64")
        log.identity = log_identity(data)
    while not log.ends_with:
        entry = log_entry(data, log, aligned)
        if entry is not None:
            log.entries.append(entry)
            log.end = entry.end
    return log


def log_identity(data: bytes) -> tuple[int, int, bytes] | None:
    if not any(data[72:121]):
        return None
    segment_seq, first_sequence, incarnation, crc = unpack("QQ16sI", data, 72)
    check(crc == zlib.crc32(data[:104]) and not any(data[108:121]), "identity in our log header")
    return segment_seq, first_sequence, incarnation


def log_entry(data: bytes, log: Log, aligned: bool) -> LogEntry | None:
    at = log.end
    if len(data) - at < 4:
        log.ends_with = "end of file" if at == len(data) else "torn"
        return None
    length = number("I", data, at)
    if length == 0:
        log.ends_with = "end mark"
        return None
    check(length <= 256 << 20, f"entry of {length} bytes")
    body = data[at + 4 : at + 4 + length]
    if at + 8 + length > len(data) or zlib.crc32(body) != number("I", data, at + 4 + length):
        log.ends_with = "torn"
        return None
    kind, timestamp, sequence, bitmap = unpack("BqQQ", body, 0)
    check(kind == 0, f"entry type {kind}")
    check(not aligned or at % 64 == 57, f"entry at {at}: our entries start at 57 mod 64")
    slots = entry_slots(body, at + 4, aligned)
    check(sum(1 << slot_id for slot_id in slots) == bitmap, "slot ids and bitmap agree")
    return LogEntry(at, at + 8 + length, timestamp, sequence, slots)


def entry_slots(body: bytes, body_at: int, aligned: bool) -> dict[int, LogSlot]:
    slots: dict[int, LogSlot] = {}
    at = 25
    while at < len(body):
        slot_id, fingerprint, row_count, payload_len = unpack("H32sII", body, at)
        check(slot_id < 64 and slot_id not in slots, f"slot {slot_id}")
        at += 42
        check(at + payload_len <= len(body), "payload inside its entry")
        payload = parse_stream(body[at : at + payload_len])
        check(payload.row_count == row_count, f"slot {slot_id} has {payload.row_count} rows, its head says {row_count}")
        if aligned:
            check((body_at + at) % 64 == 0, f"payload at {body_at + at}: ours start at multiples of 64")
            check(not slots or max(slots) < slot_id, "our slots ascend")
            check(not any(body[at + payload.end : at + payload_len]), "padding behind a payload is zero")
            wanted = 53 if at + payload_len == len(body) else 22
            check(payload_len % 64 == wanted, f"payload of {payload_len} bytes: expected {wanted} mod 64")
        slots[slot_id] = LogSlot(slot_id, fingerprint, row_count, body_at + at, payload)
        at += payload_len
    check(at == len(body), "entry ends with its last slot")
    return slots


# --- segment ---------------------------------------------------------------------------------------------------------------------


@dataclass
class SegmentStream:
    stream_id: int
    slot_id: int
    fingerprint: bytes
    byte_offset: int
    byte_length: int
    row_count: int
    chunk_count: int
    file: ArrowFile


@dataclass
class Extension:
    wal_position_start: int
    wal_position_end: int
    first_sequence: int
    last_sequence: int
    first_ingestion_ts_nanos: int
    last_ingestion_ts_nanos: int
    row_count: int
    incarnation: bytes


@dataclass
class Segment:
    streams: dict[int, SegmentStream]
    manifest: Columns
    extension: Extension | None
    in_place: bool
    """Whether the file is a former log; then `log` holds its entries."""
    log: Log | None
    directory_offset: int

    @property
    def bundles(self) -> list[dict[int, Columns]]:
        """Each bundle as slot id -> column name -> values."""
        return [
            {ref["slot_id"]: self.streams[ref["stream_id"]].file.batches[ref["chunk_index"]] for ref in refs}
            for refs in self.manifest["slot_refs"]
        ]


DIRECTORY_COLUMNS = [
    "stream_id",
    "slot_id",
    "schema_fingerprint",
    "byte_offset",
    "byte_length",
    "row_count",
    "chunk_count",
]


def parse_segment(data: bytes) -> Segment:
    """The whole file: checksum, footer, directory, manifest, every stream, every cross-reference."""
    check(len(data) >= 16, "a segment has a trailer")
    footer_size, magic, crc = unpack("I8sI", data, len(data) - 16)
    check(magic == b"QUIVER\0S", f"segment magic {magic!r}")
    check(zlib.crc32(data[:-4]) == crc, "segment checksum")
    footer_at = len(data) - 16 - footer_size
    version, stream_count, bundle_count, *regions = unpack("HIIQIQI", data, footer_at)
    check(version == 1 and footer_size >= 34, f"segment version {version}")
    directory_offset, directory_length, manifest_offset, manifest_length = regions
    check(directory_offset + directory_length == manifest_offset, "the manifest follows the directory")
    check(manifest_offset + manifest_length == footer_at, "the footer follows the manifest")
    directory = parse_arrow_file(data[directory_offset:manifest_offset])
    manifest = parse_arrow_file(data[manifest_offset:footer_at])
    streams = segment_streams(data, directory, directory_offset)
    check(len(streams) == stream_count, f"{len(streams)} streams, the footer says {stream_count}")
    check_manifest(manifest, streams, bundle_count)
    in_place = data[:10] == b"QUIVER\0WAL"
    segment = Segment(
        streams,
        manifest.batches[0],
        segment_extension(data, footer_at + 34, footer_size - 34),
        in_place,
        parse_log(data, aligned=True) if in_place else None,
        directory_offset,
    )
    check_layout(data, segment)
    return segment


def segment_extension(data: bytes, at: int, size: int) -> Extension | None:
    if size == 0:
        return None
    check(size == 74 and number("H", data, at) == 74, f"footer extension of {size} bytes")
    return Extension(*unpack("QQQQqqQ16s", data, at + 2))


def segment_streams(data: bytes, directory: ArrowFile, end: int) -> dict[int, SegmentStream]:
    check([f.name for f in directory.fields] == DIRECTORY_COLUMNS, "directory columns")
    check(not any(f.nullable for f in directory.fields), "directory columns are non-null")
    check(len(directory.batches) == 1, "the directory has one batch")
    streams: dict[int, SegmentStream] = {}
    for row in zip(*(directory.batches[0][name] for name in DIRECTORY_COLUMNS), strict=True):
        stream_id, slot_id, fingerprint, offset, length, row_count, chunk_count = row
        check(stream_id == len(streams), "streams are ordered by id")
        check(offset % 64 == 0 and offset + length <= end, f"stream {stream_id} at {offset} with {length} bytes")
        arrow_file = parse_arrow_file(data[offset : offset + length])
        check(len(arrow_file.batches) == chunk_count, f"stream {stream_id} has {chunk_count} chunks")
        check(sum(arrow_file.row_counts) == row_count, f"stream {stream_id} has {row_count} rows")
        streams[stream_id] = SegmentStream(
            stream_id, slot_id, fingerprint, offset, length, row_count, chunk_count, arrow_file
        )
    return streams


def check_manifest(manifest: ArrowFile, streams: dict[int, SegmentStream], bundle_count: int) -> None:
    check(len(manifest.batches) == 1, "the manifest has one batch")
    columns = manifest.batches[0]
    nullable = {f.name: f.nullable for f in manifest.fields}
    check(columns["bundle_index"] == list(range(bundle_count)), "bundle indexes are 0, 1, 2, ...")
    check(not nullable["bundle_index"] and not nullable["slot_refs"], "bundle_index and slot_refs are non-null")
    check("item_count" not in columns or nullable["item_count"] or None not in columns["item_count"], "item_count")
    refs_field = next(f for f in manifest.fields if f.name == "slot_refs")
    item = refs_field.children[0]
    check((item.name, item.nullable) == ("item", True), "the list item is nullable and named item")
    check(
        [(c.name, c.nullable) for c in item.children] == [(n, False) for n in ("slot_id", "stream_id", "chunk_index")],
        "refs",
    )
    used: set[tuple[int, int]] = set()
    for refs in columns["slot_refs"]:
        check(len({ref["slot_id"] for ref in refs}) == len(refs) <= 64, "each slot once")
        for ref in refs:
            stream = streams[ref["stream_id"]]
            check(ref["slot_id"] == stream.slot_id and ref["chunk_index"] < stream.chunk_count, "references resolve")
            used.add((ref["stream_id"], ref["chunk_index"]))
    check(len(used) == sum(stream.chunk_count for stream in streams.values()), "every chunk belongs to a bundle")


def check_layout(data: bytes, segment: Segment) -> None:
    """Check the layout rules of one kind of segment: contiguous, or sealed in place."""
    streams = list(segment.streams.values())
    if segment.log is None:
        end = 0
        for stream in streams:
            check(
                not any(data[end : stream.byte_offset]) and 0 <= stream.byte_offset - end < 64,
                "padding before a stream",
            )
            end = stream.byte_offset + stream.byte_length
        check(end == segment.directory_offset, "the directory follows the last stream")
        return
    check(segment.log.ends_with == "end mark", "an end mark follows the entries")
    end = segment.log.end + 4
    for stream in streams:
        check(stream.byte_offset == 64, "streams of a log start at its ARROW1")
        footer_length = number("i", data, 64 + stream.byte_length - 10)
        footer_at = 64 + stream.byte_length - 10 - footer_length
        check(not any(data[end:footer_at]) and 0 <= footer_at - end < 64, "padding before an Arrow footer")
        end = 64 + stream.byte_length
    check(end == segment.directory_offset, "the directory follows the last Arrow footer")
    check_entries(segment)


def check_entries(segment: Segment) -> None:
    """The log and the segment are two views of the same bundles, and blocks point into payloads."""
    assert segment.log is not None
    entries = segment.log.entries
    check(len(entries) == len(segment.bundles), "one bundle an entry")
    check(segment.manifest["sequence"] == [entry.sequence for entry in entries], "sequences")
    check(segment.manifest["ingestion_ts_nanos"] == [entry.ingestion_ts_nanos for entry in entries], "ingestion times")
    for entry, bundle, refs in zip(entries, segment.bundles, segment.manifest["slot_refs"], strict=True):
        check(entry.bundle == bundle, f"entry {entry.sequence} equals its bundle")
        for ref in refs:
            stream, slot = segment.streams[ref["stream_id"]], entry.slots[ref["slot_id"]]
            at = 64 + stream.file.batch_offsets[ref["chunk_index"]]
            check(at == slot.payload_at + slot.payload.batch_at, "blocks point at the batch in the payload")
            check(stream.fingerprint == slot.fingerprint, "fingerprints")
    extension = segment.extension
    check(extension is not None, "our footers have an extension")
    assert extension is not None
    check(extension.wal_position_start == segment.log.position_start, "the log position of the first entry")
    check(extension.wal_position_end == segment.log.position_end, "the log position behind the last entry")
    if not entries:
        return
    sequences = (extension.first_sequence, extension.last_sequence)
    check(sequences == (entries[0].sequence, entries[-1].sequence), "first and last sequence")
    times = [entry.ingestion_ts_nanos for entry in entries]
    check(extension.first_ingestion_ts_nanos == min(times), "the earliest ingestion time")
    check(extension.last_ingestion_ts_nanos == max(times), "the latest ingestion time")
    if segment.log.identity is not None:
        check(segment.log.identity[1:] == (entries[0].sequence, extension.incarnation), "log header and footer agree")


# --- progress and cursor -----------------------------------------------------------------------------------------------------------


@dataclass
class Progress:
    flags: int
    oldest_incomplete_seg: int
    resolved: dict[int, list[bool]]
    """Segment -> for each of its bundles whether it is resolved."""
    checksum: str
    """`CRC-32C` (ours) or `CRC-32` (Rust)."""


def parse_progress(data: bytes) -> Progress:
    check(data[:8] == b"QUIVSUB\0", "progress magic")
    version, header_size, flags, oldest, entry_count = unpack("HHHQI", data, 8)
    check(version == 1 and header_size == 32 and not any(data[26:32]), "progress header")
    stored = number("I", data, len(data) - 4)
    kinds = {crc32c(data[:-4]): "CRC-32C", zlib.crc32(data[:-4]): "CRC-32"}
    check(stored in kinds, "progress checksum")
    progress = Progress(flags, oldest, {}, kinds[stored])
    at = header_size
    for _ in range(entry_count):
        segment_seq, bundle_count, words = unpack("QIH", data, at)
        check(words == (bundle_count + 63) // 64, "bitmap words")
        bitmap = unpack(f"{words}Q", data, at + 14)
        progress.resolved[segment_seq] = [bool(bitmap[n // 64] >> n % 64 & 1) for n in range(bundle_count)]
        at += 14 + 8 * words
    check(at == len(data) - 4, "nothing behind the last entry")
    return progress


def parse_cursor(data: bytes) -> int:
    check(len(data) == 24 and data[:8] == b"QUIVER\0T", "cursor magic")
    version, size, position, crc = unpack("HHQI", data, 8)
    check((version, size) == (1, 24) and crc == zlib.crc32(data[:20]), "cursor")
    return int(position)
