"""The findings of one recovery: what it has moved aside, and what else an operator should know. It deletes nothing that cannot be parsed.

Owner: one `Recovery`.
"""

from __future__ import annotations

import enum
import logging
from typing import NamedTuple

from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import copy_span, move_to_quarantine
from quiver_actors.store.recovery.missing_logs import MissingLog
from quiver_actors.store.segment.outline import Read
from quiver_actors.store.wal.reader import Span
from quiver_actors.supervisor.log import log_event

NO_BUNDLE_OF_LOG = "an entry that cannot be a bundle of this log"
"""Why bytes whose CRC holds are kept aside: the entry has a type that nobody knows, a wrong number, or payloads that cannot be used."""


class EffectKind(enum.Enum):
    """Kind of action of a start on something that it finds. `verify` names it before the start."""

    ASIDE = "a file is moved to quarantine/"
    SPAN_ASIDE = "bytes of a file are copied to quarantine/, and nobody gets them"
    LOST = "a log or a segment is gone, and those who lose by it are told"
    RENUMBERED = "a segment of another writer gets another number"
    ADOPTED = "entries of another writer are laid into logs of ours"
    TAKEN_FOR_DELIVERED = "a segment of another writer counts as delivered to those whose watermark is above it"


class Effect(NamedTuple):
    """One thing that a start does. Paths are relative to the data directory."""

    kind: EffectKind
    path: str
    message: str
    offset: int | None = None
    """Byte of the file at which it begins; None for a whole file."""


class Findings:
    """Moves files into quarantine for one recovery, and collects notes for an operator.

    Attributes:
        quarantined: how many files and spans it has moved there.
        notes: sentences for an operator.
        effects: what it has done with whose entries.
    """

    def __init__(self, disk: Disk, paths: EnginePaths) -> None:
        self.quarantined = 0
        self.notes: list[str] = []
        self.effects: list[Effect] = []
        self._disk = disk
        self._paths = paths

    def quarantine(self, path: str, why: str) -> None:
        """Move a file to quarantine; count and log it with the reason."""
        self.note_quarantined(path, move_to_quarantine(self._disk, self._paths, path), why)

    def note_quarantined(self, path: str, target: str, why: str) -> None:
        """Count and log a file that was moved to quarantine, with the reason."""
        self.quarantined += 1
        self.notes.append(f"{path} moved to {target}: {why}")
        self.effects.append(Effect(EffectKind.ASIDE, path, why))
        log_event("quarantine", {"path": path, "target": target, "reason": why}, logging.WARNING)

    def note_missing_log(self, directory: str, missing: MissingLog) -> None:
        """Record a log that something other than a crash has removed."""
        count = missing.bundle_count or "nobody knows how many"
        message = f"the log of segment {missing.segment_seq} is gone: {count} bundles are lost"
        self.notes.append(f"{directory}: {message}")
        self.effects.append(Effect(EffectKind.LOST, directory, message))
        log_event("wal.missing", {"path": directory, **missing._asdict()}, logging.WARNING)

    def note_missing_segment(self, path: str, missing: MissingLog) -> None:
        """Note a sealed segment whose file somebody has deleted, and that not everybody had read."""
        count = missing.bundle_count or "nobody knows how many"
        message = f"is gone: {count} bundles are lost to those who had not read them"
        self.notes.append(f"{path} {message}")
        self.effects.append(Effect(EffectKind.LOST, path, message))
        log_event("segment.missing", {"path": path, **missing._asdict()}, logging.WARNING)

    def note_missing_part(self, path: str, missing: MissingLog) -> None:
        """Note a segment of a transaction that was to be published, and that nobody will ever get."""
        count = missing.bundle_count or "nobody knows how many"
        self.effects.append(Effect(EffectKind.LOST, path, f"cannot be published: {count} bundles are lost"))

    def note_renumbered(self, directory: str, segment_seq: int, new_segment_seq: int, bundle_count: int) -> None:
        """Note that a segment of another writer had a number which bundles of ours have had, and got another one."""
        message = f"segment {segment_seq} of another writer is new data under a number that was used before"
        self.notes.append(f"{message}: it is segment {new_segment_seq} now")
        self.effects.append(
            Effect(EffectKind.RENUMBERED, directory, f"{message}: it becomes segment {new_segment_seq}")
        )
        fields = {"path": directory, "segment": segment_seq, "new_segment": new_segment_seq, "bundles": bundle_count}
        log_event("foreign.renumbered", fields)

    def note_adopted(self, directory: str, sources: list[str], bundle_count: int) -> None:
        """Note that entries of another writer were laid into logs of ours."""
        self.notes.append(f"adopted {bundle_count} entries of another writer from {', '.join(sources)}")
        entries = "1 entry" if bundle_count == 1 else f"{bundle_count} entries"
        message = f"{entries} of another writer: laid into logs of ours and delivered"
        self.effects += [Effect(EffectKind.ADOPTED, f"{directory}/{sources[0]}", message)] if bundle_count else []
        log_event("foreign.adopted", {"path": directory, "logs": len(sources), "bundles": bundle_count})

    def note_taken_for_delivered(self, path: str, segment_seq: int) -> None:
        """Note that a segment of another writer counts as delivered to some: no start before has kept a record that would tell."""
        message = f"segment {segment_seq} of another writer counts as delivered to those whose watermark is above it"
        self.notes.append(message)
        self.effects.append(Effect(EffectKind.TAKEN_FOR_DELIVERED, path, message))

    def keep_span(self, read: Read, name: str, span: Span, why: str = "damaged") -> None:
        """Copy bytes aside that nobody can use; the file that holds them goes on to become a segment."""
        message = f"bytes {span.start}..{span.end} are {why}: nobody gets them"
        self.effects.append(Effect(EffectKind.SPAN_ASIDE, f"{self._paths.wal}/{name}", message, span.start))
        path = copy_span(self._disk, self._paths, read, name, span.start, span.end)
        if path is None:
            return
        self.quarantined += 1
        self.notes.append(f"{name}: bytes {span.start}..{span.end} are {why}, kept as {path}")
        fields: dict[str, object] = {
            "path": f"{self._paths.wal}/{name}",
            "start": span.start,
            "end": span.end,
            "kept": path,
        }
        log_event("wal.damage", fields, logging.WARNING)
