"""An independent reader of Quiver's files: `struct` and `zlib` only, written from FORMATS and the Arrow specification.

It shares no line with the package and checks every byte that has a fixed meaning, so that a mistake which our encoder and decoder
make alike does not go unnoticed. Slow and simple on purpose.

    parse_log(data)        -> Log          entries of a `quiver.wal`, `quiver.wal.<N>` or of a segment sealed in place
    parse_segment(data)    -> Segment      a `.qseg`, contiguous or sealed in place
    parse_progress(data)   -> Progress     a `quiver.sub.<id>`
    parse_cursor(data)     -> int          a `quiver.wal.cursor`

Anything that is not as it should be raises ParseError.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

Columns = dict[str, list[Any]]


class ParseError(Exception):
    """The bytes are not what FORMATS says."""


def check(condition: bool, complaint: str) -> None:
    if not condition:
        raise ParseError(complaint)


def unpack(fmt: str, data: bytes, at: int) -> tuple[Any, ...]:
    size = struct.calcsize("<" + fmt)
    check(0 <= at <= len(data) - size, f"{size} bytes at {at} of {len(data)}")
    return struct.unpack_from("<" + fmt, data, at)


def number(fmt: str, data: bytes, at: int) -> int:
    return int(unpack(fmt, data, at)[0])


def crc32c(data: bytes) -> int:
    """Castagnoli, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


# --- flatbuffers and Arrow IPC ------------------------------------------------------------------------------------------------


@dataclass
class Table:
    """A flatbuffer table at `at` of `data`."""

    data: bytes
    at: int

    def position(self, index: int) -> int | None:
        vtable = self.at - number("i", self.data, self.at)
        slot = 4 + 2 * index
        if slot >= number("H", self.data, vtable):
            return None
        offset = number("H", self.data, vtable + slot)
        return self.at + offset if offset else None

    def scalar(self, index: int, fmt: str, default: int = 0) -> int:
        at = self.position(index)
        return default if at is None else number(fmt, self.data, at)

    def target(self, index: int) -> int | None:
        at = self.position(index)
        return None if at is None else at + number("I", self.data, at)

    def table(self, index: int) -> Table:
        at = self.target(index)
        if at is None:
            raise ParseError(f"flatbuffer table lacks field {index}")
        return Table(self.data, at)

    def vector(self, index: int) -> tuple[int, int]:
        """Position of the first element, and how many there are."""
        at = self.target(index)
        return (0, 0) if at is None else (at + 4, number("I", self.data, at))

    def tables(self, index: int) -> list[Table]:
        first, count = self.vector(index)
        positions = [first + 4 * n for n in range(count)]
        return [Table(self.data, at + number("I", self.data, at)) for at in positions]

    def text(self, index: int) -> str:
        first, count = self.vector(index)
        return self.data[first : first + count].decode()


def root(flatbuffer: bytes) -> Table:
    return Table(flatbuffer, number("I", flatbuffer, 0))


@dataclass
class ArrowField:
    name: str
    nullable: bool
    type_id: int
    type: Table
    dictionary_id: int | None
    index_format: str
    children: list[ArrowField]


NULL, INT, FLOAT, BINARY, UTF8, BOOL, TIMESTAMP, LIST, STRUCT, FIXED_BINARY = 1, 2, 3, 4, 5, 6, 10, 12, 13, 15
INT_FORMATS = {
    (8, 1): "b",
    (8, 0): "B",
    (16, 1): "h",
    (16, 0): "H",
    (32, 1): "i",
    (32, 0): "I",
    (64, 1): "q",
    (64, 0): "Q",
}


def int_format(int_type: Table) -> str:
    return INT_FORMATS[int_type.scalar(0, "i"), int_type.scalar(1, "B")]


def arrow_field(table: Table) -> ArrowField:
    dictionary_id, index_format = None, ""
    if table.target(4) is not None:
        encoding = table.table(4)
        dictionary_id = encoding.scalar(0, "q")
        index_format = int_format(encoding.table(1)) if encoding.target(1) is not None else "i"
    return ArrowField(
        table.text(0),
        bool(table.scalar(1, "B")),
        table.scalar(2, "B"),
        table.table(3),
        dictionary_id,
        index_format,
        [arrow_field(child) for child in table.tables(5)],
    )


@dataclass
class ArrowMessage:
    at: int
    kind: int
    header: Table
    metadata_bytes: int
    body: bytes

    @property
    def end(self) -> int:
        return self.at + self.metadata_bytes + len(self.body)


SCHEMA, DICTIONARY_BATCH, RECORD_BATCH = 1, 2, 3


def arrow_message(data: bytes, at: int) -> ArrowMessage | None:
    """The encapsulated message at `at`; None for the end of the stream."""
    mark, length = unpack("II", data, at)
    check(mark == 0xFFFFFFFF, f"no Arrow message at {at}")
    if length == 0:
        return None
    flatbuffer = data[at + 8 : at + 8 + length]
    check(len(flatbuffer) == length and length % 8 == 0, f"Arrow metadata at {at} has {length} bytes")
    message = root(flatbuffer)
    check(message.scalar(0, "h") == 4, "Arrow metadata version V5")
    body_bytes = message.scalar(3, "q")
    body = data[at + 8 + length : at + 8 + length + body_bytes]
    check(len(body) == body_bytes and body_bytes % 8 == 0, f"Arrow body at {at} has {body_bytes} bytes")
    return ArrowMessage(at, message.scalar(1, "B"), message.table(2), 8 + length, body)


@dataclass
class Decoder:
    """Turns the buffers of one record batch into Python lists."""

    batch: Table
    body: bytes
    dictionaries: dict[int, list[Any]]
    node: int = 0
    buffer: int = 0

    def columns(self, fields: list[ArrowField]) -> Columns:
        check(self.batch.target(3) is None, "compressed Arrow bodies are not supported here")
        return {f.name: self.column(f) for f in fields}

    def next_buffer(self) -> bytes:
        first, count = self.batch.vector(2)
        check(self.buffer < count, "Arrow batch has too few buffers")
        offset, length = unpack("qq", self.batch.data, first + 16 * self.buffer)
        self.buffer += 1
        check(0 <= offset <= offset + length <= len(self.body), "Arrow buffer outside its body")
        return self.body[offset : offset + length]

    def next_node(self) -> tuple[int, int]:
        first, count = self.batch.vector(1)
        check(self.node < count, "Arrow batch has too few nodes")
        length, nulls = unpack("qq", self.batch.data, first + 16 * self.node)
        self.node += 1
        return length, nulls

    def column(self, f: ArrowField) -> list[Any]:
        length, nulls = self.next_node()
        if f.dictionary_id is not None:
            validity = self.next_buffer()
            indexes = fixed_width(f.index_format, self.next_buffer(), length)
            valid = bits(validity, length) if nulls else [True] * length
            values = self.dictionaries[f.dictionary_id]
            return [values[index] if ok else None for index, ok in zip(indexes, valid, strict=True)]
        if f.type_id == NULL:
            return [None] * length
        validity = self.next_buffer()
        values = self.values(f, length)
        valid = bits(validity, length) if nulls else [True] * length
        check(valid.count(False) == nulls, f"column {f.name} says {nulls} nulls")
        return [value if ok else None for value, ok in zip(values, valid, strict=True)]

    def values(self, f: ArrowField, length: int) -> list[Any]:
        if f.type_id == INT:
            return fixed_width(int_format(f.type), self.next_buffer(), length)
        if f.type_id == TIMESTAMP:
            return fixed_width("q", self.next_buffer(), length)
        if f.type_id == FLOAT:
            return fixed_width("?fd"[f.type.scalar(0, "h")], self.next_buffer(), length)
        if f.type_id == BOOL:
            return list(bits(self.next_buffer(), length))
        if f.type_id == FIXED_BINARY:
            width, data = f.type.scalar(0, "i"), self.next_buffer()
            return [data[width * n : width * (n + 1)] for n in range(length)]
        if f.type_id in (BINARY, UTF8):
            ends, data = fixed_width("i", self.next_buffer(), length + 1), self.next_buffer()
            pieces = [data[ends[n] : ends[n + 1]] for n in range(length)]
            return [piece.decode() for piece in pieces] if f.type_id == UTF8 else pieces
        if f.type_id == LIST:
            ends = fixed_width("i", self.next_buffer(), length + 1)
            items = self.column(f.children[0])
            return [items[ends[n] : ends[n + 1]] for n in range(length)]
        if f.type_id == STRUCT:
            members = {child.name: self.column(child) for child in f.children}
            return [{name: values[n] for name, values in members.items()} for n in range(length)]
        raise ParseError(f"Arrow type {f.type_id} is not known to this parser")


def fixed_width(fmt: str, data: bytes, length: int) -> list[Any]:
    check(len(data) >= length * struct.calcsize("<" + fmt), "Arrow buffer is too short")
    return list(struct.unpack_from(f"<{length}{fmt}", data))


def bits(data: bytes, length: int) -> list[bool]:
    check(8 * len(data) >= length, "Arrow bitmap is too short")
    return [bool(data[n // 8] >> n % 8 & 1) for n in range(length)]


def load_dictionary(message: ArrowMessage, fields: list[ArrowField], dictionaries: dict[int, list[Any]]) -> None:
    dictionary_id = message.header.scalar(0, "q")
    owner = find_dictionary_field(fields, dictionary_id)
    check(owner is not None, f"no field has dictionary {dictionary_id}")
    assert owner is not None
    plain = ArrowField(owner.name, True, owner.type_id, owner.type, None, "", owner.children)
    values = Decoder(message.header.table(1), message.body, dictionaries).column(plain)
    is_delta = message.header.scalar(2, "B")
    dictionaries[dictionary_id] = dictionaries[dictionary_id] + values if is_delta else values


def find_dictionary_field(fields: list[ArrowField], dictionary_id: int) -> ArrowField | None:
    for f in fields:
        found = f if f.dictionary_id == dictionary_id else find_dictionary_field(f.children, dictionary_id)
        if found is not None:
            return found
    return None


@dataclass
class Payload:
    """One Arrow IPC stream of one batch, decoded."""

    columns: Columns
    row_count: int
    schema_message: bytes
    batch_at: int
    end: int


def parse_stream(data: bytes) -> Payload:
    schema = arrow_message(data, 0)
    check(schema is not None and schema.kind == SCHEMA, "an Arrow stream starts with its schema")
    assert schema is not None
    fields = [arrow_field(table) for table in schema.header.tables(1)]
    dictionaries: dict[int, list[Any]] = {}
    message = arrow_message(data, schema.end)
    while message is not None and message.kind == DICTIONARY_BATCH:
        load_dictionary(message, fields, dictionaries)
        message = arrow_message(data, message.end)
    check(message is not None and message.kind == RECORD_BATCH, "an Arrow stream has one record batch")
    assert message is not None
    check(arrow_message(data, message.end) is None, "an Arrow stream ends behind its one batch")
    columns = Decoder(message.header, message.body, dictionaries).columns(fields)
    return Payload(columns, message.header.scalar(0, "q"), data[: schema.end], message.at, message.end + 8)


@dataclass
class ArrowFile:
    fields: list[ArrowField]
    batches: list[Columns]
    row_counts: list[int]
    batch_offsets: list[int]
    dictionary_offsets: list[int]


def parse_arrow_file(data: bytes) -> ArrowFile:
    """An Arrow IPC file by its footer, as every reader goes about it."""
    check(data[:8] == b"ARROW1\0\0" and data[-6:] == b"ARROW1", "an Arrow file starts and ends with its magic")
    length = number("i", data, len(data) - 10)
    footer = root(data[len(data) - 10 - length : len(data) - 10])
    check(footer.scalar(0, "h") == 4, "Arrow footer version V5")
    fields = [arrow_field(table) for table in footer.table(1).tables(1)]
    parsed = ArrowFile(fields, [], [], [], [])
    dictionaries: dict[int, list[Any]] = {}
    seen: set[int] = set()
    for message in file_blocks(data, footer, 2, DICTIONARY_BATCH):
        check(message.header.scalar(0, "q") not in seen or message.header.scalar(2, "B") == 1, "one dictionary per id")
        seen.add(message.header.scalar(0, "q"))
        load_dictionary(message, fields, dictionaries)
        parsed.dictionary_offsets.append(message.at)
    for message in file_blocks(data, footer, 3, RECORD_BATCH):
        parsed.batches.append(Decoder(message.header, message.body, dictionaries).columns(fields))
        parsed.row_counts.append(message.header.scalar(0, "q"))
        parsed.batch_offsets.append(message.at)
    return parsed


def file_blocks(data: bytes, footer: Table, index: int, kind: int) -> list[ArrowMessage]:
    first, count = footer.vector(index)
    messages: list[ArrowMessage] = []
    for n in range(count):
        offset, metadata_bytes, padding, body_bytes = unpack("qiiq", footer.data, first + 24 * n)
        check(offset % 8 == 0 and padding == 0, "Arrow blocks are multiples of 8")
        message = arrow_message(data, offset)
        check(message is not None and message.kind == kind, f"block {n} points at a message of kind {kind}")
        assert message is not None
        check((message.metadata_bytes, len(message.body)) == (metadata_bytes, body_bytes), "block sizes agree")
        messages.append(message)
    return messages


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
    """What is particular to files sealed in place, and to contiguous ones."""
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
