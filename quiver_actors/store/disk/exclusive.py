"""Files that are made once: whoever is first decides what is in them, for every process that sees the directory.

Used for decisions of transactions. A file appears under its name whole and durable, or not at all, and is never replaced.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import Disk


def temporary_name(name: str, token: str) -> str:
    """The name of a file until it is whole."""
    return f".{name}.{token}.tmp"


def create_once(disk: Disk, directory: str, name: str, content: bytes, token: str) -> bool:
    """Make `directory/name` with that content, durably.

    Args:
        token: a text that nobody else uses at the same time.

    Returns:
        False if a file of that name was there first: that file is durable then, and its content counts.

    Raises:
        DiskError: neither is certain; the same call may be made again.
    """
    disk.make_directory(directory)
    temporary = f"{directory}/{temporary_name(name, token)}"
    try:
        _write_durably(disk, temporary, content)
        # A link fails where the name is taken; a rename would replace what was decided.
        is_ours = _linked(disk, temporary, f"{directory}/{name}")
    finally:
        # What is left of the temporary file means nothing to anybody.
        with contextlib.suppress(DiskError):
            disk.unlink(temporary)
    # Also where another process was first: that one may not have come to its own sync yet.
    disk.sync_directory(directory)
    return is_ours


def sweep(disk: Disk, directory: str, is_left_over: Callable[[str], bool]) -> None:
    """Delete temporary files whose processes were killed. One that cannot be deleted stays for the next time."""
    with contextlib.suppress(DiskError):
        for name in filter(is_left_over, disk.list_directory(directory)):
            disk.unlink(f"{directory}/{name}")


def remove_once(disk: Disk, directory: str, name: str) -> None:
    """Delete the file `directory/name`, durably. Do nothing if it is not there."""
    if disk.exists(f"{directory}/{name}"):
        disk.unlink(f"{directory}/{name}")
        disk.sync_directory(directory)


def _write_durably(disk: Disk, path: str, content: bytes) -> None:
    file = disk.create(path)
    try:
        file.write([content], 0)
        file.fsync()
    finally:
        file.close()


def _linked(disk: Disk, source: str, target: str) -> bool:
    try:
        disk.link(source, target)
    except DiskError as error:
        if error.errno != errno.EEXIST:
            raise
        return False
    return True
