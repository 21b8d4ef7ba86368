"""One opening of one directory, step by step.

Afterwards the directory holds sealed segments, progress files, `quiver.core`, `quiver.foreign` and an empty log; every acknowledged
bundle is in a segment. Every step can be cut off and done again: nothing is removed before what replaces it is durable, and nothing
that cannot be parsed is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Container, Iterable
from itertools import chain

from quiver_actors.base.config import TopicSettings
from quiver_actors.errors import ConfigMismatch, FormatError
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.core_file import CORE_NAME, SEGMENT_SEQ_BLOCK, CoreFile, decode_core
from quiver_actors.store.files.paths import (
    PREPARED_SUFFIX,
    QUARANTINE_NAME,
    TEMPORARY_SUFFIX,
    WITNESS_NAME,
    EnginePaths,
)
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.jobs.records import write_core
from quiver_actors.store.jobs.sealing import make_witness, write_cursor
from quiver_actors.store.recovery.adoption import Adoption
from quiver_actors.store.recovery.cold import ColdPlace, FoundCold
from quiver_actors.store.recovery.findings import Effect, EffectKind, Findings
from quiver_actors.store.recovery.foreign import FoundForeign
from quiver_actors.store.recovery.found_segments import FoundSegments
from quiver_actors.store.recovery.found_state import FoundState
from quiver_actors.store.recovery.logs import Readings, Settlement, end_of, examine_logs, extents_of
from quiver_actors.store.recovery.missing_logs import MissingLog, find_missing_logs
from quiver_actors.store.recovery.missing_segments import counts_of_missing, find_missing_segments
from quiver_actors.store.recovery.newest_log import NewestLog, is_newest_lost, number_of_newest
from quiver_actors.store.recovery.numbers import NumbersUsed
from quiver_actors.store.recovery.plans import Covered, believes_cursor, plan_logs
from quiver_actors.store.recovery.producers import FoundProducers
from quiver_actors.store.recovery.recovered import Recovered
from quiver_actors.store.recovery.subscribers import FoundSubscribers
from quiver_actors.store.recovery.takeover import Takeover
from quiver_actors.store.staged.recovery import RecoveredStages, check_versions, recover_stages
from quiver_actors.store.wal.codec import decode_cursor
from quiver_actors.store.wal.contract import segment_cfg_hash
from quiver_actors.store.wal.decisions import Behind, Header
from quiver_actors.store.wal.layout import CURSOR_NAME
from quiver_actors.store.wal.recovery import FoundLog


class Recovery:
    """One opening of one directory: `run` does all of it."""

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        core_id: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
        *,
        trusts_logs: bool = True,
        generation: int = 0,
        cfg_hash: bytes | None = None,
        cold: ColdPlace | None = None,
    ) -> None:
        """
        Args:
            cold: where cold segments lie, to make a list of them that is damaged anew; None: that is refused.
            trusts_logs: logs may become segments as they are; else all of them are written anew.
            cfg_hash: of the slot table that logs must be written under; None: the settings have it.
            generation: of the data directory; see `base.homes`.
        """
        self._generation = generation
        self._trusts_logs = trusts_logs
        self._core_damage = ""
        self._disk = disk
        self._paths = paths
        self._core_id = core_id
        self._cfg_hash = segment_cfg_hash(settings) if cfg_hash is None else cfg_hash
        self._target_bytes = settings.segment.target_size_bytes
        self._random_bytes = random_bytes
        self._findings = Findings(disk, paths)
        self._numbers = NumbersUsed()
        self._sealed_segments = FoundSegments(disk, paths, self._numbers, self._findings)
        self._subscribers = FoundSubscribers(disk, paths, self._findings)
        self._producers = FoundProducers(disk, paths, self._findings)
        self._foreign = FoundForeign(disk, paths, self._findings)
        self._cold = FoundCold(disk, paths, self._findings, cold)
        self._found = FoundState(
            disk,
            paths,
            self._findings,
            self._numbers,
            self._sealed_segments,
            self._subscribers,
            self._producers,
            self._foreign,
        )
        self._newest_log = NewestLog(self._found, self._cfg_hash)
        self._missing_logs: list[MissingLog] = []

    @property
    def effects(self) -> list[Effect]:
        """What `run` has done with whose entries so far."""
        return self._findings.effects

    def run(self) -> Recovered:
        """Recover the directory.

        Raises:
            UnsupportedVersion, ConfigMismatch: nothing was changed.
            DiskError: the same directory can be opened again. A log that the disk does not give back in full is such a case:
                what is missing of it may have been acknowledged, so only an operator may decide to lose it.
        """
        names, wal, segments = (
            self._disk.list_directory(directory)
            for directory in (self._paths.root, self._paths.wal, self._paths.segments)
        )
        former = self._read_core(names)
        logs, readings = examine_logs(self._disk, self._paths, wal, trusts=self._trusts_logs)
        self._check_config(logs)
        check_versions(self._disk, self._paths, names)
        self._foreign.read(names)
        self._sealed_segments.read(segments, self._foreign.record.segments)
        self._cold.read(names, self._sealed_segments)
        self._subscribers.read(names)
        self._producers.read(names)
        # Nothing was changed so far, and nothing is refused from here on.
        self._settle_small_files(names, wal, segments)
        logs = self._drop_unfinished(logs)
        self._numbers.note_segment_seq(self._subscribers.registry.highest_segment_seq_seen())
        for log in logs:
            self._numbers.note_log(log)
        if not (
            self._sealed_segments.segments or self._sealed_segments.damaged or any(log.scan.entry_count for log in logs)
        ):
            self._subscribers.follow_other_cores()
        cursor = self._read_cursor() if CURSOR_NAME in wal else None
        self._give_up_missing_logs(logs, readings, cursor)
        self._give_up_missing_segments(logs, readings, cursor)
        if former is not None and not former.clean_shutdown and WITNESS_NAME in names and is_newest_lost(logs):
            self._give_up_newest_log(former, logs, readings)
        if self._newest_log.vacate(logs, readings) and WITNESS_NAME not in names:
            make_witness(self._disk, self._paths)
        core = self._reserve(former)
        stages = self._recover_stages()
        covered = self._take_over(logs, readings, cursor, former)
        self._settle(logs, readings, covered, former)
        self._newest_log.leave_continuable()
        self._foreign.save(self._sealed_segments.foreign, self._numbers.position)
        self._producers.mark_recovered(self._generation)
        return self._recovered(core, stages)

    def _recovered(self, core: CoreFile, stages: RecoveredStages) -> Recovered:
        numbers, registry = self._numbers, self._subscribers.registry
        return Recovered(
            core,
            numbers.next_segment_seq,
            numbers.next_sequence,
            numbers.position,
            numbers.next_rotation,
            dict(sorted(self._sealed_segments.segments.items())),
            registry,
            self._sealed_segments.missing(registry.awaited_segments()),
            self._sealed_segments.damaged,
            self._findings.quarantined,
            self._disk.exists(self._paths.quarantine),
            self._findings.notes,
            stages,
            self._producers.windows,
            self._foreign.record,
            self._cold.content,
            self._cold.copied,
            self._missing_logs,
        )

    # --- reading what is there, before anything is changed -----------------------------------------------------------------

    def _read_core(self, names: Container[str]) -> CoreFile | None:
        if CORE_NAME not in names:
            return None
        try:
            return decode_core(read_small(self._disk, self._paths.core))
        except DAMAGE as error:
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
        for directory in (self._paths.wal, self._paths.segments):
            self._disk.make_directory(directory, needs_parent=True)
        if QUARANTINE_NAME in names:
            self._reap_temporaries(self._paths.quarantine, self._disk.list_directory(self._paths.quarantine))
        self._subscribers.bring_up()
        self._reap_temporaries(self._paths.root, names)
        self._reap_temporaries(self._paths.wal, wal)
        self._reap_temporaries(self._paths.segments, segments)
        if self._core_damage:
            self._findings.quarantine(self._paths.core, self._core_damage)
        self._sealed_segments.settle()
        self._subscribers.settle()
        self._cold.settle()
        self._producers.settle([seq for seq in self._sealed_segments.segments if seq not in self._cold.segments])
        self._foreign.settle()

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
        numbers, sealed_segments = self._numbers, self._sealed_segments
        found = recover_stages(
            self._disk, self._paths, numbers.incarnation, sealed_segments.__contains__, self._give_up_segment
        )
        for part in found.published:
            self._sealed_segments.add_sealed(part, found.infos[part.segment_seq])
            self._numbers.note_sealed(part)
        self._findings.notes += found.notes
        self._findings.quarantined += found.quarantined
        self._findings.effects += [Effect(EffectKind.ASIDE, path, why) for path, why in found.set_aside]
        return found

    def _give_up_missing_logs(self, logs: list[FoundLog], readings: Readings, cursor: int | None) -> None:
        """Tell everybody of logs that are gone: before anything is sealed, as what proves it goes with that."""
        extents = {each.segment_seq: each for each in extents_of(logs, readings)}
        extents |= {each.segment_seq: each for each in self._sealed_segments.extents}
        taken = {*extents, *self._sealed_segments.segments, *self._sealed_segments.damaged}
        missing = find_missing_logs([extents[seq] for seq in sorted(extents)], taken, cursor)
        if not missing or self._is_explained(logs):
            return
        for each in missing:
            self._findings.note_missing_log(self._paths.wal, each)
        self._subscribers.give_up_logs(missing)
        self._missing_logs += missing

    def _give_up_missing_segments(self, logs: list[FoundLog], readings: Readings, cursor: int | None) -> None:
        """Tell those who lose by segments that somebody has deleted while nobody had the directory open, and that their progress does not
        name. Progress that names such a segment learns how many bundles it had."""
        if self._is_explained(logs):
            return
        extents = {each.segment_seq: each for each in [*extents_of(logs, readings), *self._sealed_segments.extents]}
        end = end_of(logs)
        if end is not None and end.segment_seq > max(extents, default=-1):
            extents[end.segment_seq] = end
        files = [extents[seq] for seq in sorted(extents)]
        taken = {
            *extents,
            *self._sealed_segments.segments,
            *self._sealed_segments.damaged,
            *(each.segment_seq for each in self._missing_logs),
        }
        has_transactions = self._disk.exists(self._paths.transactions) or self._disk.exists(self._paths.staged)
        self._subscribers.note_counts(counts_of_missing(files, taken, cursor, has_transactions=has_transactions))
        if not self._subscribers.bare:
            return
        lost = find_missing_segments(
            files,
            taken,
            cursor,
            has_transactions=has_transactions,
            bare=self._subscribers.bare,
            watermark_max=self._subscribers.watermark_max,
        )
        for each in dict.fromkeys(missing for losses in lost.values() for missing in losses):
            self._findings.note_missing_segment(self._paths.segment(each.segment_seq), each)
            self._numbers.note_segment_seq(each.segment_seq)
        self._subscribers.give_up_each(lost)

    def _give_up_newest_log(self, former: CoreFile, logs: list[FoundLog], readings: Readings) -> None:
        """Tell everybody of the newest log, which is gone or blank: before anything is reserved, as that changes what proves it."""
        taken = [*self._sealed_segments.segments, *self._sealed_segments.damaged]
        taken += [each.segment_seq for each in extents_of(logs, readings)]
        taken += [each.segment_seq for each in self._missing_logs]
        lost = MissingLog(number_of_newest(former, taken, self._subscribers.registry), 0)
        self._findings.note_missing_log(self._paths.wal, lost)
        self._numbers.note_segment_seq(lost.segment_seq)
        self._subscribers.give_up_logs([lost])
        self._missing_logs.append(lost)

    def _give_up_segment(self, segment_seq: int, bundle_count: int) -> None:
        """Record a part of a publish as lost, and tell subscribers of it."""
        lost = MissingLog(segment_seq, bundle_count)
        self._findings.note_missing_part(self._paths.segment(segment_seq), lost)
        self._subscribers.give_up_logs([lost])
        self._missing_logs.append(lost)

    def _is_explained(self, logs: list[FoundLog]) -> bool:
        """Whether other files may be what seems to be missing."""
        if any(log.header_state is not Header.OURS and log.has_entries for log in logs):
            return True
        return any(name.endswith(PREPARED_SUFFIX) for name in self._disk.list_directory(self._paths.staged))

    # --- other writers -------------------------------------------------------------------------------------------------------

    def _targets(self, logs: list[FoundLog]) -> set[int]:
        """Numbers of segments of ours, and of logs of ours that are whole by themselves and not what an adoption has read. Another writer
        may have given the number of a target that never got its name to a segment of its own. An empty log of ours was deleted before an
        adoption took its number, and came back by a power loss: a target has entries."""
        own = (
            log for log in logs if log.header_state is Header.OURS and (log.has_entries or log.behind is Behind.TAIL)
        )
        own = (log for log in own if not self._foreign.is_source(log))
        identities = (log.header.identity for log in own if log.header is not None)
        segments = self._sealed_segments.segments.keys() - self._sealed_segments.foreign.keys()
        return {*segments, *(identity.segment_seq for identity in identities if identity is not None)}

    def _drop_unfinished(self, logs: list[FoundLog]) -> list[FoundLog]:
        """Remove what an adoption that was cut off has left, and that will be made again. Returns the others."""
        dropped = self._foreign.unfinished_targets(logs, self._targets(logs))
        for log in dropped:
            self._disk.unlink(f"{self._paths.wal}/{log.name}")
        if dropped:
            self._disk.sync_directory(self._paths.wal)
        return [log for log in logs if log not in dropped]

    def _take_over(
        self, logs: list[FoundLog], readings: Readings, cursor: int | None, former: CoreFile | None
    ) -> Covered:
        """Give segments of another writer other numbers where those were used before; say which entries are in segments."""
        targets = self._targets(logs)
        taken = self._foreign.taken_spans(logs, targets)
        adopted = [*taken] if self._foreign.is_adopted(targets) else []
        takeover = Takeover(self._found)
        takeover.decide(logs, adopted, _used_segments(former))
        takeover.carry_out()
        self._take_over_keys(takeover, readings)
        self._foreign.note_segments(self._sealed_segments.foreign)
        ends = [extent.position_end for extent in self._sealed_segments.extents]
        starts = [log.position_start for log in logs if log.header_state is Header.OURS]
        accounted = max([self._foreign.record.position, *ends, *starts])
        believes = believes_cursor(logs, cursor or 0, accounted, has_record=not self._foreign.is_upgrade)
        if self._foreign.has_lost_sources(logs):
            # An adoption was cut off, and the other writer has been here since: the adoption's logs end its replays, and may be gone now.
            believes = False
        if not believes:
            # What says so may be gone when a start that is cut off is done again.
            self._foreign.raise_position(self._numbers.position)
        return Covered(cursor, believes, takeover.held_ends, taken, adopted)

    def _take_over_keys(self, takeover: Takeover, readings: Readings) -> None:
        """What producers have stored in segments that another writer has made: before the logs go that they were made of."""
        keys = chain.from_iterable(replay.keys for replay in readings.replays.values())
        sequences = {(producer, run.first): run.sequence for producer, run in keys}
        for segment_seq in takeover.new:
            self._producers.take_over(takeover.renumbered.get(segment_seq, segment_seq), sequences)
        self._producers.save()

    def _settle(self, logs: list[FoundLog], readings: Readings, covered: Covered, former: CoreFile | None) -> None:
        """Every log becomes segments. What other writers left behind the cursor is adopted."""
        plans = plan_logs(logs, covered, is_clean=former is not None and former.clean_shutdown)
        sources = Settlement(self._found, readings).settle(plans)
        adoption = Adoption(self._found, cfg_hash=self._cfg_hash, target_bytes=self._target_bytes)
        if not adoption.adopt(sources) and self._numbers.position > (covered.cursor_position or 0):
            # Also where it would not be needed: it has to bear the position once everything else that does is deleted.
            write_cursor(self._disk, self._paths, self._numbers.position)
        self._disk.sync_directory(self._paths.wal)


def _used_segments(former: CoreFile | None) -> int:
    """Segment numbers below it were used, or were left out by a start that was no clean one."""
    if former is None:
        return 0
    ahead = 0 if former.clean_shutdown else SEGMENT_SEQ_BLOCK
    return max(0, former.next_segment_seq_reserved - ahead)
