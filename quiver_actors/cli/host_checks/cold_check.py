"""Looks whether the cold disks of a node's topics are there, and whether what lies there is this data directory's. Changes nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from quiver_actors.base.config import NodeSettings
from quiver_actors.base.core_dirs import find_core_dirs
from quiver_actors.errors import DiskError, QuiverError
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.cold_directory import ColdDirectory, posix_cold_disk
from quiver_actors.store.files.cold_list import COLD_LIST_BYTES_MAX, decode_cold_list
from quiver_actors.store.files.cold_owner import read_hot_owner
from quiver_actors.store.files.paths import EnginePaths


def cold_errors(settings: NodeSettings) -> list[str]:
    """A sentence for each core of a topic whose cold segments cannot be read or changed now; none where nothing lies on a cold disk."""
    data_dir, roots = settings.data_dir, {topic: own.tier.cold_dir for topic, own in settings.all_topics().items()}
    if not os.access(data_dir, os.R_OK | os.X_OK):
        return []
    with contextlib.closing(PosixDisk(data_dir)) as disk:
        return [
            f"topic {topic!r}, core {core}: {error}"
            for core, topics in find_core_dirs(data_dir).items()
            for topic in topics
            for error in _errors(disk, EnginePaths(f"{topic}/core_{core}"), roots.get(topic, ""))
        ]


def _errors(disk: Disk, paths: EnginePaths, root: str) -> Iterator[str]:
    try:
        found = decode_cold_list(read_whole(disk, paths.cold, COLD_LIST_BYTES_MAX))
    except QuiverError:
        return  # nothing was ever moved; or `quiver verify` tells of it
    if not found.segments:
        return
    directory = ColdDirectory(posix_cold_disk, root or found.root, paths, found.cold_id)
    try:
        with directory.opened() as cold:
            directory.prove_own(cold, read_hot_owner(disk, paths.cold_owner, found.cold_id))
    except DiskError as error:
        yield str(error)
