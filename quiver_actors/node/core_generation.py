"""The last number of workers of a data directory, and the generation since which it holds. Reads and writes `quiver.cores`.

A generation begins whenever a node starts with another number of workers than the one before. It is 0 in a directory that has never had
another number, else the time at which it began (UNIX nanoseconds, and above the one before): no number is given twice, even if the file is
lost. The file is durable before the first worker of its generation starts.

Owner: the process of `quiver up`, which holds the directory. Workers are told the number (`WorkerContext.generation`).
"""

from __future__ import annotations

import errno
import logging

from quiver_actors.errors import DiskError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk, read_whole, write_atomically
from quiver_actors.store.files.core_count import CORES_BYTES_MAX, CORES_FILE, CoreGeneration, decode_core_generation
from quiver_actors.supervisor.log import log_event


def begin_with(disk: Disk, cores: int, now_ns: int, *, is_new: bool) -> int:
    """Note, durably, that so many workers serve the data directory from now on.

    Args:
        now_ns: UNIX time.
        is_new: no core has a directory in it yet.

    Returns:
        The generation.

    Raises:
        DiskError: the file cannot be read or written.
    """
    before = _read(disk)
    if before is not None and before.cores == cores:
        return before.generation
    former = before.generation if before is not None else 0
    generation = 0 if is_new else max(now_ns, former + 1)
    write_atomically(disk, CORES_FILE, CoreGeneration(cores, generation).encode())
    disk.sync_directory(".")
    return generation


def _read(disk: Disk) -> CoreGeneration | None:
    try:
        return decode_core_generation(read_whole(disk, CORES_FILE, CORES_BYTES_MAX))
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
    except InvalidFormat as error:
        log_event("cores.unreadable", {"reason": f"{error}; a new generation begins"}, logging.WARNING)
    return None
