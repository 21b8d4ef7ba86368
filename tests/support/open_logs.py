"""Reads what an engine shows of logs that are not sealed, as a subscriber does: by places, out of the log's file."""

from __future__ import annotations

from quiver_actors.base.protocol.places import PLACE
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import decode_header
from quiver_actors.store.wal.entry_reader import EntryReader, LogEntries, Place


def read_log(engine: Engine, disk: Disk, directory: str, segment_seq: int) -> EntryReader:
    """A reader of all bundles of that log that are shown."""
    content, places = log_and_places(engine, disk, directory, segment_seq)
    return EntryReader(LogEntries(memoryview(content)), places, segment_seq)


def log_and_places(engine: Engine, disk: Disk, directory: str, segment_seq: int) -> tuple[bytes, dict[int, Place]]:
    """The bytes of that log, and where its bundles that are shown lie."""
    indexes = range(engine.readable_end.shown_count(segment_seq))
    found = PLACE.iter_unpack(engine.readable_end.places(segment_seq, indexes))
    return _content(disk, f"{directory}/wal", segment_seq), dict(zip(indexes, map(Place._make, found), strict=True))


def _content(disk: Disk, directory: str, segment_seq: int) -> bytes:
    for name in disk.list_directory(directory):
        if not name.startswith(layout.ACTIVE_NAME) or name == layout.CURSOR_NAME:
            continue
        file = disk.open_read(f"{directory}/{name}")
        try:
            content = file.read(file.size(), 0)
        finally:
            file.close()
        if len(content) >= layout.HEADER_BYTES:
            identity = decode_header(content[: layout.HEADER_BYTES]).identity
            if identity is not None and identity.segment_seq == segment_seq:
                return content
    raise AssertionError(f"no log becomes segment {segment_seq}: {disk.list_directory(directory)}")
