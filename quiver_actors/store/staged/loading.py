"""A prepared stage as it is read back from its files: at open, where one is looked at, and again where the disk did not give it back.

Reads only. What is read and is not what was prepared is damaged; what the disk does not give back is neither that nor whole: it may be
there the next time.
"""

from __future__ import annotations

import enum

import numpy as np

from quiver_actors.base.checksum import crc32, crc32_combine, crc32_of_range
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import UNREADABLE_ERRNOS, Disk, DiskFile
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.staged.records import PartRecord, PreparedRecord
from quiver_actors.store.staged.stage import Stage
from quiver_actors.store.staged.states import StageState
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, encode_header
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.reader import LogReader
from quiver_actors.store.wal.recovery import read_entry


class Parts(enum.Enum):
    """Condition of the files of a stage."""

    WHOLE = "whole"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    """The disk gives back an error for one of the files."""


class DamagedPart(FormatError):
    """A part of a prepared stage is not what was staged."""

    code = "damaged_part"


def load_stage(disk: Disk, paths: EnginePaths, record: PreparedRecord) -> tuple[Stage, Parts, str]:
    """A prepared stage, and what is wrong with its parts, if something is; it has none of them then.

    Raises:
        DiskError: the disk has not even tried: too many open files, for example.
    """
    stage = stage_of(record)
    try:
        parts = [load_part(disk, paths, record, index) for index in range(len(record.parts))]
    except DamagedPart as error:
        return stage, Parts.DAMAGED, str(error)
    except DiskError as error:
        if error.errno not in UNREADABLE_ERRNOS:
            raise
        stage.unread, stage.reason = record, str(error)
        return stage, Parts.UNREADABLE, str(error)
    stage.parts = parts
    return stage, Parts.WHOLE, ""


def load_part(disk: Disk, paths: EnginePaths, record: PreparedRecord, index: int) -> Log:
    """
    Raises:
        DamagedPart: it is not there, or its entries are not what was prepared.
        DiskError: it cannot be read now.
    """
    path = paths.stage_part(record.number, index)
    if not disk.exists(path):
        raise DamagedPart(f"{path} is missing")
    file = disk.open_read(path)
    try:
        return _read_part(file, path, record, record.parts[index])
    finally:
        file.close()


def stage_of(record: PreparedRecord) -> Stage:
    """The stage that the record describes, without its parts."""
    stage = Stage(record.number, record.order, None, record.cfg_hash, record.prepared_unix_ns)
    stage.state = StageState.PREPARED
    stage.was_prepared = True
    stage.expires_unix_ns = record.expires_unix_ns
    return stage


def _read_part(file: DiskFile, path: str, record: PreparedRecord, expected: PartRecord) -> Log:
    reader = LogReader(file.read, expected.size_bytes)
    found = reader.scan(layout.HEADER_BYTES, stride=layout.ALIGNMENT, last_sequence=-1)
    if found.end != expected.size_bytes or found.damaged or found.entry_count != expected.bundles:
        raise DamagedPart(
            f"{path}: {found.entry_count} bundles up to byte {found.end}, expected {expected.bundles} up to {expected.size_bytes}"
        )
    log = Log(file, path, expected.size_bytes)
    log.entry_type = layout.ENTRY_TYPE_STAGED
    log.begin_segment(0)
    counts = np.frombuffer(expected.item_counts, "<i8") if expected.item_counts else None
    for index, span in enumerate(found.entries):
        entry = read_entry(reader, span)
        if entry.error or entry.sequence != index or entry.entry_type != layout.ENTRY_TYPE_STAGED:
            raise DamagedPart(
                f"{path}: the entry at byte {span.start} is not bundle {index} of the part; {entry.error}"
            )
        items = -1 if counts is None else int(counts[index])
        log.builder.append(index, entry.ingestion_ts_nanos, items, span.end - span.start, entry.placements)
    log.end = log.written_end = expected.size_bytes
    if crc32_of_range(file.read, layout.HEADER_BYTES, expected.size_bytes) != expected.crc32:
        raise DamagedPart(f"{path}: its entries do not have the checksum that was prepared")
    log.header = encode_header(record.cfg_hash, 0, Identity(0, 0, record.incarnation))
    log.crc = crc32_combine(crc32(log.header), expected.crc32, log.entry_bytes)
    return log
