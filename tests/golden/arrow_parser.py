"""An independent parser of Arrow messages, streams and files, for `parser`. It shares no code with the product."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

Columns = dict[str, list[Any]]


class ParseError(Exception):
    """The bytes are not what the format allows."""


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
