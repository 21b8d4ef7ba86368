"""Prepared stages of transactions in a restored directory: which come back, and what becomes of the transactions of those that are lost.

| a stage that the state calls prepared            | after the restore                                                           |
|--------------------------------------------------|-----------------------------------------------------------------------------|
| its files are archived                           | prepared, under its number: its token can be published                      |
| its files are not archived, or damaged there     | lost: named, recorded as dropped; publishing it raises `TransactionLost`    |
| lost, and its transaction is undecided           | the transaction is aborted: a later commit raises `TransactionAborted`      |

| a stage that the state calls published           | after the restore                                                           |
|--------------------------------------------------|-----------------------------------------------------------------------------|
| all of its segments are archived, or told lost   | published: publishing it again does nothing                                 |
| none is, and its files still are in the archive  | prepared again, as above                                                    |
| else                                             | lost: named, recorded as dropped; publishing it raises `TransactionLost`    |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from quiver_actors.archive.keys import StreamKey
from quiver_actors.archive.node_state import EngineState, PreparedStage
from quiver_actors.archive.staged_bundles import journal_of, keys_of_stage, record_of, stream_of
from quiver_actors.base.checksum import crc32
from quiver_actors.errors import FormatError, QuiverError
from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.objects.object_store import ObjectStore
from quiver_actors.store.staged.records import PreparedRecord, decode_prepared
from quiver_actors.store.wal import layout
from quiver_actors.transactions.asking import OWN_LOG_NAME
from quiver_actors.transactions.decisions import Decisions


class LostStage(NamedTuple):
    """A prepared stage that died with the node."""

    stream: StreamKey
    stage: PreparedStage
    problem: str
    """Why it does not come back."""
    outcome: str = ""
    """What its transaction is: `abort`, `commit`, or why that is not known; empty: nobody asked yet."""


NOT_ARCHIVED = "its bundles were not archived before the node died"
LOST_PUBLISH = (
    "it was published, and the node died with its disk before all of its bundles were archived: subscribers have notices of what is lost. "
    "Store what is missing under another transaction id"
)


def without_archived(engine: EngineState, archived_through: int) -> EngineState:
    """The state of a directory without prepared stages of which a segment is archived: prepared again, they would come twice."""
    there = {each.number for each in journal_of(engine).published if each.first_segment_seq <= archived_through}
    prepared = tuple(each for each in engine.prepared if each.number not in there)
    return msgspec.structs.replace(engine, prepared=prepared)


def lost_publishes(engine: EngineState, archived_through: int, *, is_own: bool) -> list[int]:
    """The numbers of published stages that are not archived as a whole, and that do not come back as prepared ones.

    Args:
        is_own: the state was made for this very restore, which was cut off: it calls them dropped already.
    """
    journal = journal_of(engine)
    if is_own:
        return [each.number for each in journal.dropped if each.reason == LOST_PUBLISH]
    known = {each.number for each in journal.dropped} | {each.number for each in engine.prepared}
    return sorted({each.number for each in journal.published if each.last_segment_seq > archived_through} - known)


def carried_stages(engine: EngineState) -> list[PreparedStage]:
    """The prepared stages of a directory whose bundles are in the archive."""
    return [each for each in engine.prepared if each.is_archived]


def lost_stages(engine: EngineState) -> list[LostStage]:
    """The prepared stages of a directory whose bundles are not."""
    return [LostStage(stream_of(engine), each, NOT_ARCHIVED) for each in engine.prepared if not each.is_archived]


def staged_bytes(engine: EngineState) -> int:
    """Bytes of the stages that come back."""
    records = [record_of(each) for each in carried_stages(engine)]
    return sum(part.size_bytes for record in records if record is not None for part in record.parts)


def write_stages(disk: Disk, store: ObjectStore, node: str, engine: EngineState) -> list[LostStage]:
    """Write the files of the stages that come back, each record behind its parts. Returns those that are damaged in the store.

    Raises:
        DiskError, ArchiveError: the same call goes on.
    """
    paths, stream = EnginePaths(engine.directory), stream_of(engine)
    kept, lost = [], []
    for stage in carried_stages(engine):
        record = decode_prepared(stage.record)
        problem = _write_parts(disk, store, paths, record, keys_of_stage(node, stream, record))
        if problem:
            lost.append(LostStage(stream, stage, problem))
        else:
            kept.append(stage)
    disk.sync_directory(paths.staged)
    for stage in kept:
        write_atomically(disk, paths.prepared(stage.number), stage.record)
    disk.sync_directory(paths.staged)
    return lost


def _write_parts(
    disk: Disk, store: ObjectStore, paths: EnginePaths, record: PreparedRecord, keys: Iterable[str]
) -> str:
    """Write the parts of a stage, one at a time. Returns what is wrong with them in the store; empty if nothing is."""
    for index, (part, key) in enumerate(zip(record.parts, keys, strict=True)):
        found = store.get(key)
        if found is None:
            return f"{key} is not in the archive"
        content = memoryview(found.content)
        if (content.nbytes, crc32(content[layout.HEADER_BYTES :])) != (part.size_bytes, part.crc32):
            return f"{key} in the archive is not what was staged"
        write_atomically(disk, paths.stage_part(record.number, index), found.content)
    return ""


# --- decisions -----------------------------------------------------------------------------------------------------------


class OwnDecisions:
    """The decision files of a restored directory before it is written. See `transactions.decision_files.DecisionFiles`.

    Args:
        files: the small files of the directory by path; a decision that is made goes into it.
    """

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def read(self, name: str) -> bytes | None:
        """The content of the file; None if there is none."""
        return self._files.get(f"{OWN_LOG_NAME}/{name}")

    def create(self, name: str, content: bytes) -> None:
        """Create the file unless it exists."""
        self._files.setdefault(f"{OWN_LOG_NAME}/{name}", content)

    def remove(self, name: str) -> None:
        """Delete the file, if it is there."""
        self._files.pop(f"{OWN_LOG_NAME}/{name}", None)


def decide_lost(lost: Iterable[LostStage], files: dict[str, bytes]) -> list[LostStage]:
    """Abort the undecided transactions of lost stages, so that none of them is committed in part. Returns the stages with their outcomes.

    Args:
        files: see `OwnDecisions`; the aborts of the node's own log go into it.
    """
    return [each._replace(outcome=_outcome(each.stage, files)) for each in lost]


def _outcome(stage: PreparedStage, files: dict[str, bytes]) -> str:
    try:
        record = record_of(stage)
        if record is None:
            return "the state does not say where it is decided"
        location = record.order.decisions
        log = (
            Decisions(location) if location else Decisions(OWN_LOG_NAME, by="quiver restore", files=OwnDecisions(files))
        )
        return log.abort(stage.txn_id, stage.epoch).outcome
    except (QuiverError, FormatError) as error:
        return str(error)
