"""The cores that a topic has or has had on this node, as their directories say it. No object store is asked."""

from __future__ import annotations

import contextlib

from quiver_actors.archive.state_reading import engine_directories, read_file
from quiver_actors.base.protocol.archive_messages import RetiredCore
from quiver_actors.errors import DiskError, FormatError, StorageUnavailable
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.core_file import CoreFile, decode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.wal.codec import decode_cursor


def retired_cores(disk: Disk, topic: str) -> list[RetiredCore]:
    """The cores of a topic by rising number, those that have a worker included. One that has come back is told as it is now.

    Args:
        disk: the data directory.

    Raises:
        StorageUnavailable: a directory cannot be read, or what says whose it is, is damaged.
    """
    found: dict[int, RetiredCore] = {}
    try:
        for directory in engine_directories(disk, topic):
            core = _core_in(disk, EnginePaths(directory))
            if core is not None:
                found.setdefault(core.core, core)
    except DiskError as error:
        raise StorageUnavailable(f"the cores of topic {topic!r} cannot be told: {error}") from error
    return [found[core] for core in sorted(found)]


def _core_in(disk: Disk, paths: EnginePaths) -> RetiredCore | None:
    """None: the directory has no identity yet, or is gone."""
    content = read_file(disk, paths.core)
    if content is None:
        return None
    try:
        core = decode_core(content)
    except FormatError as error:
        raise StorageUnavailable(
            f"{paths.core} is damaged, so nobody can tell what of this core is archived: {error}. `quiver archive ls` names it; to read "
            "without it, move its directory away"
        ) from error
    # The numbers of a directory that was not closed cleanly are reserved ahead of use.
    next_segment_seq = core.next_segment_seq_reserved if core.clean_shutdown else -1
    return RetiredCore(core.core_id, core.incarnation.hex(), next_segment_seq, _position_end(disk, paths, core))


def _position_end(disk: Disk, paths: EnginePaths, core: CoreFile) -> int:
    content = read_file(disk, paths.cursor) if core.clean_shutdown else None
    if content is not None:
        with contextlib.suppress(FormatError):
            return decode_cursor(content)
    return -1
