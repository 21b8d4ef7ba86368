"""Uploads the state of the node: what a restore needs beside the segments.

Guarantees:
- It only reads files in the data directory, each of which is replaced as a whole. Nothing waits for it, and no push does.
- The files fit together whenever they are read: progress first, then the notices that it relies on. Progress may be older than the
  segments (bundles are delivered once more), never newer than the notices.
- What cannot be read now of a topic that is still the same stays as the last state had it: a restore needs it all the more.
- The first segment of a directory is recorded only after a state that knows the directory.
- A segment is recorded together with a state that has the decisions of its transaction, says where its stage was published, and does
  not call it prepared.
- A stage that is prepared is named by a state about a second later (`NAMES_INTERVAL_NS`), while the store answers; its bundles follow after
  the interval, or at once where somebody waits for them.

Owner: the archiver, on its one thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

import msgspec

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.manifest_store import Addition, ManifestWriter, StateUpload, read_state
from quiver_actors.archive.node_state import (
    EngineState,
    NodeState,
    decode_state,
    encode_state,
)
from quiver_actors.archive.staged_bundles import (
    StagedBundles,
    described,
    journal_of,
    keys_in,
    stream_of,
    with_unarchived,
    without_settled,
)
from quiver_actors.archive.state_reading import (
    decision_names,
    engine_directories,
    is_awaited,
    prepared_numbers,
    read_file,
    read_files,
    take_state,
    with_unread,
)
from quiver_actors.archive.topic_archive import Behind, TopicArchive
from quiver_actors.archive.uploads import Throttle
from quiver_actors.base.units import SECOND_NS
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import (
    TRANSACTIONS_NAME,
    EnginePaths,
)
from quiver_actors.store.files.topic_list import CATALOGUE_NAME
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import JournalRecord

logger = logging.getLogger("quiver.archive")

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
        self._looked_at: set[tuple[str, int]] = set()
        """Stages, by directory and number, of which is known whether somebody waits for them; of those one upload was begun at once."""
        self._there_due_ns = 0

    @property
    def archived_stages(self) -> dict[StreamKey, tuple[int, ...]]:
        """The numbers of prepared stages whose bundles the archive has, by stream. Any thread may ask."""
        recorded = self._recorded
        engines = () if recorded is None or not self._is_own else recorded.engines
        found = {stream_of(each): tuple(s.number for s in each.prepared if s.is_archived) for each in engines}
        return {stream: numbers for stream, numbers in found.items() if numbers}

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
        looked_at = [topic for topic, archive in archives.items() if archive.behind is not None]
        if archives and not looked_at:
            return
        self._check_there(writer)
        directories = [each for topic in looked_at for each in self._directories_of(topic)]
        behind = _not_archived(writer, archives)
        shape = frozenset(directories), frozenset(behind), read_file(self._disk, CATALOGUE_NAME) or b""
        now_ns = time.monotonic_ns()
        is_due = shape != self._shape or now_ns >= min(self._due_ns, self._stages_due_ns)
        if not is_due and not self._has_unnamed(directories, now_ns):
            return
        keys = self._upload_stages(writer, directories, now_ns)
        # Of what nobody has looked at, a state that names nothing unarchived would take the place of one that does.
        taken = take_state(self._disk, writer.head.node, directories, behind)
        state = described(with_unread(taken, self._recorded, archives.keys()), keys, self._own_log)
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

    def _directories_of(self, topic: str) -> list[str]:
        """The directories of a topic; none if they cannot be listed now."""
        try:
            return engine_directories(self._disk, topic)
        except DiskError as error:
            logger.warning("quiver.archive.state_unread path=%s error=%s", topic, error)
            return []

    def _prepared_in(self, path: str) -> list[int]:
        try:
            return prepared_numbers(self._disk, path)
        except DiskError:
            return []  # `take_state` tells

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
        """Whether a stage is prepared that the recorded state does not know: a restore could not tell that it is lost. Or whether one is
        not archived for which somebody waits: then its bundles are due. It is looked for once in `NAMES_INTERVAL_NS`."""
        if now_ns < self._names_due_ns:
            return False
        self._names_due_ns = now_ns + NAMES_INTERVAL_NS
        engines = () if self._recorded is None else self._recorded.engines
        named = {(each.directory, stage.number): stage for each in engines for stage in each.prepared}
        found = {(path, number) for path in directories for number in self._prepared_in(path)}
        self._looked_at &= found
        new = found - self._looked_at - {place for place, stage in named.items() if stage.is_archived}
        self._looked_at |= new
        if any(is_awaited(self._disk, *place) for place in new):
            self._stages_due_ns = 0
            return True
        return not found <= named.keys()

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

    def published(self, stream: StreamKey) -> list[tuple[int, int]]:
        """The first and the last segment of each stage of a stream that was published lately. Raises DiskError."""
        engines = () if self._recorded is None else self._recorded.engines
        engine = next((each for each in engines if stream_of(each) == stream), None)
        journal = JournalRecord() if engine is None else journal_of(self._with_journal(engine))
        return [(each.first_segment_seq, each.last_segment_seq) for each in journal.published]

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
        files = {**recorded.files, **read_files(self._disk, "", names)}
        return msgspec.structs.replace(recorded, engines=engines, files=files)

    def _settled_engine(self, engine: EngineState, archived_through: int) -> EngineState:
        # What is not prepared any more was recorded in the journal before: so the journal is read behind.
        gone = [each.number for each in engine.prepared if not self._staged.is_prepared(engine, each.number)]
        return without_settled(self._with_journal(engine), gone, archived_through)

    def _with_journal(self, engine: EngineState) -> EngineState:
        """The state of a directory with the journal of its stages as it is now."""
        content = read_file(self._disk, EnginePaths(engine.directory).transactions)
        if content is None:
            return engine
        return msgspec.structs.replace(engine, files={**engine.files, TRANSACTIONS_NAME: content})


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
