"""`quarantine/` of one engine's directory: damaged files and damaged spans of files, kept for whoever wants to look at them.

    <file name>.<n>                              a whole file, moved or, where another one takes its place, linked
    <file name>.<start>-<end>.<crc32>.span.<n>   bytes of a file that goes on to be used; kept once, however often they are met

`n` rises with every file that comes, so the lowest is the oldest. Nothing here is read again by an engine, and whoever loses bundles by
it has been told before. It counts as used disk space. Over its cap (`retention.quarantine_cap`) the oldest files are deleted, each with
an event in the log; the newest one always stays, however large it is.

Blocking. Every step can be cut off and done again: a file that is moved has one of its two names, a copy is complete before it has one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable

from quiver_actors.base.checksum import crc32_of_range
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.held import HeldFile
from quiver_actors.store.disk.protocol import Disk, DiskFile, write_atomically
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.held_names import put_back, set_aside
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.supervisor.log import log_event

_CHUNK_BYTES = 1 << 20
_NO_LINKS_ERRNOS = frozenset([errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
"""Errors that say: the file system gives a file only one name, or no more than this one has."""

Read = Callable[[int, int], bytes]
"""`read(length, offset)`, like `DiskFile.read`."""


def move_to_quarantine(disk: Disk, paths: EnginePaths, path: str) -> str:
    """Move a file aside. Returns the new path."""
    target = _new_path(disk, paths, path.rpartition("/")[2])
    disk.rename(path, target)
    disk.sync_directory(paths.quarantine)
    disk.sync_directory(path.rpartition("/")[0])
    return target


def keep_in_quarantine(disk: Disk, paths: EnginePaths, path: str) -> str:
    """Keep a small file that is about to be replaced, sectors that cannot be read included. Returns its second path."""
    target = _new_path(disk, paths, path.rpartition("/")[2])
    try:
        disk.link(path, target)
    except DiskError as error:
        if error.errno not in _NO_LINKS_ERRNOS:
            raise
        write_atomically(disk, target, read_small(disk, path))
    disk.sync_directory(paths.quarantine)
    return target


def link_to_quarantine(disk: Disk, paths: EnginePaths, path: str) -> bool:
    """Keep a file that stays in use, under a second name, so that it is still there when the first one goes. Returns whether it is new."""
    name = path.rpartition("/")[2]
    known_id = disk.file_id(path)
    for kept in disk.list_directory(paths.quarantine):
        if kept.rpartition(".")[0] == name and disk.file_id(f"{paths.quarantine}/{kept}") == known_id:
            return False
    keep_in_quarantine(disk, paths, path)
    return True


def copy_span(disk: Disk, paths: EnginePaths, read: Read, name: str, start: int, end: int) -> str | None:
    """Keep bytes `[start, end)` of the file `name`. Returns the new path, None if they are kept already."""
    stem = f"{name}.{start}-{end}.{crc32_of_range(read, start, end):08x}.span"
    disk.make_directory(paths.quarantine, needs_parent=True)
    if any(kept.rpartition(".")[0] == stem for kept in disk.list_directory(paths.quarantine)):
        return None
    target = _new_path(disk, paths, stem)
    temporary = target + TEMPORARY_SUFFIX
    file = disk.create(temporary)
    try:
        _copy(read, start, end, file)
        file.fsync()
    except DiskError:
        file.close()
        with contextlib.suppress(DiskError):  # reaped at the next open
            disk.unlink(temporary)
        raise
    file.close()
    disk.rename(temporary, target)
    disk.sync_directory(paths.quarantine)
    return target


def trim_quarantine(disk: Disk, paths: EnginePaths, cap_bytes: int, keep: Callable[[HeldFile | None], None]) -> int:
    """Delete the oldest files until the rest takes no more than `cap_bytes`, but never the newest. Returns what the rest takes.

    Args:
        keep: gets each deleted file that somebody still has open or mapped, and None for a file that nobody has.
    """
    names = sorted(disk.list_directory(paths.quarantine), key=_number_of)
    sizes = {name: disk.allocated_bytes(f"{paths.quarantine}/{name}") for name in names}
    left = sum(sizes.values())
    for name in names[:-1]:
        if left <= cap_bytes:
            break
        path = f"{paths.quarantine}/{name}"
        log_event("quarantine.drop", {"path": path, "bytes": sizes[name], "cap": cap_bytes}, logging.WARNING)
        held = set_aside(disk, paths, path)
        try:
            disk.unlink(path)
        except DiskError as error:
            put_back(disk, held)
            if error.errno != errno.EISDIR:  # a directory that was in the way of a file: an operator's matter
                raise
        else:
            keep(held)
            left -= sizes[name]
    if left < sum(sizes.values()):
        disk.sync_directory(paths.quarantine)
    return left


def _new_path(disk: Disk, paths: EnginePaths, name: str) -> str:
    disk.make_directory(paths.quarantine, needs_parent=True)
    number = 1 + max(map(_number_of, disk.list_directory(paths.quarantine)), default=-1)
    return f"{paths.quarantine}/{name}.{number}"


def _number_of(name: str) -> int:
    """The number at the end of a name in quarantine; -1 for a file that somebody else has put there, which counts as the oldest."""
    number = name.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _copy(read: Read, start: int, end: int, file: DiskFile) -> None:
    for offset in range(start, end, _CHUNK_BYTES):
        file.write([read(min(_CHUNK_BYTES, end - offset), offset)], offset - start)
