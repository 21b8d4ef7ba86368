"""The process of the archiver: `python -m quiver_actors.archive`, started by the node with its settings as JSON on the command line.

It is started as a program of its own because `obstore` does not survive a fork. It ends when the node does.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from functools import partial

import msgspec

from quiver_actors.archive.archiver import Archiver, connect_as_archiver
from quiver_actors.archive.reading.segment_files import SegmentFiles
from quiver_actors.archive.retired import retired_cores
from quiver_actors.archive.serving import ArchiveReads, ArchiveServer
from quiver_actors.base.allocator import give_back_blocks
from quiver_actors.base.archive_status import ARCHIVE_STATUS_FILE, ArchiveStatus
from quiver_actors.base.bell import Bell
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.descriptors import want_descriptors
from quiver_actors.base.protocol.archive_messages import ARCHIVE_SOCKET
from quiver_actors.client import Client
from quiver_actors.errors import QuiverError
from quiver_actors.node.archiver_process import ArchiverTask
from quiver_actors.node.topics.catalogue import read_catalogue
from quiver_actors.node.worker.listener import Listener
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from quiver_actors.supervisor.log import configure_logging, log_event
from quiver_actors.supervisor.spawn import die_with
from quiver_actors.transactions.asking import OWN_LOG_NAME

_DESCRIPTORS_WANTED = 16_384
_KEPT_BLOCK_BYTES = 256 << 10
"""Larger blocks of memory, as those of segments and packs, are given back when they are freed."""


def main(text: str) -> int:
    """Archive until SIGTERM, or until the node's process ends. Returns the exit code."""
    task = msgspec.json.decode(text, type=ArchiverTask)
    die_with(task.node_pid)
    configure_logging(sys.stderr, task.log_level, task.log_format)
    want_descriptors(_DESCRIPTORS_WANTED)
    give_back_blocks(_KEPT_BLOCK_BYTES)
    try:
        store = open_store(
            task.settings.url,
            timeout_seconds=task.settings.request_timeout_ns / 1e9,
            is_single_writer=task.settings.single_writer,
        )
    except QuiverError as error:
        log_event("archive.unusable", {"error": str(error)}, logging.ERROR)
        return 1
    data, run = PosixDisk(task.data_dir), PosixDisk(task.run_dir)
    files = SegmentFiles(store, task.node, task.data_dir, task.settings.cache_size_bytes)

    def topics() -> dict[str, TopicSettings]:
        catalogue = read_catalogue(data)
        return {} if catalogue is None else {name: each.settings for name, each in catalogue.topics.items()}

    def client() -> Client:
        return connect_as_archiver(task.run_dir, task.settings.request_timeout_ns / 1e9)

    def show(status: ArchiveStatus) -> None:
        status = msgspec.structs.replace(status, cached_bytes=files.cached_bytes)
        try:
            replace_file(run, task.run_dir, ARCHIVE_STATUS_FILE, msgspec.json.encode(status), task.gid)
        except (QuiverError, OSError) as error:
            log_event("archive.status_not_written", {"error": str(error)}, logging.WARNING)

    own_log = os.path.join(task.data_dir, OWN_LOG_NAME)
    archiver = Archiver(task.node, task.settings, data, store, client, topics, show, Bell(task.bell), own_log)
    server = serve_reads(task, store, data, files)
    signal.signal(signal.SIGTERM, lambda number, frame: archiver.stop())
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal sends it to the node too, which ends this process when it is done
    archiver.run()
    if server is not None:
        server.close()
    store.close()
    return 0


def replace_file(disk: Disk, directory: str, path: str, content: bytes, gid: int | None) -> None:
    """Replace a file as a whole, without a sync, which pushes would wait for: a run directory need not outlive the machine.

    Args:
        directory: the root of `disk`.
        gid: group that may read the file: users of topics wait for what it says.
    """
    file = disk.create(f"{path}.tmp")
    try:
        file.write([content], 0)
    finally:
        file.close()
    if gid is not None:
        os.chown(os.path.join(directory, f"{path}.tmp"), -1, gid)
    disk.rename(f"{path}.tmp", path)


def serve_reads(task: ArchiverTask, store: ObjectStore, data: Disk, files: SegmentFiles) -> ArchiveServer | None:
    """Let users of the node read what is archived; None where the socket cannot be made, which is logged."""
    try:
        listener = Listener(task.run_dir, ARCHIVE_SOCKET, task.gid)
    except OSError as error:
        log_event("archive.not_served", {"error": str(error)}, logging.ERROR)
        return None
    reads = ArchiveReads(store, task.node, lambda: read_catalogue(data), files, partial(retired_cores, data))
    server = ArchiveServer(listener, reads)
    server.start()
    return server


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
