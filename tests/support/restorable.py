"""An archive that a data directory can be restored from, and restores on simulated disks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

import quiver_actors
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload, read_head, read_state
from quiver_actors.archive.node_state import NodeState, decode_state, encode_state
from quiver_actors.archive.restoring.directory import Restored, restore
from quiver_actors.archive.staged_bundles import StagedBundles, described
from quiver_actors.archive.state_reading import engine_directories, take_state
from quiver_actors.archive.topic_archive import Behind
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.protocol.segment_messages import SegmentInfo
from quiver_actors.errors import (
    DiskError,
)
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.core_file import decode_core
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.objects.directory_store import DirectoryStore
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.objects.opening import open_store
from tests.disks.simulated import SimDisk
from tests.support.archived import NODE, ArchiveWriter

PATHS = EnginePaths("default/core_0")
ACKED = 3
"""Bundles that the subscriber `reader` has acknowledged."""


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.arange(number, number + 4))})


def info(segment_seq: int, bundle_count: int) -> SegmentInfo:
    return SegmentInfo(segment_seq, bundle_count, 4, 1000, 0, 0)


def made_archive(base: Path) -> Path:
    """The archive of a store of four segments, of which the last was not archived, and the one before not known to the state. A stage
    of two bundles is prepared."""
    data, url = base / "data", f"file://{base}/objects"
    with (
        quiver_actors.open(data) as store,
        store.subscribe("holder", start="earliest"),
        store.subscribe("reader", start="earliest") as deliveries,
    ):
        for first in (0, 2):
            store.push_many([batch(n) for n in (first, first + 1)], producer="p", sequence=first)
            store.flush()
        for _ in range(ACKED):
            delivery = deliveries.get(timeout=30)
            assert delivery is not None
            delivery.ack()
        with store.stage("txn") as stage:
            stage.push_many([batch(50), batch(60)])
            stage.prepare()
    disk = PosixDisk(str(data))
    identity = decode_core(read_whole(disk, PATHS.core, 1000))
    stream = StreamKey("default", identity.incarnation.hex(), 0)
    behind = {stream: Behind([], [info(2, 1)], 3)}
    state = take_state(disk, NODE, engine_directories(disk, "default"), behind)
    staged, _ = StagedBundles(disk, open_store(url), Throttle(0, print)).upload(state, frozenset())
    state = described(state, staged, "")
    with quiver_actors.open(data) as store:
        for number in (4, 6):
            store.push_many([batch(number), batch(number + 1)], producer="p", sequence=number)
            store.flush()
    files = sorted((data / "default" / "core_0" / "segments").iterdir())
    segments = {int(path.name.partition(".")[0]): path.read_bytes() for path in files}
    assert sorted(segments) == [0, 1, 2, 3]
    writer = ArchiveWriter(url, incarnation=stream.incarnation)
    del segments[3]
    writer.archive(segments)
    writer.manifest.record_state(StateUpload(encode_state(state), state.taken_unix_ns))
    return base / "objects"


def objects_of(archive: Path) -> SimDisk:
    """The objects of an archive on a disk of their own."""
    disk = SimDisk()
    for path in archive.rglob("*"):
        if path.is_file():
            name = str(path.relative_to(archive))
            disk.make_directory(name.rpartition("/")[0])
            file = disk.create(name)
            file.write([path.read_bytes()], 0)
            file.fdatasync()
            file.close()
            disk.sync_directory(name.rpartition("/")[0])
    return disk


def store_on(disk: Disk) -> ObjectStore:
    return DirectoryStore(disk, "file:///objects")


def run(disk: Disk, store: ObjectStore) -> Restored:
    return restore(disk, store, NODE, at_once=1)


def tree(disk: Disk, path: str = ".") -> dict[str, bytes]:
    """The content of every file but those with random names and numbers of their own."""
    found: dict[str, bytes] = {}
    for name in disk.list_directory(path):
        below = name if path == "." else f"{path}/{name}"
        try:
            found[below] = read_whole(disk, below, 1 << 30)
        except DiskError:
            found |= tree(disk, below)
    found.pop("quiver.archive", None)
    return found


def state_in(store: ObjectStore) -> NodeState:
    head = read_head(store, NODE)
    assert head is not None
    assert head.state is not None
    return decode_state(read_state(store, head.state))


def put_state(store: ObjectStore, change: Mapping[str, object]) -> None:
    """Change the only engine of the state in the archive, as the owner of the archive may."""
    head = read_head(store, NODE)
    assert head is not None
    state = state_in(store)
    engines = tuple(msgspec.structs.replace(each, **change) for each in state.engines)
    content = encode_state(msgspec.structs.replace(state, engines=engines))
    ManifestWriter.own(store, NODE, head.owner, head.owner).record_state(StateUpload(content, state.taken_unix_ns))
