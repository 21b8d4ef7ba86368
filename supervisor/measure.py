"""Measures the disk usage of directories, in small steps so that a loop can do it in passing.

Counts blocks, as `du` does: directories too, and each file once however many names it has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Generator, Iterable

BLOCK_BYTES = 512
"""Unit of `st_blocks`, whatever the file system's own block is."""
ENTRIES_PER_STEP = 512


def measuring(directories: Iterable[str], without: Collection[str] = ()) -> Generator[None, None, int]:
    """Walk the directories and return their bytes; yields after every few hundred entries.

    What comes or goes meanwhile may be counted or not. A directory that is missing counts nothing.

    Args:
        without: paths that are not looked into.
    """
    pending, seen, total, entries = list(directories), set[tuple[int, int]](), 0, 0
    while pending:
        directory = pending.pop()
        try:
            total += os.stat(directory, follow_symlinks=False).st_blocks * BLOCK_BYTES
            with os.scandir(directory) as found:
                listed = list(found)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for entry in listed:
            if entry.is_dir(follow_symlinks=False):
                pending += [entry.path] if entry.path not in without else []
            else:
                total += _file_bytes(entry, seen)
            entries += 1
            if entries % ENTRIES_PER_STEP == 0:
                yield
    return total


def measure(directories: Iterable[str], without: Collection[str] = ()) -> int:
    """Walk the directories as `measuring` does, all at once, and return their bytes."""
    return all_of(measuring(directories, without))


def all_of(steps: Generator[None, None, int]) -> int:
    """Take all steps of a walk, and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return int(done.value)


def _file_bytes(entry: os.DirEntry[str], seen: set[tuple[int, int]]) -> int:
    try:
        status = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return 0
    if status.st_nlink > 1:
        if (status.st_dev, status.st_ino) in seen:
            return 0
        seen.add((status.st_dev, status.st_ino))
    return status.st_blocks * BLOCK_BYTES
