"""Reads the state of a node from its data directory: small files, each of which is replaced as a whole.

Guarantee: the files fit together whenever they are read. Progress comes first, then the notices that it relies on; prepared stages come
before the journal of those that were published.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping

import msgspec

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.node_state import (
    EngineState,
    KnownSegment,
    NodeState,
    PreparedStage,
)
from quiver_actors.archive.topic_archive import Behind, add_to_runs
from quiver_actors.base.core_dirs import RETIRED_NAME, core_of
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.cold_list import COLD_LIST_BYTES_MAX, decode_cold_list
from quiver_actors.store.files.core_count import CORES_FILE
from quiver_actors.store.files.core_file import CORE_NAME, decode_core
from quiver_actors.store.files.foreign_record import FOREIGN_NAME
from quiver_actors.store.files.paths import (
    PREPARED_SUFFIX,
    PRODUCERS_NAME,
    TRANSACTIONS_NAME,
    WAL_NAME,
    EnginePaths,
    segment_seq_of,
)
from quiver_actors.store.files.topic_list import CATALOGUE_NAME, decode_catalogue
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.staged.records import decode_prepared
from quiver_actors.store.subscriber.gaps import gaps_subscriber_of
from quiver_actors.store.subscriber.progress import subscriber_of
from quiver_actors.store.subscriber.progress_journal import current_content, decode_progress_journal
from quiver_actors.store.wal.layout import CURSOR_NAME
from quiver_actors.transactions.asking import OWN_LOG_NAME

logger = logging.getLogger("quiver.archive")

FILE_BYTES_MAX = 64 << 20


def engine_directories(disk: Disk, topic: str) -> list[str]:
    """The paths of a topic's directories, those of retired cores included."""
    found = []
    for parent in (topic, f"{topic}/{RETIRED_NAME}"):
        found += [f"{parent}/{name}" for name in disk.list_directory(parent) if core_of(name) is not None]
    return found


def take_state(disk: Disk, node: str, directories: Iterable[str], behind: Mapping[StreamKey, Behind] = {}) -> NodeState:
    """Read the state of a node from its data directory.

    Args:
        directories: of the engines that belong to it. One that cannot be read is left out, and logged.
        behind: what of streams is not archived.

    Raises:
        DiskError: what belongs to no engine cannot be read.
    """
    taken_unix_ns = time.time_ns()
    engines = [engine for path in directories if (engine := _taken(disk, path, behind)) is not None]
    names = [CATALOGUE_NAME, CORES_FILE]
    names += decision_names(disk)
    return NodeState(node=node, taken_unix_ns=taken_unix_ns, files=read_files(disk, "", names), engines=tuple(engines))


def decision_names(disk: Disk) -> list[str]:
    """The paths of the decisions in the node's own log. Raises DiskError."""
    return [f"{OWN_LOG_NAME}/{name}" for name in disk.list_directory(OWN_LOG_NAME) if name.endswith(".json")]


def with_unread(state: NodeState, former: NodeState | None, topics: Collection[str]) -> NodeState:
    """The state with those engines of a former one that could not be read now, as while a disk is not mounted: what a restore needs of them
    is what was known last. Pure.

    Args:
        topics: those that are archived. An engine of a topic that was created anew since does not come back.
    """
    if former is None:
        return state
    before, now = _topic_incarnations(former), _topic_incarnations(state)
    same = {topic for topic in topics if topic in now and now[topic] == before.get(topic)}
    paths = {each.directory for each in state.engines}
    streams = {(each.topic, each.incarnation, each.core) for each in state.engines}
    unread = [
        each
        for each in former.engines
        if each.topic in same
        and each.directory not in paths
        and (each.topic, each.incarnation, each.core) not in streams
    ]
    return msgspec.structs.replace(state, engines=(*state.engines, *unread)) if unread else state


def _topic_incarnations(state: NodeState) -> dict[str, str]:
    content = state.files.get(CATALOGUE_NAME)
    try:
        topics = {} if content is None else decode_catalogue(content).topics
    except FormatError:
        return {}
    return {name: each.incarnation for name, each in topics.items()}


def _taken(disk: Disk, directory: str, behind: Mapping[StreamKey, Behind]) -> EngineState | None:
    """The state of one directory; None where it has no identity yet, or cannot be read."""
    try:
        return _take_engine(disk, directory, behind)
    except DiskError as error:
        logger.warning("quiver.archive.state_unread path=%s error=%s", directory, error)
        return None


def _take_engine(disk: Disk, directory: str, behind: Mapping[StreamKey, Behind]) -> EngineState | None:
    """The state of one directory; None where it has no identity yet."""
    paths = EnginePaths(directory)
    identity = read_file(disk, paths.core)
    try:
        core = None if identity is None else decode_core(identity)
    except DAMAGE as error:
        logger.warning("quiver.archive.state_without_core path=%s error=%s", paths.core, error)
        core = None
    if core is None or identity is None:
        return None
    topic = directory.partition("/")[0]
    stream = StreamKey(topic, core.incarnation.hex(), core.core_id)
    known = behind.get(stream, Behind())
    # Before the journal: a stage that is published meanwhile is in both, and not in neither.
    prepared = tuple(_prepared(disk, paths))
    files = {**_read_progress(disk, paths), **_read_others(disk, paths), CORE_NAME: identity}
    return EngineState(
        topic=topic,
        core=core.core_id,
        directory=directory,
        incarnation=stream.incarnation,
        files=files,
        on_disk=_segments_on_disk(disk, paths),
        unarchived=tuple(
            sorted(
                (
                    *(KnownSegment(info.segment_seq, info.bundle_count, True) for info in known.sealed),
                    *(KnownSegment(info.segment_seq, info.bundle_count, False) for info in known.unsealed),
                ),
                key=lambda each: each.segment_seq,
            )
        ),
        next_segment_seq=known.next_segment_seq,
        prepared=prepared,
    )


def _read_progress(disk: Disk, paths: EnginePaths) -> dict[str, bytes]:
    """Progress as its journal has it, then the notices that it relies on."""
    journal = {}
    content = read_file(disk, paths.progress_journal)
    if content is not None:
        with contextlib.suppress(FormatError):  # without the journal, the files alone are right, and older
            journal = decode_progress_journal(content).latest
    names = [name for name in disk.list_directory(paths.root) if subscriber_of(name) is not None]
    progress = read_files(disk, paths.root, names)
    found = {
        name: current_content(content, journal.get(subscriber_of(name) or "")) for name, content in progress.items()
    }
    notices = [name for name in disk.list_directory(paths.root) if gaps_subscriber_of(name) is not None]
    return found | read_files(disk, paths.root, notices)


def _read_others(disk: Disk, paths: EnginePaths) -> dict[str, bytes]:
    names = [FOREIGN_NAME, TRANSACTIONS_NAME, PRODUCERS_NAME, f"{WAL_NAME}/{CURSOR_NAME}"]
    return read_files(disk, paths.root, names)


def _segments_on_disk(disk: Disk, paths: EnginePaths) -> tuple[tuple[int, int], ...]:
    """The numbers of sealed segments, those on the cold disk included: one that moves there meanwhile is in either."""
    found = {segment_seq_of(name) for name in disk.list_directory(paths.segments)} - {None}
    content = read_file(disk, paths.cold, COLD_LIST_BYTES_MAX)
    if content is not None:
        with contextlib.suppress(FormatError):
            found |= decode_cold_list(content).segments.keys()
    return add_to_runs((), sorted(each for each in found if each is not None))


def prepared_numbers(disk: Disk, directory: str) -> list[int]:
    """The numbers of the prepared stages of a directory. Raises DiskError."""
    names = disk.list_directory(EnginePaths(directory).staged)
    digits = [name.removesuffix(PREPARED_SUFFIX) for name in names if name.endswith(PREPARED_SUFFIX)]
    return [int(each) for each in digits if each.isdecimal()]


def is_awaited(disk: Disk, directory: str, number: int) -> bool:
    """Whether somebody waits until a prepared stage is archived. Raises DiskError."""
    content = read_file(disk, EnginePaths(directory).prepared(number))
    try:
        return content is not None and decode_prepared(content).is_awaited
    except FormatError:
        return False  # the node's next start finds the damage


def _prepared(disk: Disk, paths: EnginePaths) -> Iterator[PreparedStage]:
    for number in prepared_numbers(disk, paths.root):
        content = read_file(disk, paths.prepared(number))
        if content is None:
            continue
        with contextlib.suppress(FormatError):
            record = decode_prepared(content)
            bundles = sum(part.bundles for part in record.parts)
            yield PreparedStage(record.number, record.order.txn_id, record.order.epoch, bundles, content)


def read_files(disk: Disk, directory: str, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of those of some small files that are there, by name; `directory` may be empty. Raises DiskError."""
    found = {name: read_file(disk, f"{directory}/{name}" if directory else name) for name in names}
    return {name: content for name, content in found.items() if content is not None}


def read_file(disk: Disk, path: str, size_bytes_max: int = FILE_BYTES_MAX) -> bytes | None:
    """The content of a small file; None where there is none. Raises DiskError."""
    try:
        return read_whole(disk, path, size_bytes_max)
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        return None
