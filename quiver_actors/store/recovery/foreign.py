"""The record of other writers that a start reads and leaves for the next one: `quiver.foreign`. See `foreign_record`.

Owner: one `Recovery`. Without the file the directory was never opened by a program that keeps it: segments below a watermark were delivered
then, as that program took them to be. A file that cannot be read says nothing: what may be new is delivered, perhaps once more. It is
replaced and not moved, so that no crash makes it look like a directory that never had one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from quiver_actors.store.disk.protocol import Disk, write_atomically
from quiver_actors.store.disk.salvage import read_small
from quiver_actors.store.files.foreign_record import (
    FOREIGN_NAME,
    AdoptedEntry,
    AdoptedSource,
    ForeignRecord,
    ForeignSegment,
    decode_foreign,
    encode_foreign,
)
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.quarantine import keep_in_quarantine
from quiver_actors.store.format.framing import DAMAGE
from quiver_actors.store.recovery.findings import Findings
from quiver_actors.store.wal.decisions import Header
from quiver_actors.store.wal.reader import LogReader, Span
from quiver_actors.store.wal.recovery import FoundLog


class FoundForeign:
    """The record of other writers in one engine's directory, from a start that reads it to its next version.

    Attributes:
        record: what was read from the file, or last written to it.
        is_upgrade: no start that keeps the record was done in the directory yet.
    """

    def __init__(self, disk: Disk, paths: EnginePaths, findings: Findings) -> None:
        self.record = ForeignRecord()
        self.is_upgrade = True
        self._disk = disk
        self._paths = paths
        self._findings = findings
        self._damage = ""
        self._stored: bytes | None = None

    def read(self, names: Collection[str]) -> None:
        """Read the file, and change nothing.

        Args:
            names: what is in the root.

        Raises:
            UnsupportedVersion: it is of a newer program.
        """
        self.is_upgrade = FOREIGN_NAME not in names
        if self.is_upgrade:
            self.record = ForeignRecord(is_first=True)
            return
        content = read_small(self._disk, self._paths.foreign)
        try:
            self.record, self._stored = decode_foreign(content), content
        except DAMAGE as error:
            self._damage = str(error)
        self.is_upgrade = self.record.is_first

    def settle(self) -> None:
        """Keep a copy of a damaged file. It stays in its place until the first `save`."""
        if self._damage:
            kept_as = keep_in_quarantine(self._disk, self._paths, self._paths.foreign)
            why = f"{self._damage}; segments of other writers may be delivered once more"
            self._findings.note_quarantined(self._paths.foreign, kept_as, why)

    # --- an adoption that was cut off --------------------------------------------------------------------------------------

    def is_adopted(self, has_target: Collection[int]) -> bool:
        """Whether an adoption before has laid everything that it read into its targets, and every target is there.

        Args:
            has_target: numbers of segments, and of logs of ours that are no sources.
        """
        return bool(self.record.targets) and set(self.record.targets) <= set(has_target)

    def taken_spans(self, logs: Iterable[FoundLog], has_target: Collection[int]) -> dict[str, frozenset[Span]]:
        """The entries of logs that an adoption before has read, and that are stored elsewhere now, by the log's name.

        Args:
            has_target: see `is_adopted`.
        """
        found = ((log, self._source_of(log)) for log in logs)
        spans = {log.name: self._taken_of(log, source, has_target) for log, source in found if source is not None}
        return {name: taken for name, taken in spans.items() if taken}

    def _taken_of(self, log: FoundLog, source: AdoptedSource, has_target: Collection[int]) -> frozenset[Span]:
        left = self._left_of(log, source)
        return frozenset(span for span, entry in left.items() if entry.target is None or entry.target in has_target)

    def _left_of(self, log: FoundLog, source: AdoptedSource) -> dict[Span, AdoptedEntry]:
        """What was read of the file and is still in it: entries may be gone, and others may have come in their places."""
        read = {entry.start: entry for entry in source.entries}
        here = [span for span in log.scan.entries if span.start in read]
        file = self._disk.open_read(f"{self._paths.wal}/{log.name}")
        try:
            reader = LogReader(file.read, log.size_bytes)
            return {span: read[span.start] for span in here if reader.checksum_of(span) == read[span.start].crc32}
        finally:
            file.close()

    def unfinished_targets(self, logs: list[FoundLog], has_target: Collection[int]) -> list[FoundLog]:
        """Logs of an adoption that was cut off before all of its targets were there: copies of entries that the sources still hold. None
        if a source is not there any more, or has not all that was read of it."""
        if set(self.record.targets) <= set(has_target):
            return []
        found = [(log, source) for log in logs if (source := self._source_of(log)) is not None]
        if len(found) < len(self.record.sources) or not all(self._has_all(*each) for each in found):
            return []
        return [log for log in logs if not self.is_source(log) and _number_of(log) in self.record.targets]

    def has_lost_sources(self, logs: Iterable[FoundLog]) -> bool:
        """Whether something that an adoption that was cut off has read is not there any more, or was changed."""
        found = [(log, source) for log in logs if (source := self._source_of(log)) is not None]
        return len(found) < len(self.record.sources) or not all(self._has_all(*each) for each in found)

    def _source_of(self, log: FoundLog) -> AdoptedSource | None:
        key = log.name, log.position_start
        return next((source for source in self.record.sources if source[:2] == key), None)

    def _has_all(self, log: FoundLog, source: AdoptedSource) -> bool:
        """Whether the file still has all that was read of it."""
        return bool(source.entries) and len(self._left_of(log, source)) == len(source.entries)

    def is_source(self, log: FoundLog) -> bool:
        """Whether an adoption that was cut off has read that log."""
        return self._source_of(log) is not None

    def note_adoption(self, targets: Iterable[int], sources: Iterable[AdoptedSource]) -> None:
        """Say durably which logs the targets are made of, before the first target gets its name."""
        self._write(replace(self.record, targets=tuple(targets), sources=tuple(sources)))

    # --- segments -----------------------------------------------------------------------------------------------------------

    def was_announced(self, segment_seq: int, segment: ForeignSegment) -> bool:
        """Whether that very file was there at a start before."""
        return self.record.segments.get(segment_seq) == segment

    def note_segments(self, segments: Mapping[int, ForeignSegment]) -> None:
        """The segments of other writers that are there now: written with the next record."""
        self.record = replace(self.record, segments=dict(segments))

    def raise_position(self, position: int) -> None:
        """Say durably that the cursor does not speak of logs that begin before that position."""
        self._write(replace(self.record, position=max(position, self.record.position)))

    def save(self, segments: Mapping[int, ForeignSegment], position: int) -> None:
        """Say durably which segments subscribers are told of from now on. No adoption is under way any more."""
        self._write(ForeignRecord(position, dict(segments)))

    def _write(self, record: ForeignRecord) -> None:
        self.record = record
        content = encode_foreign(record)
        if content == self._stored:
            return
        write_atomically(self._disk, self._paths.foreign, content)
        self._disk.sync_directory(self._paths.root)
        self._stored = content


def _number_of(log: FoundLog) -> int | None:
    identity = log.identity
    return identity.segment_seq if identity is not None and log.header_state is Header.OURS else None
