"""Another writer of version 1 directories, as the Rust implementation behaves: `struct`, `zlib` and pyarrow only, no code of the product.

It opens a directory as it is: begins `quiver.wal` at position 0 where there is none, cuts the active log behind its last whole entry, goes
on behind the sequence of the last entry that it sees, numbers segments on from the highest file name (0 where there is none), and replays
the logs from the cursor on, up to the first bytes that are no entry. It appends without alignment, slots in descriptor order. It writes
segments under their final names, contiguous and without a footer extension, then the cursor, and removes rotated logs before the cursor.
It reads no file of ours but logs and segments. A crash is to stop calling it.

Works on anything that has the calls of `store.disk.protocol.Disk`: a simulated disk or a real directory.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Bundle = dict[int, pa.RecordBatch]

WAL_HEADER = struct.Struct("<10sHH16sQ")
ENTRY_HEADER = struct.Struct("<BqQQ")
SLOT_HEADER = struct.Struct("<H32sII")
CURSOR = struct.Struct("<8sHHQ")
FOOTER = struct.Struct("<HIIQIQI")
CONFIG_HASH = b"QUIVER_SEGCFG\0\0\0"
DIRECTORY_SCHEMA = pa.schema(
    [
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("schema_fingerprint", pa.binary(32), nullable=False),
        pa.field("byte_offset", pa.uint64(), nullable=False),
        pa.field("byte_length", pa.uint64(), nullable=False),
        pa.field("row_count", pa.uint64(), nullable=False),
        pa.field("chunk_count", pa.uint32(), nullable=False),
    ]
)
_REF = pa.struct(
    [pa.field(name, kind, nullable=False) for name, kind in (("slot_id", pa.uint16()), ("stream_id", pa.uint32()))]
    + [pa.field("chunk_index", pa.uint32(), nullable=False)]
)
MANIFEST_SCHEMA = pa.schema(
    [
        pa.field("bundle_index", pa.uint32(), nullable=False),
        pa.field("slot_refs", pa.list_(pa.field("item", _REF)), nullable=False),
    ]
)


class Refused(Exception):
    """The other writer does not open this directory."""


@dataclass(frozen=True)
class Entry:
    """One log entry as it was read or appended; `position_end` is the log position behind it."""

    sequence: int
    bundle: Bundle
    position_end: int


class OtherWriter:
    """One run of the other program on one engine's directory."""

    def __init__(self, disk: Any, directory: str) -> None:
        """Open the directory: cut the active log, find the numbers to go on with, replay."""
        self.disk = disk
        self.root = directory
        self.wal, self.segments = f"{directory}/wal", f"{directory}/segments"
        self.open_bundles: list[Entry] = []
        """Entries that the next `seal` puts into a segment."""
        self.sealed: dict[int, list[Entry]] = {}
        for path in (self.wal, self.segments):
            disk.make_directory(path)
        self._open_active()
        self.next_segment = 1 + max((int(name[:-5]) for name in self._names(self.segments, ".qseg")), default=-1)
        self._replay()

    # --- what it does -------------------------------------------------------------------------------------------------------

    def append(self, bundle: Bundle, *, sync: bool = True) -> Entry:
        """Log a bundle; slots in descending order, as a descriptor may have them."""
        body = ENTRY_HEADER.pack(0, 1_700_000_000_000_000_000, self.next_sequence, sum(1 << slot for slot in bundle))
        for slot in sorted(bundle, reverse=True):
            payload = _stream(bundle[slot])
            body += SLOT_HEADER.pack(slot, bytes([slot]) * 32, bundle[slot].num_rows, len(payload)) + payload
        data = len(body).to_bytes(4, "little") + body + zlib.crc32(body).to_bytes(4, "little")
        file = self.disk.open_write(f"{self.wal}/quiver.wal")
        file.write([data], self.end)
        if sync:
            file.fdatasync()
        file.close()
        self.end += len(data)
        entry = Entry(self.next_sequence, bundle, self._position(self.end))
        self.next_sequence += 1
        self.open_bundles.append(entry)
        return entry

    def seal(self) -> int | None:
        """Write the open bundles as a segment under its final name, then move the cursor. Returns its number."""
        if not self.open_bundles:
            return None
        number, self.next_segment = self.next_segment, self.next_segment + 1
        self._put(f"{self.segments}/{number:016}.qseg", segment_bytes([entry.bundle for entry in self.open_bundles]))
        self.sealed[number] = self.open_bundles
        position, self.open_bundles = self.open_bundles[-1].position_end, []
        self._write_cursor(position)
        self._purge(position)
        return number

    def rotate(self) -> None:
        """Sync the active log, give it a number, begin the next one behind it."""
        active = f"{self.wal}/quiver.wal"
        file = self.disk.open_write(active)
        file.fdatasync()
        file.close()
        number = 1 + max(map(_rotation, self._rotated()), default=0)
        self.disk.rename(active, f"{self.wal}/quiver.wal.{number}")
        self.disk.sync_directory(self.wal)
        self._begin(self._position(self.end))

    # --- opening --------------------------------------------------------------------------------------------------------------

    def _open_active(self) -> None:
        path = f"{self.wal}/quiver.wal"
        if not self.disk.exists(path) or not self._read(path):
            self._begin(0)
            found: list[tuple[int, int]] = []
        else:
            data = self._read(path)
            self.header_size, self.position_start = log_header(data)
            found = entries_of(data, self.header_size)[0]
            self.end = found[-1][1] if found else self.header_size
            if self.end < len(data):
                file = self.disk.open_write(path)
                file.truncate(self.end)
                file.fsync()
                file.close()
        last = sequence_of(self._read(path), found[-1][0]) if found else self._last_rotated_sequence()
        self.next_sequence = last + 1

    def _last_rotated_sequence(self) -> int:
        for name in sorted(self._rotated(), key=_rotation, reverse=True)[:1]:
            data = self._read(f"{self.wal}/{name}")
            found, _ = entries_of(data, log_header(data)[0])
            return sequence_of(data, found[-1][0]) if found else -1
        return -1

    def _begin(self, position: int) -> None:
        self.header_size, self.position_start, self.end = WAL_HEADER.size, position, WAL_HEADER.size
        file = self.disk.create(f"{self.wal}/quiver.wal")
        file.write([WAL_HEADER.pack(b"QUIVER\0WAL", 1, WAL_HEADER.size, CONFIG_HASH, position)], 0)
        file.fsync()
        file.close()
        self.disk.sync_directory(self.wal)

    def _replay(self) -> None:
        """Entries from the cursor on, file by file in the order of their positions; the first bytes that are no entry end all of it."""
        cursor = self._read_cursor()
        logs = [(f"{self.wal}/{name}", self._read(f"{self.wal}/{name}")) for name in [*self._rotated(), "quiver.wal"]]
        for _, data in sorted(logs, key=lambda log: log_header(log[1])[1]):
            header_size, start = log_header(data)
            found, is_clean = entries_of(data, header_size)
            for at, end in found:
                position_end = start + end - header_size
                if position_end > cursor:
                    self.open_bundles.append(
                        Entry(sequence_of(data, at), bundle_of(data[at + 4 : end - 4]), position_end)
                    )
            if not is_clean:
                return

    # --- small things -----------------------------------------------------------------------------------------------------------

    def _position(self, offset: int) -> int:
        return self.position_start + offset - self.header_size

    def _names(self, directory: str, suffix: str) -> list[str]:
        return [name for name in self.disk.list_directory(directory) if name.endswith(suffix)]

    def _rotated(self) -> list[str]:
        names = self.disk.list_directory(self.wal)
        return [name for name in names if name.startswith("quiver.wal.") and name[11:].isdigit()]

    def _read(self, path: str) -> bytes:
        file = self.disk.open_read(path)
        try:
            return bytes(file.read(file.size(), 0))
        finally:
            file.close()

    def _put(self, path: str, content: bytes) -> None:
        file = self.disk.create(path)
        file.write([content], 0)
        file.fsync()
        file.close()
        self.disk.sync_directory(path.rpartition("/")[0])

    def _read_cursor(self) -> int:
        path = f"{self.wal}/quiver.wal.cursor"
        if not self.disk.exists(path):
            return 0
        data = self._read(path)
        is_whole = len(data) == 24 and zlib.crc32(data[:20]) == int.from_bytes(data[20:], "little")
        return int(CURSOR.unpack_from(data)[3]) if is_whole else 0

    def _write_cursor(self, position: int) -> None:
        body = CURSOR.pack(b"QUIVER\0T", 1, 24, position)
        path = f"{self.wal}/quiver.wal.cursor"
        self._put(f"{path}.tmp", body + zlib.crc32(body).to_bytes(4, "little"))
        self.disk.rename(f"{path}.tmp", path)
        self.disk.sync_directory(self.wal)

    def _purge(self, position: int) -> None:
        """Rotated logs that end at or before the cursor; the end is that of the file, whatever stands there."""
        for name in self._rotated():
            data = self._read(f"{self.wal}/{name}")
            header_size, start = log_header(data)
            if start + len(data) - header_size <= position:
                self.disk.unlink(f"{self.wal}/{name}")


def log_header(data: bytes) -> tuple[int, int]:
    """header_size and wal_position_start.

    Raises:
        Refused: the header is cut off, or is not one: the other writer does not open such a directory.
    """
    if len(data) < WAL_HEADER.size:
        raise Refused(f"a log of {len(data)} bytes")
    magic, version, header_size, config, position = WAL_HEADER.unpack_from(data)
    if (magic, version, config) != (b"QUIVER\0WAL", 1, CONFIG_HASH):
        raise Refused("a log whose header is none")
    return header_size, position


def entries_of(data: bytes, start: int) -> tuple[list[tuple[int, int]], bool]:
    """Entries as (start, end) from `start` on, and whether they go on to the end of the file."""
    found: list[tuple[int, int]] = []
    at = start
    while at < len(data):
        if at + 4 > len(data):
            return found, False
        length = int.from_bytes(data[at : at + 4], "little")
        end = at + 8 + length
        body = data[at + 4 : end - 4]
        is_entry = length >= ENTRY_HEADER.size and end <= len(data) and body[0] == 0
        if not is_entry or zlib.crc32(body) != int.from_bytes(data[end - 4 : end], "little"):
            return found, False
        found.append((at, end))
        at = end
    return found, True


def sequence_of(data: bytes, at: int) -> int:
    return int(ENTRY_HEADER.unpack_from(data, at + 4)[2])


def bundle_of(body: bytes) -> Bundle:
    """The slots of an entry's body."""
    bitmap = ENTRY_HEADER.unpack_from(body)[3]
    at, found = ENTRY_HEADER.size, Bundle()
    for _ in range(bitmap.bit_count()):
        slot, _, _, size = SLOT_HEADER.unpack_from(body, at)
        at += SLOT_HEADER.size
        found[slot] = pa.ipc.open_stream(body[at : at + size]).read_next_batch()
        at += size
    return found


def segment_bytes(bundles: list[Bundle]) -> bytes:
    """A contiguous segment of version 1: one stream for each (slot, schema), dictionaries as they come."""
    streams: list[tuple[int, pa.Schema, list[pa.RecordBatch]]] = []
    refs = []
    for bundle in bundles:
        row = []
        for slot, batch in bundle.items():
            stream_id = _stream_for(streams, slot, batch)
            row.append({"slot_id": slot, "stream_id": stream_id, "chunk_index": len(streams[stream_id][2])})
            streams[stream_id][2].append(batch)
        refs.append(row)
    data, rows = b"", []
    for stream_id, (slot, schema, batches) in enumerate(streams):
        data += bytes(-len(data) % 64)
        content = _arrow_file(schema, batches)
        count = sum(batch.num_rows for batch in batches)
        rows.append((stream_id, slot, bytes([slot]) * 32, len(data), len(content), count, len(batches)))
        data += content
    names = DIRECTORY_SCHEMA.names
    table = {name: [row[number] for row in rows] for number, name in enumerate(names)}
    directory = _arrow_file(DIRECTORY_SCHEMA, [pa.RecordBatch.from_pydict(table, DIRECTORY_SCHEMA)])
    numbered = {"bundle_index": list(range(len(bundles))), "slot_refs": refs}
    manifest = _arrow_file(MANIFEST_SCHEMA, [pa.RecordBatch.from_pydict(numbered, MANIFEST_SCHEMA)])
    at = len(data)
    data += directory + manifest
    data += FOOTER.pack(1, len(streams), len(bundles), at, len(directory), at + len(directory), len(manifest))
    data += FOOTER.size.to_bytes(4, "little") + b"QUIVER\0S"
    return data + zlib.crc32(data).to_bytes(4, "little")


def _stream_for(streams: list[tuple[int, pa.Schema, list[pa.RecordBatch]]], slot: int, batch: pa.RecordBatch) -> int:
    """Dictionaries that differ get streams of their own: simpler than to unify them, and as valid."""
    for stream_id, (known, schema, batches) in enumerate(streams):
        if known == slot and schema.equals(batch.schema, check_metadata=True) and _same_dictionaries(batches[0], batch):
            return stream_id
    streams.append((slot, batch.schema, []))
    return len(streams) - 1


def _same_dictionaries(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    if any(pa.types.is_nested(field.type) for field in one.schema):
        return False
    encoded = [name for name in one.schema.names if pa.types.is_dictionary(one.schema.field(name).type)]
    return all(one.column(name).dictionary.equals(other.column(name).dictionary) for name in encoded)


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def _arrow_file(schema: pa.Schema, batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def progress_bytes(entries: dict[int, tuple[int, set[int]]], *, completed_through: int | None = None) -> bytes:
    """A progress file as the other writer leaves it, with CRC-32.

    Args:
        entries: bundle count and resolved bundles by segment number.
        completed_through: what its newer releases say with a flag: all segments up to that number are done.
    """
    flags, oldest = (0, 0) if completed_through is None else (1, completed_through)
    data = struct.pack("<8sHHHQI6x", b"QUIVSUB\0", 1, 32, flags, oldest, len(entries))
    for number, (count, resolved) in sorted(entries.items()):
        bitmap = sum(1 << index for index in resolved)
        words = -(-count // 64)
        data += struct.pack("<QIH", number, count, words) + bitmap.to_bytes(8 * words, "little")
    return data + zlib.crc32(data).to_bytes(4, "little")


def _rotation(name: str) -> int:
    return int(name[11:])
