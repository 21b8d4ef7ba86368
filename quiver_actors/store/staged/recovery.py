"""Staged bundles at open: what a crash can leave of them is brought to rest before the engine takes work.

| record         | in the journal | parts                          | decision                                                     |
|----------------|----------------|--------------------------------|--------------------------------------------------------------|
| none           | any            | any                            | DELETE: never prepared, dropped, or published to its end     |
| whole          | dropped        | any                            | DELETE: the drop was cut off                                 |
| any            | found damaged  | any                            | DAMAGED: moving it to quarantine was cut off                 |
| whole          | publishing     | all, as staged or as segments  | PUBLISH: finish it                                           |
| whole          | publishing     | one is missing or damaged      | PUBLISH the others; the damaged goes to quarantine, its      |
|                |                |                                | segment number is never used, and it is recorded as dropped  |
| whole          | publishing     | one cannot be read             | the start ends and is tried again, as for a log              |
| whole          | neither        | all whole                      | KEEP: prepared                                               |
| whole          | neither        | one cannot be read             | KEEP: prepared, and read again before it is published        |
| whole          | neither        | one is missing or damaged      | DAMAGED: moved to quarantine, recorded as dropped            |
| damaged        | any            | any                            | DAMAGED: moved to quarantine, recorded as dropped            |

What is found damaged is recorded before it is moved: without its files it would look like one that was published. A part that
is published here is written anew first, as logs are. Of what was to become visible and is lost subscribers are told. Every step can be
cut off and done again. The names in `staged/` and of the journal are made durable before anything is decided by them.
"""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field

import msgspec

from quiver_actors.base.protocol.messages import SegmentInfo
from quiver_actors.errors import DiskError
from quiver_actors.store.disk.protocol import NO_SPACE_ERRNOS, Disk, read_whole
from quiver_actors.store.files.paths import (
    PREPARED_SUFFIX,
    STAGE_SUFFIX,
    STAGED_NAME,
    TEMPORARY_SUFFIX,
    TRANSACTIONS_NAME,
    EnginePaths,
)
from quiver_actors.store.files.quarantine import move_to_quarantine
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.staged.jobs import delete_stage, publish_parts, write_journal
from quiver_actors.store.staged.loading import DamagedPart, Parts, load_part, load_stage, stage_of
from quiver_actors.store.staged.records import (
    JOURNAL_MAGIC,
    STAGE_MAGIC,
    DroppedRecord,
    JournalRecord,
    PreparedRecord,
    PublishingRecord,
    decode_frame,
    decode_journal,
    decode_prepared,
)
from quiver_actors.store.staged.stage import Stage, number_part
from quiver_actors.store.staged.states import StageState
from quiver_actors.store.wal.codec import Identity
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.reader import CHUNK_BYTES
from quiver_actors.supervisor.log import log_event

_DAMAGED = "damaged: "
"""The beginning of the reason of a drop that recovery has decided."""
_RECORD_BYTES_MAX = 64 << 20


class StageDecision(enum.Enum):
    """Action of a start on the files of a stage."""

    DELETE = "delete"
    PUBLISH = "publish"
    KEEP = "keep"
    DAMAGED = "damaged"


def decide(
    *, has_record: bool, record_is_whole: bool, is_dropped: bool, is_publishing: bool, parts: Parts
) -> StageDecision:
    """The decision for one stage, by the table of this module."""
    if not has_record:
        return StageDecision.DELETE
    if not record_is_whole:
        return StageDecision.DAMAGED
    if is_dropped:
        return StageDecision.DELETE
    if is_publishing:
        return StageDecision.PUBLISH
    return StageDecision.DAMAGED if parts is Parts.DAMAGED else StageDecision.KEEP


@dataclass(slots=True)
class RecoveredStages:
    """The state from which an engine's transactions start."""

    journal: JournalRecord = field(default_factory=JournalRecord)
    """The journal, which publishes nothing; as it is on disk, or newer."""
    stages: list[Stage] = field(default_factory=list)
    """The prepared stages, by rising number; their files are closed."""
    published: list[Log] = field(default_factory=list)
    """The logs of parts that this start made segments of."""
    infos: dict[int, SegmentInfo] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    quarantined: int = 0
    set_aside: list[tuple[str, str]] = field(default_factory=list)
    """The files that were moved to quarantine, by path, and why."""


def check_versions(disk: Disk, paths: EnginePaths, names: Container[str]) -> None:
    """Check the versions of all files, before anything is changed.

    Args:
        names: the names in the root.

    Raises:
        UnsupportedVersion: a newer program wrote one of the files.
    """
    magics = {paths.transactions: JOURNAL_MAGIC} if TRANSACTIONS_NAME in names else {}
    for name in disk.list_directory(paths.staged) if STAGED_NAME in names else ():
        if name.endswith(PREPARED_SUFFIX):
            magics[f"{paths.staged}/{name}"] = STAGE_MAGIC
    for path, magic in magics.items():
        try:
            decode_frame(magic, read_whole(disk, path, _RECORD_BYTES_MAX), path)
        except (*DAMAGE, DiskError):
            continue  # damaged: that is recovered from


def recover_stages(
    disk: Disk,
    paths: EnginePaths,
    incarnation: bytes,
    has_segment: Callable[[int], bool],
    give_up: Callable[[int, int], None],
) -> RecoveredStages:
    """Recover `staged/` and `quiver.transactions`. The root's own names are durable already.

    Args:
        has_segment: whether a segment of that number is there, whole or damaged.
        give_up: tells subscribers, durably, that a segment which was to become visible is lost: its number, and how many bundles it had,
            0 if nobody knows. Again of the same: no change.

    Raises:
        DiskError: the same directory can be opened again.
    """
    return _Recovery(disk, paths, incarnation, has_segment, give_up).run()


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        incarnation: bytes,
        has_segment: Callable[[int], bool],
        give_up: Callable[[int, int], None],
    ) -> None:
        self._disk = disk
        self._paths = paths
        self._incarnation = incarnation
        self._has_segment = has_segment
        self._give_up_segment = give_up
        self._found = RecoveredStages()
        self._journal = JournalRecord()
        self._damaged: set[int] = set()
        """Stages that an earlier start has found damaged."""
        self._left_over: list[str] = []
        """Parts that are published as copies, now or by a start that was cut off."""
        self._parts: dict[int, list[str]] = {}
        """The files of parts, by stage number."""
        self._has_deleted = False
        self._highest_number = 0

    def run(self) -> RecoveredStages:
        names = self._disk.list_directory(self._paths.staged)
        if not names and not self._disk.exists(self._paths.transactions):
            if self._disk.exists(self._paths.staged):
                # A start that was cut off may have deleted all there was, not durably yet.
                self._disk.sync_directory(self._paths.staged)
            return self._found
        self._journal = self._read_journal()
        self._damaged = {record.number for record in self._journal.dropped if record.reason.startswith(_DAMAGED)}
        records = {_number_of(name): self._read_record(name) for name in names if name.endswith(PREPARED_SUFFIX)}
        self._disk.sync_directory(self._paths.staged)
        for name in names:
            if name.endswith(STAGE_SUFFIX):
                self._parts.setdefault(_number_of(name), []).append(f"{self._paths.staged}/{name}")
            elif name.endswith(TEMPORARY_SUFFIX):
                self._disk.unlink(f"{self._paths.staged}/{name}")
                self._has_deleted = True
        numbers = sorted({*records, *self._parts})
        self._highest_number = max(numbers, default=0)
        for number in numbers:
            self._settle(number, number in records, records.get(number))
        if self._has_deleted:
            self._disk.sync_directory(self._paths.staged)
        self._finish_publishing()
        self._write_journal()
        return self._found

    # --- reading -------------------------------------------------------------------------------------------------------------

    def _read_journal(self) -> JournalRecord:
        if not self._disk.exists(self._paths.transactions):
            return JournalRecord()
        try:
            return decode_journal(read_whole(self._disk, self._paths.transactions, _RECORD_BYTES_MAX))
        except DAMAGE as error:
            self._quarantine([self._paths.transactions], str(error))
            return JournalRecord()

    def _read_record(self, name: str) -> PreparedRecord | None:
        try:
            record = decode_prepared(read_whole(self._disk, f"{self._paths.staged}/{name}", _RECORD_BYTES_MAX))
        except DAMAGE:
            return None
        return record if record.number == _number_of(name) else None

    # --- one stage -----------------------------------------------------------------------------------------------------------

    def _settle(self, number: int, has_record: bool, record: PreparedRecord | None) -> None:
        is_publishing = any(place.number == number for place in self._journal.publishing)
        stage, parts, damage = None, Parts.DAMAGED, "its record is damaged"
        if record is not None and not is_publishing:
            stage, parts, damage = load_stage(self._disk, self._paths, record)
        was_damaged = number in self._damaged and not is_publishing
        decision = decide(
            has_record=has_record or was_damaged,
            record_is_whole=record is not None and not was_damaged,
            is_dropped=number not in self._damaged and any(each.number == number for each in self._journal.dropped),
            is_publishing=is_publishing,
            parts=parts,
        )
        if decision is StageDecision.DELETE:
            self._has_deleted = True
            delete_stage(self._disk, self._paths, number, self._parts.get(number, []))
        elif decision is StageDecision.KEEP:
            assert stage is not None
            self._found.stages.append(stage)
            cannot = f"; its parts cannot be read now: {damage}" if damage else ""
            self._found.notes.append(f"stage {number} of transaction {stage.order.txn_id} is prepared and kept{cannot}")
        elif decision is StageDecision.PUBLISH:
            assert record is not None
            self._publish(record)
        else:
            self._give_up(number, record, damage)

    def _give_up(self, number: int, record: PreparedRecord | None, damage: str) -> None:
        self._record_damage(number, record, damage)
        for place in self._places_of(number):
            if not self._has_segment(place.segment_seq):
                self._give_up_segment(place.segment_seq, 0)
        self._quarantine([*self._existing_record(number), *self._parts.get(number, [])], damage)

    def _record_damage(self, number: int, record: PreparedRecord | None, damage: str) -> None:
        """Record the stage as dropped, so that from then on whoever publishes it is told."""
        if number in self._damaged:
            return
        self._damaged.add(number)
        txn_id, epoch = (record.order.txn_id, record.order.epoch) if record else ("", 0)
        new = DroppedRecord(number, txn_id, epoch, f"{_DAMAGED}{damage}", time.time_ns())
        self._journal = self._journal_with(new)
        write_journal(self._disk, self._paths, self._journal)

    def _existing_record(self, number: int) -> list[str]:
        path = self._paths.prepared(number)
        return [path] if self._disk.exists(path) else []

    # --- publishing ----------------------------------------------------------------------------------------------------------

    def _publish(self, record: PreparedRecord) -> None:
        """Load the parts that are no segments yet; they are sealed together with the rest of their publish."""
        stage = stage_of(record)
        self._left_over += self._parts.get(record.number, [])
        for place in sorted(self._places_of(record.number), key=lambda place: place.part):
            if self._has_segment(place.segment_seq):
                continue
            try:
                part = load_part(self._disk, self._paths, record, place.part)
            except DamagedPart as error:
                self._record_damage(record.number, record, str(error))
                self._give_up_segment(place.segment_seq, record.parts[place.part].bundles)
                self._quarantine(self._existing(record.number, place.part), str(error))
                continue
            identity = Identity(place.segment_seq, place.first_sequence, self._incarnation)
            number_part(part, record.cfg_hash, place.position_start, identity)
            self._renew(part)
            stage.parts.append(part)
        stage.state = StageState.PUBLISHING
        self._found.stages.append(stage)

    def _renew(self, part: Log) -> None:
        """Write the part anew, so that the next sync brings all of it to the disk: `store.recovery.logs` says why. Without room for that it
        stays the file that it is: its entries were synced when it was prepared, and all else is written once more."""
        source = self._disk.open_read(part.path)
        try:
            copy = self._disk.create(part.path + TEMPORARY_SUFFIX)
            try:
                copy.allocate(part.capacity_bytes)
                for offset in range(0, part.end, CHUNK_BYTES):
                    copy.write([source.read(min(CHUNK_BYTES, part.end - offset), offset)], offset)
            except DiskError as error:
                self._disk.unlink(copy.path)
                if error.errno not in NO_SPACE_ERRNOS:
                    raise
                return
            finally:
                copy.close()
        except DiskError as error:
            if error.errno not in NO_SPACE_ERRNOS:
                raise
            return
        finally:
            source.close()
        part.path = copy.path

    def _places_of(self, number: int) -> list[PublishingRecord]:
        return [place for place in self._journal.publishing if place.number == number]

    def _existing(self, number: int, part: int) -> list[str]:
        path = self._paths.stage_part(number, part)
        return [path] if self._disk.exists(path) else []

    def _finish_publishing(self) -> None:
        stages = [stage for stage in self._found.stages if stage.state is StageState.PUBLISHING]
        if not stages:
            return
        self._found.stages = [stage for stage in self._found.stages if stage not in stages]
        publish_parts(self._disk, self._paths, stages, self._incarnation, self._found.infos)
        for path in self._left_over:
            self._disk.unlink(path)
        self._disk.sync_directory(self._paths.staged)
        self._found.published = [part for stage in stages for part in stage.parts]
        self._found.notes.append(f"finished the publish of stages {', '.join(str(stage.number) for stage in stages)}")

    # --- the journal ---------------------------------------------------------------------------------------------------------

    def _journal_with(self, *dropped: DroppedRecord) -> JournalRecord:
        """The journal with these stages found damaged. What it publishes stays in it until that is done."""
        found = self._journal.with_dropped(dropped)
        next_number = max([found.next_number, self._highest_number + 1, *(each.number + 1 for each in found.dropped)])
        return msgspec.structs.replace(found, next_number=next_number)

    def _write_journal(self) -> None:
        """Write the journal without what is finished, if that changes it."""
        journal = msgspec.structs.replace(self._journal_with(), publishing=[])
        self._found.journal = journal
        if journal != self._journal:
            write_journal(self._disk, self._paths, journal)

    def _quarantine(self, files: list[str], why: str) -> None:
        for path in files:
            target = move_to_quarantine(self._disk, self._paths, path)
            self._found.quarantined += 1
            self._found.set_aside.append((path, why))
            self._found.notes.append(f"{path} moved to {target}: {why}")
            log_event("quarantine", {"path": path, "target": target, "reason": why}, logging.WARNING)


def _number_of(name: str) -> int:
    digits = name.partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else 0
