"""A look at small records: prepared stages, transactions, idempotent producers, progress, other writers, topics, cores, decisions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from quiver_actors.errors import ChecksumMismatch, FormatError, InvalidFormat
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.files.cold_directory import IDENTITY, IDENTITY_TABLE
from quiver_actors.store.files.cold_list import decode_cold_list
from quiver_actors.store.files.cold_owner import decode_owner
from quiver_actors.store.files.core_count import decode_core_generation
from quiver_actors.store.files.foreign_record import decode_foreign
from quiver_actors.store.files.paths import PREPARED_SUFFIX, EnginePaths
from quiver_actors.store.files.summaries import decode_summaries
from quiver_actors.store.files.topic_list import decode_catalogue
from quiver_actors.store.inspection.cold import cold_segments
from quiver_actors.store.inspection.findings import Finding, damage, warning
from quiver_actors.store.inspection.recognise import FileKind
from quiver_actors.store.inspection.source import Source
from quiver_actors.store.segment.codec import decode_footer
from quiver_actors.store.staged.keys import PRODUCERS_MAGIC, decode_windows
from quiver_actors.store.staged.loading import DamagedPart, Parts, load_part, load_stage
from quiver_actors.store.staged.records import PreparedRecord, decode_frame, decode_journal, decode_prepared
from quiver_actors.store.subscriber.progress_journal import decode_progress_journal

_BYTES_MAX = 64 << 20
_ACTION = (
    "start the node, or run `quiver repair`: the file goes to quarantine/, and what it spoke of is reported as lost"
)
_ACTION_PRODUCERS = (
    "start the node, or run `quiver repair`: the file goes to quarantine/ and is made anew from the segments; what segments held that are "
    "deleted is stored once more if it is pushed again"
)
_ACTION_FOREIGN = (
    "start the node, or run `quiver repair`: the file goes to quarantine/ and is made anew; segments of other writers that are still there "
    "may be delivered once more"
)
_ACTION_COLD = (
    "start the node with the cold disk mounted: the file goes to quarantine/ and is made anew from the segments there; until then the "
    "topic is not opened, as its cold segments would seem to be lost"
)
_ACTION_IDENTITY = "restore the file: the segments in its directory are not read without it"
_ACTION_OWNER = (
    "if no other node uses the cold directory, delete the file there: the node makes it anew on both disks; until then nothing is "
    "moved to the cold disk or deleted there"
)
_ACTION_JOURNAL = (
    "start the node, or run `quiver repair`: a copy goes to quarantine/, and what only a damaged frame acknowledged is "
    "delivered once more"
)
_ACTION_SUMMARIES = "nothing needs to be done: the next start makes the file anew from the segments"
_ACTION_TOPICS = "start the node: it uses quiver.topics.previous, and does not start if both are damaged"
_ACTION_CORES = "start the node: a new generation begins and the file is made anew"
_ACTION_ARCHIVE = "move the file away and run `quiver archive take-over`: nothing else is in it"
_ACTION_DECISION = "restore the file: whether the transaction is committed is written nowhere else"


class _DecisionHead(msgspec.Struct):
    """The fields without which a decision says nothing."""

    txn_id: str
    epoch: int
    outcome: Literal["commit", "abort"]


class _ArchiveHead(msgspec.Struct):
    """The fields without which the identity to the archive says nothing."""

    version: int
    directory: str
    places: list[dict[str, object]] = []


def _producers(data: bytes) -> object:
    decode_windows(data)
    return msgspec.msgpack.decode(decode_frame(PRODUCERS_MAGIC, data, "quiver.producers"))


def _progress_journal(data: bytes) -> object:
    found = decode_progress_journal(data)
    if found.is_damaged:
        raise ChecksumMismatch("a frame is damaged that has whole frames behind it")
    latest = {name: {"base": record.base, "content": record.content} for name, record in found.latest.items()}
    return {"frames": found.frame_count, "latest": latest}


def _cores(data: bytes) -> object:
    return decode_core_generation(data)._asdict()


def _archive(data: bytes) -> object:
    return _json(data, _ArchiveHead)


def _decision(data: bytes) -> object:
    return _json(data, _DecisionHead)


def _json(data: bytes, head: type[msgspec.Struct]) -> object:
    """Read JSON that has the fields of `head`, and perhaps others."""
    try:
        msgspec.json.decode(data, type=head)
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidFormat(str(error)) from error


def _cold_list(data: bytes) -> object:
    """The list, with what each footer says in the place of its bytes."""
    found = decode_cold_list(data)
    segments = {}
    for segment_seq, (size_bytes, end, lost) in found.segments.items():
        footer = decode_footer(end, size_bytes)
        segments[segment_seq] = {"size_bytes": size_bytes, "bundle_count": footer.bundle_count, "lost": lost}
    return {
        "cold_id": found.cold_id.hex(),
        "root": found.root,
        "segments": segments,
        "unwanted": found.unwanted,
    }


def _cold_identity(data: bytes) -> object:
    IDENTITY.open(data)
    return {"cold_id": IDENTITY_TABLE.unpack(data)["cold_id"].hex()}


def _cold_owner(data: bytes) -> object:
    found = decode_owner(data)
    return {
        "cold_id": found.cold_id.hex(),
        "token": found.token.hex(),
        "former": found.former.hex(),
        "inode": found.inode,
    }


class _RecordKind(NamedTuple):
    """How records of one kind are read, and what is said of a damaged one."""

    decode: Callable[[bytes], object]
    code: str
    action: str


_KINDS = {
    FileKind.STAGE: _RecordKind(decode_prepared, "stage.record", _ACTION),
    FileKind.TRANSACTIONS: _RecordKind(decode_journal, "stage.record", _ACTION),
    FileKind.PRODUCERS: _RecordKind(_producers, "producers", _ACTION_PRODUCERS),
    FileKind.FOREIGN: _RecordKind(decode_foreign, "foreign.record", _ACTION_FOREIGN),
    FileKind.SUMMARIES: _RecordKind(decode_summaries, "summaries", _ACTION_SUMMARIES),
    FileKind.COLD: _RecordKind(_cold_list, "cold.list", _ACTION_COLD),
    FileKind.COLD_IDENTITY: _RecordKind(_cold_identity, "cold.identity", _ACTION_IDENTITY),
    FileKind.COLD_OWNER: _RecordKind(_cold_owner, "cold.owner", _ACTION_OWNER),
    FileKind.PROGRESS_JOURNAL: _RecordKind(_progress_journal, "progress.journal", _ACTION_JOURNAL),
    FileKind.TOPICS: _RecordKind(decode_catalogue, "topics", _ACTION_TOPICS),
    FileKind.CORES: _RecordKind(_cores, "cores", _ACTION_CORES),
    FileKind.ARCHIVE: _RecordKind(_archive, "archive", _ACTION_ARCHIVE),
    FileKind.DECISION: _RecordKind(_decision, "decision", _ACTION_DECISION),
}
RECORD_KINDS = frozenset(_KINDS)


def examine_record(source: Source, kind: FileKind) -> tuple[str | None, list[Finding]]:
    """What the file says, as JSON, and what is wrong with it."""
    record = _KINDS[kind]
    try:
        found = record.decode(source.read(_BYTES_MAX, 0))
    except FormatError as error:
        report = warning if kind is FileKind.SUMMARIES else damage  # derived: nothing is lost with it
        return None, [report(record.code, source.path, 0, f"the {kind} cannot be read: {error}", record.action)]
    return json.dumps(msgspec.to_builtins(found, builtin_types=(bytes,)), indent=2, default=bytes.hex), []


def check_prepared(disk: Disk, paths: EnginePaths, path: str, shown: str) -> Iterator[Finding]:
    """Findings where a prepared stage is not what was prepared, byte for byte; none for other files.

    A part that a publish has turned into a segment is not missing. A publish may go on meanwhile: it says in the journal where each part
    goes before it moves the first one, and deletes the record of the stage before the journal forgets it.
    """
    if not path.endswith(PREPARED_SUFFIX):
        return
    try:
        record = decode_prepared(read_whole(disk, path, _BYTES_MAX))
    except FormatError:
        return  # the look at the file has said so
    _, parts, problem = load_stage(disk, paths, record)
    if parts is Parts.DAMAGED:
        problem = _unpublished_problem(disk, paths, record, problem)
        if problem and disk.exists(path):
            yield damage("stage.part", shown, 0, f"the prepared stage is damaged: {problem}", _ACTION)
    elif parts is Parts.UNREADABLE:
        yield damage(
            "stage.unreadable",
            shown,
            0,
            f"the prepared stage cannot be read back now: {problem}",
            action="look at the disk; the node keeps the stage, and reads it again when it is published",
        )


def _unpublished_problem(disk: Disk, paths: EnginePaths, record: PreparedRecord, problem: str) -> str:
    """Return what is wrong with the parts of the stage that are no segments yet; `problem` if the stage is not being published."""
    if not disk.exists(paths.transactions):
        return problem
    try:
        journal = decode_journal(read_whole(disk, paths.transactions, _BYTES_MAX))
    except FormatError:
        return problem  # the look at the file has said so, and nobody knows where the parts went
    places = [place for place in journal.publishing if place.number == record.number]
    for place in places:
        try:
            load_part(disk, paths, record, place.part)
        except DamagedPart as error:
            hot = (paths.segment(place.segment_seq), paths.rescued(place.segment_seq))
            if place.segment_seq not in cold_segments(disk, paths) and not any(map(disk.exists, hot)):
                return str(error)
    return "" if places else problem
