"""Turning a complete log file into an immutable segment, in place. Blocking; runs on the seal thread, or at open.

Every step can be repeated: a crash or an error anywhere leaves either the whole log file under its log name, or the whole
segment under its segment name. Nothing that a reader needs is written before the tail, and the tail ends in a CRC of the
whole file, so a half-written one is recognised and written again.
"""

from __future__ import annotations

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.segment.tail import encode_tail
from quiver_actors.store.wal.codec import encode_cursor
from quiver_actors.store.wal.log import Log


def seal_file(disk: Disk, paths: EnginePaths, log: Log, incarnation: bytes) -> SegmentInfo:
    """Append the tail, sync, rename into `segments/`, sync both directories.

    The log must be retired: complete, synced, under its rotated name (`log.path`). Its file is closed afterwards.

    Raises:
        DiskError: the log is still whole under `log.path`; the same call may be made again only if nothing but space was
            missing (ENOSPC before the sync).
    """
    builder = log.builder
    tail = encode_tail(
        builder,
        entries_end=log.written_end,
        crc32_of_entries=log.crc,
        wal_position_start=log.position_start,
        wal_position_end=log.position_end,
        incarnation=incarnation,
    )
    size_bytes = log.written_end + sum(map(len, tail))
    if size_bytes > log.capacity_bytes:
        log.file.allocate(size_bytes)  # so that a full disk is met before the sync
        log.capacity_bytes = size_bytes
    log.file.write(tail, log.written_end)
    log.file.truncate(size_bytes)
    log.file.fsync()
    disk.rename(log.path, paths.segment(log.segment_seq))
    disk.sync_directory(paths.segments)
    disk.sync_directory(log.path.rpartition("/")[0])
    # Not earlier: a log that is read-only could not be sealed again after a crash.
    log.file.make_read_only()
    log.file.close()
    return SegmentInfo(
        log.segment_seq,
        builder.bundle_count,
        builder.row_count,
        size_bytes,
        builder.first_ingestion_ts_nanos,
        builder.last_ingestion_ts_nanos,
        position_start=log.position_start,
        position_end=log.position_end,
    )


def write_cursor(disk: Disk, paths: EnginePaths, position: int) -> None:
    """Say durably that everything before `position` is in segments. Derived: recovery never needs it for our own logs."""
    write_atomically(disk, paths.cursor, encode_cursor(position))
    disk.sync_directory(paths.wal)


def write_empty_log(disk: Disk, paths: EnginePaths, header: bytes) -> None:
    """Leave `quiver.wal` with nothing but its header, at the position where the next log goes on. Only while no log has that name."""
    write_atomically(disk, paths.active, header)
    disk.sync_directory(paths.wal)


def make_witness(disk: Disk, paths: EnginePaths) -> None:
    """Say that `wal/` has a log, and will have one at any time. Durable with the next sync of the root."""
    disk.create(paths.witness).close()


def drop_witness(disk: Disk, paths: EnginePaths) -> None:
    """Say durably that `wal/` may be without a log: before the last one goes where there is no room for an empty one behind it."""
    if disk.exists(paths.witness):
        disk.unlink(paths.witness)
        disk.sync_directory(paths.root)
