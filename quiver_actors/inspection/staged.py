"""A look at what transactions leave in an engine's directory: records of prepared stages, the journal, the producers' windows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import msgspec

from quiver_actors.disk.protocol import Disk, read_whole
from quiver_actors.errors import FormatError
from quiver_actors.inspection.findings import Finding, Severity
from quiver_actors.inspection.recognise import FileKind
from quiver_actors.inspection.source import Source
from quiver_actors.paths import PREPARED_SUFFIX, EnginePaths
from quiver_actors.transactions.keys import PRODUCERS_MAGIC, decode_windows
from quiver_actors.transactions.loading import Parts, load_stage
from quiver_actors.transactions.records import decode_frame, decode_journal, decode_prepared

_BYTES_MAX = 64 << 20
_ACTION = (
    "start the node, or run `quiver repair`: the file goes to quarantine/, and what it spoke of is reported as lost"
)
_ACTION_PRODUCERS = (
    "start the node, or run `quiver repair`: the file goes to quarantine/ and is made anew from the segments; what segments held that are "
    "deleted is stored once more if it is pushed again"
)


def _producers(data: bytes) -> object:
    decode_windows(data)
    return msgspec.msgpack.decode(decode_frame(PRODUCERS_MAGIC, data, "quiver.producers"))


_DECODERS: dict[FileKind, Callable[[bytes], object]] = {
    FileKind.STAGE: decode_prepared,
    FileKind.TRANSACTIONS: decode_journal,
    FileKind.PRODUCERS: _producers,
}
RECORD_KINDS = frozenset(_DECODERS)


def examine_record(source: Source, kind: FileKind) -> tuple[str | None, list[Finding]]:
    """What the file says, as JSON, and what is wrong with it."""
    try:
        found = _DECODERS[kind](source.read(_BYTES_MAX, 0))
    except FormatError as error:
        message = f"the {kind} cannot be read: {error}"
        if kind is FileKind.PRODUCERS:
            return None, [_damage("producers", source.path, message, _ACTION_PRODUCERS)]
        return None, [_damage("stage.record", source.path, message)]
    return json.dumps(msgspec.to_builtins(found, builtin_types=(bytes,)), indent=2, default=bytes.hex), []


def check_prepared(disk: Disk, paths: EnginePaths, path: str, shown: str) -> Iterator[Finding]:
    """Whether a prepared stage still is what was prepared, every byte of it. Nothing for other files."""
    if not path.endswith(PREPARED_SUFFIX):
        return
    try:
        _, parts, problem = load_stage(disk, paths, decode_prepared(read_whole(disk, path, _BYTES_MAX)))
    except FormatError:
        return  # the look at the file has said so
    if parts is Parts.DAMAGED:
        yield _damage("stage.part", shown, f"the prepared stage is damaged: {problem}")
    elif parts is Parts.UNREADABLE:
        yield Finding(
            severity=Severity.DAMAGE,
            code="stage.unreadable",
            path=shown,
            offset=0,
            message=f"the prepared stage cannot be read back now: {problem}",
            action="look at the disk; the node keeps the stage, and reads it again when it is published",
        )


def _damage(code: str, path: str, message: str, action: str = _ACTION) -> Finding:
    return Finding(severity=Severity.DAMAGE, code=code, path=path, offset=0, message=message, action=action)
