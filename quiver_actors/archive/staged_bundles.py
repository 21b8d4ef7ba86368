"""The bundles of prepared stages in an archive: what a transaction has staged and not decided yet.

Each part of a stage is one object, `keys.staged_key`: the file of the part with the header that it had when it was prepared. Its key
names the stage and the checksum of its entries, so a key always has the same content. A stage counts as archived when the state of the
node, which the manifest's head names, says so.

Guarantees:
- The manifest never names a segment of a stage that the state beside it still calls prepared. A restore would publish its bundles twice
  otherwise. `settled` is what keeps it: the state without such stages is recorded in one step with the segments.
- A stage whose files are archived stays prepared in the state until the first of its segments is archived, although it was published: until
  then these files are all that the archive has of it.

Owner: the archiver's `StateKeeper`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec

from quiver_actors.archive.keys import STAGES_NAME, StreamKey, staged_key
from quiver_actors.archive.node_state import EngineState, NodeState, PreparedStage
from quiver_actors.archive.uploads import Throttle, has_crc32, put_whole
from quiver_actors.base.checksum import crc32, crc32_combine, crc32_of_range
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk, DiskFile
from quiver_actors.store.files.paths import TRANSACTIONS_NAME, EnginePaths
from quiver_actors.store.objects.object_store import PART_BYTES, ObjectStore
from quiver_actors.store.staged.records import (
    JournalRecord,
    PartRecord,
    PreparedRecord,
    decode_journal,
    decode_prepared,
    encode_prepared,
)
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.codec import Identity, encode_header

logger = logging.getLogger("quiver.archive")
TURN_BYTES = 64 << 20
"""Bytes of stages that are sent before segments have their turn again."""


def stream_of(engine: EngineState) -> StreamKey:
    """The stream of a directory."""
    return StreamKey(engine.topic, engine.incarnation, engine.core)


def record_of(stage: PreparedStage) -> PreparedRecord | None:
    """The record of a stage; None where the state does not have it. Raises FormatError."""
    return decode_prepared(stage.record) if stage.record else None


def header_of(record: PreparedRecord) -> bytes:
    """The header of each part of a prepared stage; a publish writes another one in its place."""
    return encode_header(record.cfg_hash, 0, Identity(0, 0, record.incarnation))


def keys_of_stage(node: str, stream: StreamKey, record: PreparedRecord) -> list[str]:
    """The keys of a stage's parts, in their order."""
    return [staged_key(node, stream, record.number, index, part.crc32) for index, part in enumerate(record.parts)]


def keys_in(state: NodeState) -> frozenset[str]:
    """The keys of all parts that a state says are archived."""
    found: list[str] = []
    for engine in state.engines:
        for stage in engine.prepared:
            record = record_of(stage) if stage.is_archived else None
            if record is not None:
                found += keys_of_stage(state.node, stream_of(engine), record)
    return frozenset(found)


def described(state: NodeState, archived: frozenset[str], own_log: str) -> NodeState:
    """The state with stages as archived whose parts all are.

    Args:
        archived: the keys of parts in the store.
        own_log: path of the node's own decision log. A stage that is decided there is decided in that of the restored node.
    """

    def stage(engine: EngineState, each: PreparedStage) -> PreparedStage:
        record = record_of(each)
        if record is None:
            return each
        keys = keys_of_stage(state.node, stream_of(engine), record)
        if record.order.decisions == own_log:
            order = msgspec.structs.replace(record.order, decisions="")
            record = msgspec.structs.replace(record, order=order)
        return msgspec.structs.replace(each, record=encode_prepared(record), is_archived=archived.issuperset(keys))

    return _with_stages(state, lambda engine: [stage(engine, each) for each in engine.prepared])


def journal_of(engine: EngineState) -> JournalRecord:
    """What a directory remembers of its stages; an empty journal where it is missing or damaged."""
    content = engine.files.get(TRANSACTIONS_NAME)
    try:
        return JournalRecord() if content is None else decode_journal(content)
    except FormatError:
        return JournalRecord()


def with_unarchived(state: NodeState, former: NodeState, archived_through: Mapping[StreamKey, int]) -> NodeState:
    """The state with those stages as prepared that a former state has the files of, and that were published since into segments of which
    none is archived.

    Args:
        archived_through: the highest segment of each stream that is archived.
    """
    kept = {
        stream_of(engine): [each for each in engine.prepared if each.is_archived]
        for engine in former.engines
        if any(each.is_archived for each in engine.prepared)
    }

    def stages(engine: EngineState) -> Iterator[PreparedStage]:
        stream, there = stream_of(engine), {each.number for each in engine.prepared}
        begins = {each.number: each.first_segment_seq for each in journal_of(engine).published}
        yield from engine.prepared
        for stage in kept.get(stream, ()):
            if stage.number not in there and begins.get(stage.number, -1) > archived_through.get(stream, -1):
                yield stage

    return _with_stages(state, stages) if kept else state


def without_settled(engine: EngineState, gone: Collection[int], archived_through: int) -> EngineState:
    """The state of a directory without stages that were dropped, or published into a segment that is archived.

    Args:
        engine: with the journal as it is now.
        gone: numbers of stages whose records are not on the disk any more. A stage that is archived stays until a segment of it is.
        archived_through: the highest segment of the directory that is archived, or is about to be.
    """
    begins = {each.number: each.first_segment_seq for each in journal_of(engine).published}

    def is_settled(stage: PreparedStage) -> bool:
        is_kept = stage.is_archived and begins.get(stage.number, -1) > archived_through
        return stage.number in gone and not is_kept

    left = tuple(each for each in engine.prepared if not is_settled(each))
    return msgspec.structs.replace(engine, prepared=left)


def _with_stages(state: NodeState, stages: Callable[[EngineState], Iterable[PreparedStage]]) -> NodeState:
    engines = [msgspec.structs.replace(each, prepared=tuple(stages(each))) for each in state.engines]
    return msgspec.structs.replace(state, engines=tuple(engines))


class StagedBundles:
    """Uploads the parts of prepared stages.

    Args:
        disk: the data directory.
    """

    def __init__(self, disk: Disk, store: ObjectStore, throttle: Throttle) -> None:
        self._disk = disk
        self._store = store
        self._throttle = throttle
        self.sent: set[str] = set()
        """The keys of parts that were uploaded, and of which no state may say so yet."""

    def upload(self, state: NodeState, known: frozenset[str]) -> tuple[frozenset[str], bool]:
        """Upload what of the prepared stages of a state is not archived: `TURN_BYTES` and a part at a time, as segments wait meanwhile.

        A part that is not there any more, or is not what was prepared, is passed over: its stage was published or dropped, or the node's
        next start finds the damage.

        Args:
            known: the keys of parts that the store has.

        Returns:
            The keys of all parts in the store, the known ones included; and whether nothing is left for the next call. Raises ArchiveError.
        """
        wanted = list(_parts_of(state))
        self.sent &= {key for *_, key in wanted}
        left_bytes = TURN_BYTES
        for paths, record, index, key in wanted:
            if key in known or key in self.sent:
                continue
            if left_bytes <= 0:
                return known | self.sent, False
            if self._upload_part(paths, record, index, key):
                self.sent.add(key)
                left_bytes -= record.parts[index].size_bytes
        return known | self.sent, True

    def _upload_part(self, paths: EnginePaths, record: PreparedRecord, index: int, key: str) -> bool:
        part = record.parts[index]
        try:
            file = self._disk.open_read(paths.stage_part(record.number, index))
            try:
                if crc32_of_range(file.read, layout.HEADER_BYTES, part.size_bytes) != part.crc32:
                    return False
                header, entries_bytes = header_of(record), part.size_bytes - layout.HEADER_BYTES
                pieces = self._throttle.paced(_pieces(file, header, part))
                crc = crc32_combine(crc32(header), part.crc32, entries_bytes)
                put_whole(self._store, key, pieces, part.size_bytes, has_crc32(crc))
            finally:
                file.close()
        except DiskError as error:
            logger.info("quiver.archive.stage_skipped key=%s error=%s", key, error)
            return False
        return True

    def is_prepared(self, engine: EngineState, number: int) -> bool:
        """Whether the record of a prepared stage is on the disk."""
        return self._disk.exists(EnginePaths(engine.directory).prepared(number))

    def left_over(self, node: str, named: frozenset[str]) -> list[str]:
        """The keys of parts that no state names: archivers that were killed have left them. Raises ArchiveError."""
        return sorted({info.key for info in self._store.objects(f"{node}/{STAGES_NAME}")} - named - self.sent)


def _parts_of(state: NodeState) -> Iterator[tuple[EnginePaths, PreparedRecord, int, str]]:
    """The parts of all prepared stages, each with its place and key."""
    for engine in state.engines:
        for record in filter(None, map(record_of, engine.prepared)):
            for index, key in enumerate(keys_of_stage(state.node, stream_of(engine), record)):
                yield EnginePaths(engine.directory), record, index, key


def _pieces(file: DiskFile, header: bytes, part: PartRecord) -> Iterator[bytes]:
    """The file of a part with its first header, in pieces of `PART_BYTES`."""
    for offset in range(0, part.size_bytes, PART_BYTES):
        piece = file.read(min(PART_BYTES, part.size_bytes - offset), offset)
        yield piece if offset else header + piece[len(header) :]
