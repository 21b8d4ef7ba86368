"""Uploads the state of the node: what a restore needs beside the segments.

Guarantees:
- It only reads files in the data directory, each of which is replaced as a whole. Nothing waits for it, and no push does.
- The files fit together whenever they are read: progress first, then the notices that it relies on. Progress may be older than the
  segments (bundles are delivered once more), never newer than the notices.
- The first segment of a directory is recorded only after a state that knows the directory.
- A segment is recorded together with a state that has the decisions of its transaction, says where its stage was published, and does
  not call it prepared.
- A stage that is prepared is named by a state about a second later (`NAMES_INTERVAL_NS`), while the store answers; its bundles follow after
  the interval.

Owner: the archiver, on its one thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest_store import Addition, ManifestWriter, StateUpload, read_state
from quiver_actors.archive.node_state import (
    EngineState,
    KnownSegment,
    NodeState,
    PreparedStage,
    decode_state,
    encode_state,
)
from quiver_actors.archive.staged_bundles import (
    StagedBundles,
    described,
    keys_in,
    stream_of,
    with_unarchived,
    without_settled,
)
from quiver_actors.archive.topic_archive import Behind, TopicArchive, add_to_runs
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.core_dirs import RETIRED_NAME, core_of
from quiver_actors.base.units import SECOND_NS
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
from quiver_actors.store.files.topic_list import CATALOGUE_NAME
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import decode_prepared
from quiver_actors.store.subscriber.gaps import gaps_subscriber_of
from quiver_actors.store.subscriber.progress import subscriber_of
from quiver_actors.store.subscriber.progress_journal import current_content, decode_progress_journal
from quiver_actors.store.wal.layout import CURSOR_NAME
from quiver_actors.transactions.asking import OWN_LOG_NAME

logger = logging.getLogger("quiver.archive")

FILE_BYTES_MAX = 64 << 20
STATE_BYTES_USUAL = 64 << 20
"""A larger state is uploaded too, and logged."""
NAMES_INTERVAL_NS = SECOND_NS
"""How often stages are looked for that are prepared, and that the uploaded state does not name."""
THERE_INTERVAL_NS = 3600 * SECOND_NS
"""How often it is looked whether the store has the state still."""
_Shape = tuple[frozenset[str], frozenset[StreamKey], bytes]


class StateKeeper:
    """Uploads the state when it is due: after an interval if it has changed, and at once when topics or directories have.

    Args:
        disk: the data directory.
        throttle: hands out what is sent of prepared stages.
        own_log: path of the node's own decision log, as stages name it.
    """

    def __init__(
        self, disk: Disk, store: ObjectStore, interval_ns: int, throttle: Throttle | None = None, own_log: str = ""
    ) -> None:
        self._disk = disk
        self._store = store
        self._interval_ns = interval_ns
        self._own_log = own_log
        self._staged = StagedBundles(disk, store, throttle or Throttle(0, time.sleep))
        self._recorded: NodeState | None = None
        """The state that the archive has."""
        self._is_own = False
        """Whether this archiver has uploaded it, since it became the owner."""
        self._shape: _Shape | None = None
        """What the last upload was made of: another one is due when it changes."""
        self._due_ns = 0
        self._stages_due_ns = 0
        self._names_due_ns = 0
        self._there_due_ns = 0

    def covers(self, stream: StreamKey) -> bool:
        """Whether the uploaded state knows the directory of a stream."""
        return (
            self._is_own
            and self._recorded is not None
            and any(stream_of(each) == stream for each in self._recorded.engines)
        )

    def begin_again(self, writer: ManifestWriter) -> None:
        """Upload the state with the next call, whatever was uploaded: the archive has another owner now. Raises ArchiveError."""
        self._shape, self._is_own, self._stages_due_ns = None, False, 0
        try:
            self._recorded = (
                None if writer.head.state is None else decode_state(read_state(self._store, writer.head.state))
            )
        except FormatError as error:
            # A restore could not use it either.
            logger.warning("quiver.archive.state_unusable error=%s", error)
            self._recorded = None

    def keep(self, writer: ManifestWriter, archives: Mapping[str, TopicArchive]) -> None:
        """Upload the state if that is due.

        Raises:
            ArchiveError: the store or the manifest did not take it. DiskError: the data directory cannot be read.
        """
        if any(archive.behind is None for archive in archives.values()):
            return  # a state that names nothing unarchived would take the place of one that does
        self._check_there(writer)
        directories = [each for topic in archives for each in engine_directories(self._disk, topic)]
        behind = _not_archived(writer, archives)
        shape = frozenset(directories), frozenset(behind), read_file(self._disk, CATALOGUE_NAME) or b""
        now_ns = time.monotonic_ns()
        is_due = shape != self._shape or now_ns >= min(self._due_ns, self._stages_due_ns)
        if not is_due and not self._has_unnamed(directories, now_ns):
            return
        keys = self._upload_stages(writer, directories, now_ns)
        state = described(take_state(self._disk, writer.head.node, directories, behind), keys, self._own_log)
        if self._recorded is not None:
            state = with_unarchived(state, self._recorded, _archived_through(writer))
        if not (self._is_own and _is_same(state, self._recorded)):
            upload = self._upload_of(state)
            if len(upload.content) > STATE_BYTES_USUAL:
                logger.warning("quiver.archive.large_state bytes=%d", len(upload.content))
            left_over = () if self._is_own else self._staged.left_over(state.node, upload.named)
            writer.record_state(upload._replace(released=(*upload.released, *left_over)))
            self._recorded, self._is_own = state, True
            self._there_due_ns = now_ns + THERE_INTERVAL_NS
        self._shape, self._due_ns = shape, now_ns + self._interval_ns

    def _check_there(self, writer: ManifestWriter) -> None:
        """Have the state uploaded again that somebody has deleted, as a rule of the bucket does with what is old. Raises ArchiveError."""
        now_ns, ref = time.monotonic_ns(), writer.head.state
        if not self._is_own or ref is None or now_ns < self._there_due_ns:
            return
        found = self._store.head(ref.key)
        if found is None or found.size_bytes != ref.size_bytes:
            logger.warning("quiver.archive.state_gone key=%s", ref.key)
            self._is_own, self._shape = False, None
        self._there_due_ns = now_ns + THERE_INTERVAL_NS

    def _has_unnamed(self, directories: Iterable[str], now_ns: int) -> bool:
        """Whether a stage is prepared that the recorded state does not know: a restore could not tell that it is lost. It is looked for
        once in `NAMES_INTERVAL_NS`."""
        if now_ns < self._names_due_ns:
            return False
        self._names_due_ns = now_ns + NAMES_INTERVAL_NS
        engines = () if self._recorded is None else self._recorded.engines
        named = {(each.directory, stage.number) for each in engines for stage in each.prepared}
        return any((path, number) not in named for path in directories for number in prepared_numbers(self._disk, path))

    def _upload_stages(self, writer: ManifestWriter, directories: Iterable[str], now_ns: int) -> frozenset[str]:
        """Upload prepared stages once in each interval. Returns the keys of their parts in the store."""
        known = frozenset() if self._recorded is None else keys_in(self._recorded)
        if now_ns < self._stages_due_ns:
            return known
        known, is_all = self._staged.upload(take_state(self._disk, writer.head.node, directories), known)
        self._stages_due_ns = now_ns + self._interval_ns if is_all else now_ns
        return known

    def _upload_of(self, state: NodeState) -> StateUpload:
        named = keys_in(state)
        former = frozenset() if self._recorded is None else keys_in(self._recorded)
        return StateUpload(encode_state(state), state.taken_unix_ns, named, sorted(former - named))

    def record(self, writer: ManifestWriter, stream: StreamKey, addition: Addition) -> None:
        """Record segments and holes of a stream, in one step with what the state has to say about their transactions.

        Raises:
            As `ManifestWriter.commit`. DiskError: the data directory cannot be read.
        """
        state = self._settled(stream, addition.archived_through)
        writer.commit({stream: addition}, None if state is None else self._upload_of(state))
        if state is not None:
            self._recorded = state

    def _settled(self, stream: StreamKey, archived_through: int) -> NodeState | None:
        """The recorded state as it is to be beside segments of the stream; None if it is that already.

        It lacks stages that were dropped or are in these segments, and has the decisions that were made and the places that were published
        to since.
        """
        recorded = self._recorded
        if recorded is None:
            return None
        names = [name for name in decision_names(self._disk) if name not in recorded.files]
        engines = tuple(
            self._settled_engine(each, archived_through) if stream_of(each) == stream else each
            for each in recorded.engines
        )
        if not names and engines == recorded.engines:
            return None
        files = {**recorded.files, **_read_files(self._disk, "", names)}
        return msgspec.structs.replace(recorded, engines=engines, files=files)

    def _settled_engine(self, engine: EngineState, archived_through: int) -> EngineState:
        # What is not prepared any more was recorded in the journal before: so the journal is read behind.
        gone = [each.number for each in engine.prepared if not self._staged.is_prepared(engine, each.number)]
        content = read_file(self._disk, EnginePaths(engine.directory).transactions)
        if content is not None:
            engine = msgspec.structs.replace(engine, files={**engine.files, TRANSACTIONS_NAME: content})
        return without_settled(engine, gone, archived_through)


def _archived_through(writer: ManifestWriter) -> dict[StreamKey, int]:
    return {each.key: each.archived_through for each in writer.head.streams}


def _not_archived(writer: ManifestWriter, archives: Mapping[str, TopicArchive]) -> dict[StreamKey, Behind]:
    """What workers held at the last look, without what the manifest has by now."""
    found = {}
    for archive in archives.values():
        for stream, behind in (archive.behind or {}).items():
            ref = writer.head.stream(stream)
            through = -1 if ref is None else ref.archived_through
            sealed = [info for info in behind.sealed if info.segment_seq > through]
            found[stream] = behind._replace(sealed=sealed)
    return found


def _is_same(state: NodeState, other: NodeState | None) -> bool:
    return other is not None and msgspec.structs.replace(state, taken_unix_ns=other.taken_unix_ns) == other


# --- reading the data directory ------------------------------------------------------------------------------------------


def engine_directories(disk: Disk, topic: str) -> list[str]:
    """The paths of a topic's directories, those of retired cores included."""
    found = []
    for parent in (topic, f"{topic}/{RETIRED_NAME}"):
        found += [f"{parent}/{name}" for name in disk.list_directory(parent) if core_of(name) is not None]
    return found


def take_state(disk: Disk, node: str, directories: Iterable[str], behind: Mapping[StreamKey, Behind] = {}) -> NodeState:
    """Read the state of a node from its data directory.

    Args:
        directories: of the engines that belong to it.
        behind: what of streams is not archived.

    Raises:
        DiskError: something cannot be read.
    """
    taken_unix_ns = time.time_ns()
    engines = [engine for path in directories if (engine := _take_engine(disk, path, behind)) is not None]
    names = [CATALOGUE_NAME, CORES_FILE]
    names += decision_names(disk)
    return NodeState(node=node, taken_unix_ns=taken_unix_ns, files=_read_files(disk, "", names), engines=tuple(engines))


def decision_names(disk: Disk) -> list[str]:
    """The paths of the decisions in the node's own log. Raises DiskError."""
    return [f"{OWN_LOG_NAME}/{name}" for name in disk.list_directory(OWN_LOG_NAME) if name.endswith(".json")]


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
    progress = _read_files(disk, paths.root, names)
    found = {
        name: current_content(content, journal.get(subscriber_of(name) or "")) for name, content in progress.items()
    }
    notices = [name for name in disk.list_directory(paths.root) if gaps_subscriber_of(name) is not None]
    return found | _read_files(disk, paths.root, notices)


def _read_others(disk: Disk, paths: EnginePaths) -> dict[str, bytes]:
    names = [FOREIGN_NAME, TRANSACTIONS_NAME, PRODUCERS_NAME, f"{WAL_NAME}/{CURSOR_NAME}"]
    return _read_files(disk, paths.root, names)


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


def _prepared(disk: Disk, paths: EnginePaths) -> Iterator[PreparedStage]:
    for number in prepared_numbers(disk, paths.root):
        content = read_file(disk, paths.prepared(number))
        if content is None:
            continue
        with contextlib.suppress(FormatError):
            record = decode_prepared(content)
            bundles = sum(part.bundles for part in record.parts)
            yield PreparedStage(record.number, record.order.txn_id, record.order.epoch, bundles, content)


def _read_files(disk: Disk, directory: str, names: Iterable[str]) -> dict[str, bytes]:
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
