"""What one recovery has moved aside, and what else an operator should know of it. Nothing that cannot be parsed is deleted.

Owner: one `Recovery`.
"""

from __future__ import annotations

import logging

from quiver_actors.disk.protocol import Disk
from quiver_actors.paths import EnginePaths
from quiver_actors.quarantine import copy_span, move_to_quarantine
from quiver_actors.recovery.missing_logs import MissingLog
from quiver_actors.segment.outline import Read
from quiver_actors.supervisor.log import log_event
from quiver_actors.wal.reader import Span


class Findings:
    """See the module.

    Attributes:
        quarantined: how many files and spans are in quarantine by it.
        notes: a sentence each.
    """

    def __init__(self, disk: Disk, paths: EnginePaths) -> None:
        self.quarantined = 0
        self.notes: list[str] = []
        self._disk = disk
        self._paths = paths

    def quarantine(self, path: str, why: str) -> None:
        """Move a file aside."""
        self.note_quarantined(path, move_to_quarantine(self._disk, self._paths, path), why)

    def note_quarantined(self, path: str, target: str, why: str) -> None:
        self.quarantined += 1
        self.notes.append(f"{path} moved to {target}: {why}")
        log_event("quarantine", {"path": path, "target": target, "reason": why}, logging.WARNING)

    def note_missing_log(self, directory: str, missing: MissingLog) -> None:
        """Something else than a crash has taken it."""
        count = missing.bundle_count or "nobody knows how many"
        self.notes.append(f"{directory}: the log of segment {missing.segment_seq} is gone: {count} bundles are lost")
        log_event("wal.missing", {"path": directory, **missing._asdict()}, logging.WARNING)

    def keep_span(self, read: Read, name: str, span: Span) -> None:
        """Copy damaged bytes aside; the file that holds them goes on to become a segment."""
        path = copy_span(self._disk, self._paths, read, name, span.start, span.end)
        if path is None:
            return
        self.quarantined += 1
        self.notes.append(f"{name}: bytes {span.start}..{span.end} are damaged, kept as {path}")
        fields: dict[str, object] = {
            "path": f"{self._paths.wal}/{name}",
            "start": span.start,
            "end": span.end,
            "kept": path,
        }
        log_event("wal.damage", fields, logging.WARNING)
