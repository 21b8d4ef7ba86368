"""The memory that this process may still take: what the machine and its memory groups leave.

A memory group that runs over its limit inside `fallocate` gets a process killed, not an error. Looking first turns nearly all of those
cases into a clean refusal; a race with others who take memory at the same time remains.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _GroupFiles(NamedTuple):
    """Names of one version of the kernel's memory groups."""

    mount: str
    limit: str
    usage: str
    reclaimable: tuple[str, ...]


_VERSION_2 = _GroupFiles("sys/fs/cgroup", "memory.max", "memory.current", ("inactive_file", "active_file"))
_VERSION_1 = _GroupFiles(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be allocated without swapping or passing a group's limit; None where the kernel does not say.

    Args:
        root: where /proc and /sys are looked up.
    """
    bounds = [bound for bound in (_machine_bytes(root), *_group_bytes(root)) if bound is not None]
    return max(0, min(bounds)) if bounds else None


def _machine_bytes(root: Path) -> int | None:
    kibibytes = _keyed_numbers(root / "proc/meminfo").get("MemAvailable:")
    return None if kibibytes is None else kibibytes * 1024


def _group_bytes(root: Path) -> Iterator[int | None]:
    """The room in each group that this process is in, the innermost first.

    Inside a container the listed path may be the host's while the mount shows only the container's own groups: directories that
    are not there are passed over, and the mount's root is always looked at.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        files = _VERSION_1 if controllers else _VERSION_2
        innermost = PurePosixPath(*(part for part in path.split("/") if part != ".."))
        for group in (innermost, *innermost.parents):
            yield _room_in_group(root / files.mount / group, files)


def _room_in_group(directory: Path, files: _GroupFiles) -> int | None:
    limit = _read(directory / files.limit).strip()
    usage = _read(directory / files.usage).strip()
    if not limit.isdecimal() or not usage.isdecimal():
        return None
    counts = _keyed_numbers(directory / "memory.stat")
    return int(limit) - int(usage) + sum(counts.get(key, 0) for key in files.reclaimable)


def _keyed_numbers(path: Path) -> dict[str, int]:
    """Lines of `key number ...` as a mapping."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdecimal()}


def _read(path: Path) -> str:
    """The file's text, empty when it is not there: which files exist differs between kernels."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
