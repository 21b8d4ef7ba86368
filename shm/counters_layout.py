"""The layout of a counters page, and how its regions and rows are read.

Layout, little-endian, everything a u64 word unless said otherwise:

    page header, 128 bytes
        0    8  magic `QVCOUNTS`, written last
        8    8  version = 1
        16   8  figures version, the meaning of kinds and values, given by the creator
        24   8  region count
        32   8  rows per region
        40   8  creation time, UNIX ns
        48   8  process id of the creator
    region, for each region: 64 bytes of header, then its rows
        0    8  sequence lock of process id, generation, start time and of the table as a whole
        8    8  process id of the writer, 0 = never begun
        16   8  generation: how often the region was begun
        24   8  state, a code of the writer's
        32   8  heartbeat, CLOCK_MONOTONIC ns, 0 = none yet
        40   8  start time of the writer, UNIX ns
    row, 512 bytes
        0    8  sequence lock of kind and label, and of which figures the values are
        8    8  kind, 0 = free
        16 216  label, UTF-8, zero padded
        232 280 values, 35 words
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from .errors import WriterStuck
from .words import WORD_BYTES, Words, read_stable

MAGIC = b"QVCOUNTS"
VERSION = 1
LABEL_BYTES = 216
VALUES_PER_ROW = 35

HEADER = struct.Struct("<8s6Q")
HEADER_BYTES = 128

REGION_HEADER_WORDS = 8
REGION_HEADER_BYTES = REGION_HEADER_WORDS * WORD_BYTES
SEQUENCE, PID, GENERATION, STATE, HEARTBEAT, STARTED = range(6)

ROW_BYTES = 512
ROW_WORDS = ROW_BYTES // WORD_BYTES
ROW_SEQUENCE, ROW_KIND = range(2)
LABEL_OFFSET_BYTES = 2 * WORD_BYTES
VALUES_OFFSET_BYTES = LABEL_OFFSET_BYTES + LABEL_BYTES
VALUES_WORD = VALUES_OFFSET_BYTES // WORD_BYTES

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RowSnapshot:
    """One row as a reader found it."""

    kind: int
    label: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RegionSnapshot:
    """One region as a reader found it; generation 0 = no process has begun it yet."""

    index: int
    pid: int
    generation: int
    state: int
    heartbeat_ns: int
    started_unix_ns: int
    rows: tuple[RowSnapshot, ...]


def region_snapshot(index: int, words: Words, memory: memoryview) -> RegionSnapshot:
    """Copy a region with its rows, whatever its writer does meanwhile."""
    row_words = range(REGION_HEADER_WORDS, memory.nbytes // WORD_BYTES, ROW_WORDS)
    rows = (_row_snapshot(words, first, memory) for first in row_words if words.load(first + ROW_KIND))
    return region_head(index, words, tuple(row for row in rows if row is not None))


def region_head(index: int, words: Words, rows: tuple[RowSnapshot, ...]) -> RegionSnapshot:
    """Copy the header of a region, and put rows beside it."""
    _, pid, generation, state, heartbeat_ns, started_unix_ns = words.load_many(0, 6)
    return RegionSnapshot(index, pid, generation, state, heartbeat_ns, started_unix_ns, rows)


def _row_snapshot(words: Words, first: int, memory: memoryview) -> RowSnapshot | None:
    """The row whose words start at `first`, None when it has just been freed."""
    label_start = first * WORD_BYTES + LABEL_OFFSET_BYTES

    def copy() -> tuple[int, bytes, list[int]]:
        return (
            words.load(first + ROW_KIND),
            memory[label_start : label_start + LABEL_BYTES].tobytes(),
            words.load_many(first + VALUES_WORD, VALUES_PER_ROW),
        )

    kind, label, values = read_or_as_it_stands(words, first + ROW_SEQUENCE, copy)
    return RowSnapshot(kind, decode_label(label), tuple(values)) if kind else None


def read_or_as_it_stands(words: Words, sequence_index: int, read: Callable[[], T]) -> T:
    """A consistent reading, or what is there when the writer died or was stopped in the middle of a change."""
    try:
        return read_stable(words, sequence_index, read)
    except WriterStuck:
        return read()


def fitting_label(label: str) -> str:
    """The label as a row can hold it: cut at a character border, without zero bytes."""
    encoded = label.replace("\0", " ").encode("utf-8", errors="replace")
    return encoded[:LABEL_BYTES].decode("utf-8", errors="ignore")


def encode_label(label: str) -> bytes:
    """A label that fits, as it lies in its row."""
    return label.encode("utf-8").ljust(LABEL_BYTES, b"\0")


def decode_label(field: bytes) -> str:
    """The label in a row."""
    return field.rstrip(b"\0").decode("utf-8", errors="replace")


def region_bytes(rows_per_region: int) -> int:
    """The size of a region with so many rows."""
    return REGION_HEADER_BYTES + rows_per_region * ROW_BYTES


def page_bytes(regions: int, rows_per_region: int) -> int:
    """The size of a page with so many regions."""
    return HEADER_BYTES + regions * region_bytes(rows_per_region)
