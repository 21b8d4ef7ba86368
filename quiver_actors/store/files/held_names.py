"""`held/` of one engine's directory: names of deleted segments and logs that somebody still has open or mapped.

    <file name>.<inode>

Without a name nobody could find such a file after a kill or a restart: its blocks would be neither counted nor taken back until its last
holder ends. The name goes when nobody has the file any more, or when its blocks were taken back. It is never made durable: no process
outlives a power loss, so the next start finds what came back without a holder, and removes it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile, Holder
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.supervisor.log import log_event


def set_aside(disk: Disk, paths: EnginePaths, path: str) -> HeldFile | None:
    """Give a file that is about to lose its name another one, if somebody has it open or mapped; None: nobody has, or nobody can tell.

    Where the disk gives it no second name, the file is kept all the same, and forgotten with this process.
    """
    held = disk.keep(path)
    if held is None:
        return None
    if held.holder() is Holder.NOBODY:
        held.close()
        return None
    found = disk.file_id(path)
    if found is not None:
        name = f"{paths.held}/{path.rpartition('/')[2]}.{found[1]}"
        with contextlib.suppress(DiskError):
            disk.make_directory(paths.held, needs_parent=True)
            disk.link(path, name)
            held.path = name
    return held


def put_back(disk: Disk, held: HeldFile | None) -> None:
    """Undo `set_aside`: the file keeps its name."""
    if held is None:
        return
    held.close()
    if held.path is not None:
        with contextlib.suppress(DiskError):  # the next start removes it
            disk.unlink(held.path)


def name_if_held(disk: Disk, paths: EnginePaths, path: str) -> None:
    """Give a file that is about to lose its name another one, as `set_aside` does, at a start: `find_held` takes it over, or removes the
    name if the file has kept its own."""
    held = set_aside(disk, paths, path)
    if held is not None:
        held.close()


def is_given_back(held: HeldFile, *, is_overdue: bool) -> bool:
    """Whether the bytes of a deleted file are free, or somebody's under another name. An overdue file that only other users have is
    emptied."""
    try:
        if held.has_other_name:
            return True
        holder = held.holder()
        if holder is Holder.GUESTS and is_overdue:
            size_bytes = held.size_bytes
            held.empty()
            fields = {"bytes": size_bytes, "reason": "deleted, and kept by other users"}
            log_event("segment.emptied", fields, logging.WARNING)
            return True
    except OSError as error:
        log_event("segment.not_emptied", {"reason": str(error)}, logging.WARNING)
        return False
    return holder is Holder.NOBODY


def find_held(disk: Disk, paths: EnginePaths) -> Iterator[HeldFile]:
    """The files that somebody has had since before this start. A name that leads to nothing of the kind is removed."""
    try:
        names = disk.list_directory(paths.held)
    except DiskError as error:
        log_event("held.unlisted", {"path": paths.held, "reason": str(error)}, logging.WARNING)
        return
    for name in names:
        path = f"{paths.held}/{name}"
        held = disk.keep(path)
        if held is None:
            continue
        held.path = path
        # A kill between the two names of a segment leaves both: the segment is as it was.
        if held.has_other_name or held.holder() is Holder.NOBODY:
            put_back(disk, held)
        else:
            yield held
