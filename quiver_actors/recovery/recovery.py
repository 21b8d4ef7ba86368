"""One opening of one directory, step by step.

Afterwards the directory holds sealed segments, progress files, `quiver.core` and an optional empty log; every acknowledged
bundle is in a segment. Every step can be cut off and done again: nothing is removed before what replaces it is durable, and nothing
that cannot be parsed is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field

from quiver_actors.ballast import release as release_ballast
from quiver_actors.config import TopicSettings
from quiver_actors.core_file import CORE_NAME, CoreFile, decode_core
from quiver_actors.disk.protocol import NO_SPACE_ERRNOS, Disk
from quiver_actors.disk.salvage import read_small
from quiver_actors.errors import ConfigMismatch, DiskError, FormatError, UnsupportedVersion
from quiver_actors.jobs import write_core
from quiver_actors.paths import PREPARED_SUFFIX, QUARANTINE_NAME, TEMPORARY_SUFFIX, EnginePaths
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.recovery.adoption import Adoption
from quiver_actors.recovery.findings import Findings
from quiver_actors.recovery.logs import Readings, Settlement, examine_logs, extents_of
from quiver_actors.recovery.missing_logs import MissingLog, find_missing_logs
from quiver_actors.recovery.numbers import NumbersUsed
from quiver_actors.recovery.producers import FoundProducers
from quiver_actors.recovery.shelf import FoundSegments
from quiver_actors.recovery.subscribers import FoundSubscribers
from quiver_actors.sealing import write_cursor
from quiver_actors.subscriber.registry import SubscriberRegistry
from quiver_actors.transactions.keys import Windows
from quiver_actors.transactions.recovery import RecoveredStages, check_versions, recover_stages
from quiver_actors.wal.codec import decode_cursor
from quiver_actors.wal.contract import segment_cfg_hash
from quiver_actors.wal.decisions import Header
from quiver_actors.wal.layout import CURSOR_NAME
from quiver_actors.wal.recovery import FoundLog


@dataclass(slots=True)
class Recovered:
    """What an engine starts from."""

    core: CoreFile
    """As it stands on disk now: numbers reserved, not clean."""
    next_segment_seq: int
    next_sequence: int
    position: int
    """End of everything logged so far: the next log starts here."""
    next_rotation: int
    segments: dict[int, SegmentInfo]
    registry: SubscriberRegistry
    missing: list[int] = field(default_factory=list)
    """Segments that progress waits for and whose files are gone."""
    damaged: dict[int, str] = field(default_factory=dict)
    """Segments whose footer cannot be read or believed, and why: the files are where they were, to be rescued."""
    quarantined: int = 0
    has_quarantine: bool = True
    """Something may be in quarantine, also from before."""
    notes: list[str] = field(default_factory=list)
    stages: RecoveredStages = field(default_factory=RecoveredStages)
    """Staged bundles, the prepared ones."""
    windows: Windows = field(default_factory=Windows)
    """What idempotent producers have stored, as it is in their file."""
    missing_logs: list[MissingLog] = field(default_factory=list)
    """Segments that there will never be: everybody is told, durably."""


def recover(disk: Disk, paths: EnginePaths, settings: TopicSettings, core_id: int) -> Recovered:
    """Recover the directory; on a full disk its ballast makes room. Raises as `Recovery.run`."""
    try:
        return Recovery(disk, paths, settings, core_id).run()
    except DiskError as error:
        if error.errno not in NO_SPACE_ERRNOS or not release_ballast(disk, paths.ballast):
            raise
        # A log whose sync has failed is not touched again.
        trusts_logs = error.operation not in ("fsync", "fdatasync")
    return Recovery(disk, paths, settings, core_id, trusts_logs=trusts_logs).run()


class Recovery:
    """`run` does all of it."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        core_id: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        trusts_logs: bool = True,
    ) -> None:
        """
        Args:
            trusts_logs: logs may become segments as they are; else all of them are written anew.
        """
        self._trusts_logs = trusts_logs
        self._core_damage = ""
        self._disk = disk
        self._paths = paths
        self._core_id = core_id
        self._cfg_hash = segment_cfg_hash(settings)
        self._target_bytes = settings.segment.target_size_bytes
        self._random_bytes = random_bytes
        self._findings = Findings(disk, paths)
        self._numbers = NumbersUsed()
        self._shelf = FoundSegments(disk, paths, self._numbers, self._findings)
        self._subscribers = FoundSubscribers(disk, paths, self._findings)
        self._producers = FoundProducers(disk, paths, self._findings)
        self._missing_logs: list[MissingLog] = []

    def run(self) -> Recovered:
        """Recover the directory.

        Raises:
            UnsupportedVersion, ConfigMismatch: nothing was changed.
            DiskError: the same directory can be opened again. A log that the disk does not give back in full is such a case:
                what is missing of it may have been acknowledged, so nobody but an operator may give it up.
        """
        names, wal, segments = (
            self._disk.list_directory(directory)
            for directory in (self._paths.root, self._paths.wal, self._paths.segments)
        )
        former = self._read_core(names)
        was_clean = former is not None and former.clean_shutdown
        logs, readings = examine_logs(self._disk, self._paths, wal, trusts=self._trusts_logs)
        self._check_config(logs)
        check_versions(self._disk, self._paths, names)
        self._shelf.read(segments)
        self._subscribers.read(names)
        self._producers.read(names)
        # Nothing was changed so far, and nothing is refused from here on.
        self._settle_small_files(names, wal, segments)
        self._numbers.note_segment_seq(self._subscribers.registry.highest_segment_seq_seen())
        for log in logs:
            self._numbers.note_log(log)
        if not (self._shelf.segments or self._shelf.damaged or any(log.scan.entry_count for log in logs)):
            self._subscribers.follow_other_cores()
        cursor = self._read_cursor() if CURSOR_NAME in wal else None
        self._give_up_missing_logs(logs, readings, cursor)
        core = self._reserve(former)
        stages = self._recover_stages()
        self._settle(logs, readings, cursor, was_clean=was_clean)
        return self._recovered(core, stages)

    def _recovered(self, core: CoreFile, stages: RecoveredStages) -> Recovered:
        numbers, registry = self._numbers, self._subscribers.registry
        return Recovered(
            core,
            numbers.next_segment_seq,
            numbers.next_sequence,
            numbers.position,
            numbers.next_rotation,
            dict(sorted(self._shelf.segments.items())),
            registry,
            self._shelf.missing(registry.awaited_segments()),
            self._shelf.damaged,
            self._findings.quarantined,
            self._disk.exists(self._paths.quarantine),
            self._findings.notes,
            stages,
            self._producers.windows,
            self._missing_logs,
        )

    # --- reading what is there, before anything is changed -----------------------------------------------------------------

    def _read_core(self, names: Container[str]) -> CoreFile | None:
        if CORE_NAME not in names:
            return None
        try:
            return decode_core(read_small(self._disk, self._paths.core))
        except UnsupportedVersion:
            raise
        except FormatError as error:
            self._core_damage = str(error)
            return None

    def _check_config(self, found: list[FoundLog]) -> None:
        for log in found:
            if log.header and log.scan.entry_count and log.header.cfg_hash != self._cfg_hash:
                raise ConfigMismatch(
                    f"{self._paths.wal}/{log.name} was written under another slot table: its segment_cfg_hash is "
                    f"{log.header.cfg_hash.hex()}, the settings give {self._cfg_hash.hex()}. Start once with the former "
                    "table and stop cleanly (that seals the log), or put the new table on a new topic"
                )

    # --- bringing it to rest -----------------------------------------------------------------------------------------------

    def _settle_small_files(self, names: Collection[str], wal: Iterable[str], segments: Iterable[str]) -> None:
        """Everything but logs and stages; and make the names durable that a killed process has left: what follows relies on them."""
        for directory in (self._paths.root, self._paths.wal, self._paths.segments):
            self._disk.make_directory(directory)
        if QUARANTINE_NAME in names:
            self._reap_temporaries(self._paths.quarantine, self._disk.list_directory(self._paths.quarantine))
        self._reap_temporaries(self._paths.root, names)
        self._reap_temporaries(self._paths.wal, wal)
        self._reap_temporaries(self._paths.segments, segments)
        if self._core_damage:
            self._findings.quarantine(self._paths.core, self._core_damage)
        self._shelf.settle()
        self._subscribers.settle()
        self._producers.settle(self._shelf.segments)

    def _reap_temporaries(self, directory: str, names: Iterable[str]) -> None:
        for name in names:
            if name.endswith(TEMPORARY_SUFFIX):
                self._disk.unlink(f"{directory}/{name}")
        self._disk.sync_directory(directory)

    def _read_cursor(self) -> int | None:
        """Everything before that log position is in segments; None if there is no cursor that can be read."""
        try:
            position = decode_cursor(read_small(self._disk, self._paths.cursor))
        except FormatError as error:
            self._findings.quarantine(self._paths.cursor, str(error))
            return None
        self._numbers.note_position(position)
        return position

    def _reserve(self, former: CoreFile | None) -> CoreFile:
        """Fix the numbers to go on with, durably, before the first of them is used."""
        reserved = self._numbers.reserve(former, self._core_id, b"" if former else self._random_bytes(16))
        write_core(self._disk, self._paths, reserved)
        return reserved

    def _recover_stages(self) -> RecoveredStages:
        """Staged bundles: prepared ones are kept, a publish that was begun is finished, the rest is deleted."""
        numbers, shelf = self._numbers, self._shelf
        found = recover_stages(self._disk, self._paths, numbers.incarnation, shelf.__contains__, self._give_up_segment)
        for part in found.published:
            self._shelf.add_sealed(part, found.infos[part.segment_seq])
            self._numbers.note_sealed(part)
        self._findings.notes += found.notes
        self._findings.quarantined += found.quarantined
        return found

    def _give_up_missing_logs(self, logs: list[FoundLog], readings: Readings, cursor: int | None) -> None:
        """Tell everybody of logs that are gone: before anything is sealed, as what proves it goes with that."""
        extents = {each.segment_seq: each for each in extents_of(logs, readings)}
        extents |= {each.segment_seq: each for each in self._shelf.extents}
        taken = {*extents, *self._shelf.segments, *self._shelf.damaged}
        missing = find_missing_logs([extents[seq] for seq in sorted(extents)], taken, cursor)
        if not missing or self._is_explained(logs):
            return
        for each in missing:
            self._findings.note_missing_log(self._paths.wal, each)
        self._subscribers.give_up_logs(missing)
        self._missing_logs += missing

    def _give_up_segment(self, segment_seq: int, bundle_count: int) -> None:
        """A part of a publish is lost."""
        lost = MissingLog(segment_seq, bundle_count)
        self._subscribers.give_up_logs([lost])
        self._missing_logs.append(lost)

    def _is_explained(self, logs: list[FoundLog]) -> bool:
        """Other files may be what seems to be missing."""
        if any(log.header_state is not Header.OURS and log.has_entries for log in logs):
            return True
        return any(name.endswith(PREPARED_SUFFIX) for name in self._disk.list_directory(self._paths.staged))

    def _settle(self, logs: list[FoundLog], readings: Readings, cursor: int | None, *, was_clean: bool) -> None:
        """Every log becomes segments. What other writers left behind the cursor is adopted."""
        parts = (self._disk, self._paths, self._numbers, self._shelf, self._findings)
        to_adopt = Settlement(*parts, self._producers, readings).settle(logs, cursor, is_clean=was_clean)
        covered = cursor or 0
        adoption = Adoption(
            *parts,
            self._producers,
            cfg_hash=self._cfg_hash,
            target_bytes=self._target_bytes,
            covered_position=covered,
        )
        if not adoption.adopt(to_adopt) and self._numbers.position > covered:
            # Also where it would not be needed: it has to bear the position once everything else that does is deleted.
            write_cursor(self._disk, self._paths, self._numbers.position)
        self._disk.sync_directory(self._paths.wal)
