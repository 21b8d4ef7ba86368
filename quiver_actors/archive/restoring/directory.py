"""Fills a data directory from the archive of a node.

Guarantees:
- A directory that holds anything else is refused, and nothing of it is changed.
- The version file says from the first step to the last that the directory is not whole, so no program opens it before it is.
- Cut off anywhere, the same restore into the same directory goes on: whole segments stay, everything else is written anew.
- The archive belongs to this directory before anything is read for it: the dead node, should it come back, records nothing more.

Owner: the process of `quiver restore`, which holds the directory's lock.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from quiver_actors.archive.checking import is_whole, read_segment
from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest import Owner, Segment, key_of
from quiver_actors.archive.manifest_store import ManifestWriter, StateUpload
from quiver_actors.archive.node_state import encode_state
from quiver_actors.archive.ownership import OwnRecord, Place, read_record, write_record
from quiver_actors.archive.restoring.plan import EnginePlan, Loss, Plan, read_plan
from quiver_actors.archive.restoring.small_files import renumbered, with_keys, with_notices, without_stages
from quiver_actors.archive.restoring.stages import NOT_ARCHIVED, LostStage, decide_lost, write_stages
from quiver_actors.archive.state_reading import read_file
from quiver_actors.errors import FormatError, StorageFull, UsageError
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.files.data_version import UNFINISHED_RESTORE, VERSION_FILE, encode_data_version
from quiver_actors.store.files.paths import TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.store.objects.errors import ArchiveFenced
from quiver_actors.store.objects.object_store import ObjectMissing, ObjectStore
from quiver_actors.store.recovery.stored_keys import keys_in_segment
from quiver_actors.store.staged.keys import KeyRun

FETCHES_AT_ONCE = 8
"""Segments that are fetched, and held in memory, at a time."""
_LOST_AND_FOUND = "lost+found"
"""What a file system has in its root from the beginning."""
RESERVE_BYTES = 64 << 20
"""Room that a node needs to start, beside the segments."""


class Damaged(NamedTuple):
    """An archived segment that is missing in the store or is not what was uploaded."""

    stream: StreamKey
    segment_seq: int
    problem: str


class Restored(NamedTuple):
    """The outcome of a restore."""

    plan: Plan
    epoch: int
    segment_count: int
    size_bytes: int
    damaged: list[Damaged]
    lost_stages: list[LostStage]
    """Prepared stages that do not come back, each with the outcome of its transaction."""

    @property
    def damaged_stages(self) -> list[LostStage]:
        """Lost stages whose record or data is damaged or missing in the store."""
        return [each for each in self.lost_stages if each.problem != NOT_ARCHIVED]


def check_directory(disk: Disk, beside: Iterable[str]) -> bool:
    """Check that a directory may be restored into.

    Args:
        beside: names that the caller itself has made there.

    Returns:
        Whether an earlier restore into it was cut off.

    Raises:
        UsageError: something else is in it. DiskError: it cannot be read.
    """
    if read_file(disk, VERSION_FILE) == UNFINISHED_RESTORE:
        return True
    # The version file is the first; a restore that was cut off in front of it has left its temporary name.
    mine = {*beside, f"{VERSION_FILE}{TEMPORARY_SUFFIX}", _LOST_AND_FOUND}
    names = sorted(set(disk.list_directory(".")) - mine)
    if names:
        raise UsageError(
            f"the data directory is not empty: {', '.join(names[:3])}{' and more' if len(names) > 3 else ''} is there. A restore takes "
            "an empty or a new directory: name another one"
        )
    return False


def restore(
    disk: Disk,
    store: ObjectStore,
    node: str,
    note: Callable[[int], None] = lambda _: None,
    *,
    beside: Iterable[str] = (),
    at_once: int = FETCHES_AT_ONCE,
) -> Restored:
    """Rebuild a data directory, and make it the owner of the node's archive.

    Args:
        disk: the data directory, which nobody else has open.
        note: told the size of each segment that is there.
        beside: names in the directory that are no content of it.

    Raises:
        UsageError: the directory is not empty, or there is nothing to restore.
        StorageFull, DiskError: the disk has no room, or fails. ArchiveError: the store fails. All of them: the same call goes on.
        ArchiveFenced: another directory has taken over meanwhile.
    """
    is_begun = check_directory(disk, beside)
    record = read_record(disk)
    plan = read_plan(store, node, record.directory)
    _check_room(disk, plan)
    if not is_begun:
        write_atomically(disk, VERSION_FILE, UNFINISHED_RESTORE)
        disk.sync_directory(".")
    writer = _own(disk, store, node, record, plan.owner)
    plan = _with_state(writer, read_plan(store, node, record.directory), record.directory)
    damaged: list[Damaged] = []
    lost = plan.lost_stages
    _make_directories(disk, plan)
    for engine in plan.engines:
        unstaged = write_stages(disk, store, node, engine.state)
        damaged += _write_engine(disk, store, node, engine, unstaged, note, at_once)
        lost += unstaged
    writer.check_owner()
    files = dict(plan.state.files)
    lost = decide_lost(lost, files)
    _write_files(disk, "", files)
    write_atomically(disk, VERSION_FILE, encode_data_version())
    disk.sync_directory(".")
    count = sum(len(each.segments) for each in plan.engines)
    return Restored(plan, writer.head.owner.epoch, count, plan.size_bytes, damaged, lost)


def _check_room(disk: Disk, plan: Plan) -> None:
    """Raises StorageFull: the segments do not fit."""
    free_bytes, wanted_bytes = disk.free_bytes("."), plan.size_bytes + RESERVE_BYTES
    there = sum(_size_of(disk, engine, each) for engine in plan.engines for each in engine.segments)
    if wanted_bytes - there > free_bytes:
        raise StorageFull(
            f"the data directory's disk has {free_bytes:,} bytes free, and the archived segments take {wanted_bytes - there:,} more "
            "(with room for a start): make room, or restore onto a larger disk. Nothing was changed in the archive"
        )


def _size_of(disk: Disk, engine: EnginePlan, segment: Segment) -> int:
    path = EnginePaths(engine.state.directory).segment(segment.segment_seq)
    return segment.size_bytes if disk.exists(path) else 0


# --- the archive ---------------------------------------------------------------------------------------------------------


def _own(disk: Disk, store: ObjectStore, node: str, record: OwnRecord, present: Owner) -> ManifestWriter:
    """Make the directory the owner of the archive; it is that already where an earlier restore was cut off behind this."""
    if not all(each.is_of(store.url, node) for each in record.places):
        known = record.places[0]
        raise UsageError(
            f"the data directory is being restored from {known.url}, node {known.node}: name these, or another directory"
        )
    owner = present
    if present.directory != record.directory:
        owner = Owner(
            epoch=present.epoch + 1,
            directory=record.directory,
            start=os.urandom(12).hex(),
            since_unix_ns=time.time_ns(),
        )
    write_record(disk, record.with_place(Place(url=store.url, node=node, intent=owner)))
    writer = ManifestWriter.own(store, node, owner, present)
    write_record(disk, record.with_place(Place(url=store.url, node=node, owner=owner)))
    return writer


def _with_state(writer: ManifestWriter, plan: Plan, directory: str) -> Plan:
    """The plan with the state that the directory begins with, which the archive has from here on. A later restore goes on from its
    numbers, whatever this directory uses of them."""
    if plan.owner != writer.head.owner:
        raise ArchiveFenced("another data directory has taken over the archive meanwhile: this one stays unfinished")
    if plan.state.restored_into == directory:
        return plan
    through = {(each.state.topic, each.state.core): each.archived_through for each in plan.engines}
    states = [
        renumbered(
            each,
            {core: seq for (topic, core), seq in through.items() if topic == each.state.topic},
            plan.state.taken_unix_ns,
        )
        for each in plan.engines
    ]
    state = msgspec.structs.replace(plan.state, engines=tuple(states), restored_into=directory)
    writer.record_state(StateUpload(encode_state(state), state.taken_unix_ns))
    engines = [each._replace(state=own) for each, own in zip(plan.engines, states, strict=True)]
    return plan._replace(head=writer.head, state=state, engines=engines)


# --- the directory -------------------------------------------------------------------------------------------------------


def _make_directories(disk: Disk, plan: Plan) -> None:
    for engine in plan.engines:
        paths = EnginePaths(engine.state.directory)
        for path in (paths.root, paths.wal, paths.segments, paths.staged):
            disk.make_directory(path)


def _write_engine(
    disk: Disk,
    store: ObjectStore,
    node: str,
    plan: EnginePlan,
    unstaged: list[LostStage],
    note: Callable[[int], None],
    at_once: int,
) -> list[Damaged]:
    """Write one topic on one core; returns what of it is damaged in the store.

    Args:
        unstaged: its stages that were to come back and do not.
    """
    paths = EnginePaths(plan.state.directory)
    stream = StreamKey(plan.state.topic, plan.state.incarnation, plan.state.core)
    damaged = []
    with ThreadPoolExecutor(at_once) as pool:
        for first in range(0, len(plan.segments), at_once):
            batch = plan.segments[first : first + at_once]
            wanted = [each for each in batch if not _is_there(disk, paths, each)]
            fetched = pool.map(lambda each: _fetch(store, key_of(node, stream, each), each), wanted)
            for segment, content in zip(wanted, fetched, strict=True):
                if isinstance(content, str):
                    damaged.append(Damaged(stream, segment.segment_seq, content))
                else:
                    write_atomically(disk, paths.segment(segment.segment_seq), content)
            for segment in batch:
                note(segment.size_bytes)
    disk.sync_directory(paths.segments)
    lost = {each.segment_seq for each in damaged}
    losses = [
        Loss(each.segment_seq, each.bundle_count, is_sealed=True) for each in plan.segments if each.segment_seq in lost
    ]
    there = [each for each in plan.segments if each.segment_seq not in lost]
    files = with_keys(plan.state.files, _keys(disk, paths, plan, there))
    files = without_stages(files, [(each.stage, each.problem) for each in unstaged])
    if not plan.is_retired:
        files = with_notices(files, sorted([*plan.losses, *losses]))
    _write_files(disk, paths.root, files)
    return damaged


def _is_there(disk: Disk, paths: EnginePaths, segment: Segment) -> bool:
    """Whether an earlier restore, which was cut off, has written the segment whole."""
    path = paths.segment(segment.segment_seq)
    if not disk.exists(path):
        return False
    file = disk.open_read(path)
    try:
        content = file.read(segment.size_bytes + 1, 0)
    finally:
        file.close()
    return is_whole(segment, content)


def _fetch(store: ObjectStore, key: str, segment: Segment) -> bytes | str:
    """The segment, proven; or what is wrong with it, if it is so twice."""
    try:
        return read_segment(store, key, segment)
    except (ObjectMissing, FormatError):
        pass
    try:
        return read_segment(store, key, segment)
    except (ObjectMissing, FormatError) as error:
        return str(error)


def _keys(
    disk: Disk, paths: EnginePaths, plan: EnginePlan, segments: Iterable[Segment]
) -> Iterator[tuple[str, KeyRun]]:
    """The keys of producers in segments that the state may not know."""
    for segment in segments:
        if segment.segment_seq < plan.keys_from:
            continue
        file = disk.open_read(paths.segment(segment.segment_seq))
        try:
            yield from keys_in_segment(file.read, file.size(), segment.segment_seq)
        except FormatError:
            continue  # of another writer, which writes no keys
        finally:
            file.close()


def _write_files(disk: Disk, directory: str, files: dict[str, bytes]) -> None:
    """Write small files by their path in a directory."""
    changed = set()
    for name, content in files.items():
        path = f"{directory}/{name}" if directory else name
        parent = path.rpartition("/")[0] or "."
        disk.make_directory(parent)
        write_atomically(disk, path, content)
        changed.add(parent)
    for parent in sorted(changed):
        disk.sync_directory(parent)
