"""Finds the engines in a directory, and the kind of each file by its name (docs/formats.md section 1, "Files and their codecs")."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.cold_list import COLD_NAME
from quiver_actors.store.files.cold_owner import OWNER_NAME
from quiver_actors.store.files.core_file import CORE_NAME
from quiver_actors.store.files.foreign_record import FOREIGN_NAME
from quiver_actors.store.files.paths import (
    BALLAST_NAME,
    HELD_NAME,
    PRODUCERS_NAME,
    RESCUED_SUFFIX,
    STAGED_NAME,
    TEMPORARY_SUFFIX,
    TRANSACTIONS_NAME,
    WITNESS_NAME,
    EnginePaths,
    segment_seq_of,
)
from quiver_actors.store.files.summaries import SUMMARIES_NAME
from quiver_actors.store.subscriber.gaps import gaps_subscriber_of
from quiver_actors.store.subscriber.progress import FILE_PREFIX, subscriber_of
from quiver_actors.store.subscriber.progress_journal import JOURNAL_NAME
from quiver_actors.store.wal.codec import LogHeader, decode_header
from quiver_actors.store.wal.layout import ACTIVE_NAME, CURSOR_NAME, HEADER_BYTES, rotation_number

LOCK_NAME = "quiver.lock"
_PARTS = frozenset(["wal", "segments", CORE_NAME, LOCK_NAME])
_KNOWN_IN_ROOT = frozenset(
    [
        *_PARTS,
        "quarantine",
        HELD_NAME,
        BALLAST_NAME,
        WITNESS_NAME,
        STAGED_NAME,
        TRANSACTIONS_NAME,
        PRODUCERS_NAME,
        FOREIGN_NAME,
        COLD_NAME,
        OWNER_NAME,
        JOURNAL_NAME,
        SUMMARIES_NAME,
    ]
)


def list_names(disk: Disk, path: str) -> list[str]:
    """Names in a directory; none where it is missing, is no directory, or is a link. Raises DiskError for the rest."""
    try:
        return disk.list_directory(path)
    except DiskError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENOENT):
            return []
        raise


def join(directory: str, name: str) -> str:
    """Return the path of a name in a directory; `""` and `.` are the root."""
    return name if directory in ("", ".") else f"{directory}/{name}"


def is_engine_directory(disk: Disk, path: str) -> bool:
    """Whether a directory holds a file or directory that only an engine makes."""
    names = list_names(disk, path)
    return any(name in _PARTS or name.startswith(FILE_PREFIX) for name in names)


def engine_directories(disk: Disk, root: str = ".") -> list[str]:
    """The engine directories at `root`, or one or two levels (topic, core) below it."""
    if is_engine_directory(disk, root):
        return [root]
    found = []
    for topic in list_names(disk, root):
        path = join(root, topic)
        if is_engine_directory(disk, path):
            found.append(path)
            continue
        cores = (join(path, core) for core in list_names(disk, path))
        found += [core for core in cores if is_engine_directory(disk, core)]
    return found


@dataclass(slots=True)
class Leftovers:
    """Files of an engine's directory that belong to no bundle, as paths."""

    temporary: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)


def core_id_of(directory: str) -> int:
    """The core that an engine's directory is named after; 0 for a directory with another name."""
    digits = directory.rpartition("/")[2].removeprefix("core_")
    return int(digits) if digits.isascii() and digits.isdigit() else 0


def log_names(disk: Disk, paths: EnginePaths) -> list[str]:
    """Log files, oldest first by their numbers, the active one last."""
    found = [name for name in list_names(disk, paths.wal) if name == ACTIVE_NAME or rotation_number(name) is not None]
    return sorted(found, key=lambda name: rotation_number(name) or 1 << 64)


def log_headers(disk: Disk, paths: EnginePaths) -> Iterator[LogHeader]:
    """The headers of log files, in the order of `log_names`, as far as they can be read."""
    for name in log_names(disk, paths):
        with suppress(FormatError, DiskError):
            yield decode_header(read_whole(disk, f"{paths.wal}/{name}", HEADER_BYTES))


def segment_names(disk: Disk, paths: EnginePaths) -> dict[int, str]:
    """Segment files by their number. Two names of one number cannot both be right: the canonical one counts."""
    found: dict[int, str] = {}
    for name in list_names(disk, paths.segments):
        segment_seq = segment_seq_of(name)
        if segment_seq is not None and (segment_seq not in found or name == _canonical(paths, segment_seq)):
            found[segment_seq] = name
    return dict(sorted(found.items()))


def _canonical(paths: EnginePaths, segment_seq: int) -> str:
    return paths.segment(segment_seq).rpartition("/")[2]


def progress_names(disk: Disk, paths: EnginePaths) -> dict[str, str]:
    """Progress files by their subscriber."""
    names = list_names(disk, paths.root)
    return {subscriber: name for name in names if (subscriber := subscriber_of(name)) is not None}


def gap_file_names(disk: Disk, paths: EnginePaths) -> list[str]:
    """Files of gap notices."""
    return [name for name in list_names(disk, paths.root) if gaps_subscriber_of(name) is not None]


def leftovers(disk: Disk, paths: EnginePaths) -> Leftovers:
    """Return what is in an engine's directory beside its files: quarantined, temporary and unknown ones."""
    found = Leftovers(quarantined=[f"{paths.quarantine}/{name}" for name in list_names(disk, paths.quarantine)])
    segments = set(segment_names(disk, paths).values())
    for directory in (paths.root, paths.wal, paths.segments):
        for name in list_names(disk, directory):
            path = join(directory, name)
            if _is_known(directory, name, paths, segments):
                continue
            is_temporary = name.endswith((TEMPORARY_SUFFIX, RESCUED_SUFFIX))
            (found.temporary if is_temporary else found.unknown).append(path)
    return found


def files_below(disk: Disk, path: str = ".", depth: int = 5) -> list[str]:
    """Everything at or below a path that is no directory, links included, but not followed."""
    found = []
    for name in list_names(disk, path):
        inner = join(path, name)
        try:
            disk.list_directory(inner)
        except DiskError:
            found.append(inner)
            continue
        if depth > 1:
            found += files_below(disk, inner, depth - 1)
    return found


def _is_known(directory: str, name: str, paths: EnginePaths, segments: set[str]) -> bool:
    if directory == paths.wal:
        return name in (ACTIVE_NAME, CURSOR_NAME) or rotation_number(name) is not None
    if directory == paths.segments:
        return name in segments
    return name in _KNOWN_IN_ROOT or subscriber_of(name) is not None or gaps_subscriber_of(name) is not None
