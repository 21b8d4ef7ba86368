"""The directories of cores in a data directory, and the worker of each. Reads names only; imports neither pyarrow nor numpy.

    <topic>/core_<n>/          one engine
    <topic>/retired/core_<n>/  what is left of one whose core the node does not have any more, after all of it was delivered: its numbers,
                               so that none is used twice when the core comes back, and the progress of its subscribers

A core that the node does not have is adopted by one that it has: n modulo the number of workers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from quiver_actors.errors import DiskError

RETIRED_NAME = "retired"
_CORE_NAME = re.compile(r"core_(0|[1-9]\d{0,5})")


def owner_of(core: int, cores: int) -> int:
    """The worker that serves that core's directories."""
    return core % cores


def find_core_dirs(data_dir: str, topics: Iterable[str] | None = None) -> dict[int, list[str]]:
    """Return, by core, the topics that have a directory of the core, sorted; of all topics, or of those in `topics`.

    Raises:
        DiskError: a directory cannot be listed.
    """
    found: dict[int, list[str]] = {}
    names = _directories_in(data_dir) if topics is None else topics
    for topic in sorted(name for name in names if not name.startswith(".")):
        for name in _directories_in(os.path.join(data_dir, topic)):
            if (core := core_of(name)) is not None:
                found.setdefault(core, []).append(topic)
    return found


def adopted_cores(data_dir: str, cores: int) -> list[int]:
    """Cores that have directories and no worker, rising."""
    return sorted(core for core in find_core_dirs(data_dir) if core >= cores)


def retired_cores(data_dir: str) -> list[int]:
    """Cores of which something is left under `retired`, of any topic, rising."""
    topics = [name for name in _directories_in(data_dir) if not name.startswith(".")]
    names = (name for topic in topics for name in _directories_in(os.path.join(data_dir, topic, RETIRED_NAME)))
    return sorted({core for name in names if (core := core_of(name)) is not None})


def core_of(name: str) -> int | None:
    """The core that a directory of a topic is named after."""
    match = _CORE_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def directories_of(data_dir: str, index: int, cores: int, topics: Iterable[str] | None = None) -> list[str]:
    """Every directory that worker `index` writes to; of all topics, or of those in `topics`."""
    return [
        os.path.join(data_dir, topic, f"core_{core}")
        for core, found in find_core_dirs(data_dir, topics).items()
        if owner_of(core, cores) == index
        for topic in found
    ]


def _directories_in(path: str) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DiskError("list", path, error.errno or 0) from error
