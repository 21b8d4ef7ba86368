"""Summaries of the sealed segments: the schemas that each of them has, known without a look at its file.

Owner: the engine, on the loop thread. The schema of a topic is asked for often and segments are many, so each distinct schema is kept once
for all segments that have it. A segment brings its schemas along when it is sealed; of others the file `quiver.summaries` tells, and what
that does not tell is looked at in the background. Until then such a segment is named as unknown, and a reader looks at it itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import msgspec

from quiver_actors.base.protocol.messages import SchemaInfo, SchemaList
from quiver_actors.base.units import MIB
from quiver_actors.errors import DiskError, FormatError
from quiver_actors.store.disk.protocol import Disk, read_whole
from quiver_actors.store.engine.events import Event
from quiver_actors.store.engine.segment_table import SegmentTable
from quiver_actors.store.files.paths import EnginePaths
from quiver_actors.store.files.summaries import (
    SUMMARIES_BYTES_MAX,
    StoredSchema,
    StoredSchemas,
    Summary,
    decode_summaries,
    identity_of,
)
from quiver_actors.store.jobs.summaries import SaveSummariesJob, SummaryJob
from quiver_actors.store.segment.stored_schemas import schemas_of
from quiver_actors.store.wal.log import Log

SAVE_CHANGES_MIN = 64
"""The file is written after so many segments have come, and at a clean end: a crash costs a look at these."""
ANSWER_BYTES_MAX = 4 * MIB
"""Bytes of schemas in one answer; the segments of others count as unknown."""
NAMED_MAX = 4
"""How many of the segments that have a schema an answer names."""


class Summaries:
    """The summaries of one engine's sealed segments."""

    def __init__(
        self, disk: Disk, paths: EnginePaths, segments: SegmentTable, waiting: Collection[int], foreign: Collection[int]
    ) -> None:
        """Read the file.

        Args:
            waiting: segments that are not checked yet; nothing is looked at before they are.
            foreign: segments of other writers. The file says nothing of them: nothing tells them apart but their contents.
        """
        self._disk = disk
        self._paths = paths
        self._segments = segments
        self._waiting = waiting
        self._foreign = frozenset(foreign)
        self._known: dict[int, Summary] = {}
        self._same: dict[StoredSchema, StoredSchema] = {}
        """Each schema that a segment has, so that all share one copy of it."""
        self._holders: dict[StoredSchema, dict[int, None]] = {}
        """The segments that have each schema."""
        self._unknown: dict[int, None] = {}
        """Segments that have no summary yet, and can be looked at."""
        self._unreadable: set[int] = set()
        """Segments that had a look which told nothing; they are as they were then."""
        self._unsaved_count = 0
        found = _load(disk, paths)
        for segment_seq, info in segments.items():
            summary = found.get(segment_seq)
            if summary is not None and segment_seq not in self._foreign and summary.identity == identity_of(info):
                self._put(segment_seq, summary)
        segments.changed = segments.keys() - self._known.keys()

    # --- what is known -------------------------------------------------------------------------------------------------------

    def schemas(self, tag: int, logs: Iterable[Log]) -> SchemaList:
        """Each distinct schema of sealed segments and of these logs, and the sealed segments whose schemas are not known."""
        self._follow()
        open_segments: dict[StoredSchema, dict[int, None]] = {}
        for log in logs:
            for schema, _ in schemas_of(log.builder.streams):
                open_segments.setdefault(schema, {})[log.segment_seq] = None
        found, left_out, message_bytes = [], {*self._unknown, *self._unreadable}, 0
        for schema in self._holders.keys() | open_segments.keys():
            holders, logs_of_it = self._holders.get(schema, {}), open_segments.get(schema, {})
            message_bytes += len(schema.message)
            if message_bytes > ANSWER_BYTES_MAX:
                left_out.update(holders, logs_of_it)
            else:
                some = tuple(itertools.islice(holders, NAMED_MAX))
                found.append(SchemaInfo(schema.slot_id, schema.message, len(holders), some, tuple(logs_of_it)))
        return SchemaList(tag, found, tuple(sorted(left_out)))

    # --- segments come and go --------------------------------------------------------------------------------------------------

    def sealed(self, segment_seq: int, streams: StoredSchemas) -> None:
        """A segment was sealed that has these streams."""
        info = self._segments.get(segment_seq)
        if info is not None:
            self._put(segment_seq, Summary(identity_of(info), streams))
            self._unsaved_count += 1

    def _follow(self) -> None:
        """Take notice of the segments that have come, changed or gone."""
        changed, self._segments.changed = self._segments.changed, set()
        for segment_seq in changed:
            info, known = self._segments.get(segment_seq), self._known.get(segment_seq)
            self._unreadable.discard(segment_seq)
            self._unknown.pop(segment_seq, None)
            if info is not None and known is not None and known.identity == identity_of(info):
                continue
            if known is not None:
                self._take(segment_seq)
                self._unsaved_count += 1
            if info is not None:
                self._unknown[segment_seq] = None

    def _put(self, segment_seq: int, summary: Summary) -> None:
        if segment_seq in self._known:
            self._take(segment_seq)
        streams = tuple((self._same.setdefault(schema, schema), rows) for schema, rows in summary.streams)
        self._known[segment_seq] = msgspec.structs.replace(summary, streams=streams)
        for schema, _ in streams:
            self._holders.setdefault(schema, {})[segment_seq] = None

    def _take(self, segment_seq: int) -> None:
        for schema, _ in self._known.pop(segment_seq).streams:
            holders = self._holders[schema]
            del holders[segment_seq]
            if not holders:
                del self._holders[schema], self._same[schema]

    # --- jobs ------------------------------------------------------------------------------------------------------------------

    def look_job(self) -> SummaryJob | None:
        """Return the job that looks at the next segment without a summary; None if there is none."""
        self._follow()
        if not self._unknown or self._waiting:
            return None
        segment_seq = next(iter(self._unknown))
        return SummaryJob(self._disk, self._paths, segment_seq, identity_of(self._segments[segment_seq]))

    def finish_look(self, job: SummaryJob) -> list[Event]:
        """Take back a look at a segment."""
        self._follow()
        if job.segment_seq not in self._unknown:
            return []
        info = self._segments[job.segment_seq]
        if identity_of(info) != job.identity:
            return []
        del self._unknown[job.segment_seq]
        if job.streams is None:
            self._unreadable.add(job.segment_seq)
        else:
            self._put(job.segment_seq, Summary(job.identity, job.streams))
            self._unsaved_count += 1
        return []

    def save_job(self) -> SaveSummariesJob | None:
        """Return the job that writes the file, if enough has changed."""
        if self._unsaved_count < SAVE_CHANGES_MIN:
            return None
        return self._write()

    def finish_save(self, job: SaveSummariesJob) -> list[Event]:
        """Take back the job that wrote the file. One that could not is tried again after as many changes as before."""
        return []

    def save(self) -> None:
        """Write the file now, if anything has changed. Blocking; errors are logged."""
        self._follow()
        if self._unsaved_count:
            self._write().run()

    def _write(self) -> SaveSummariesJob:
        self._unsaved_count = 0
        saved = {seq: summary for seq, summary in self._known.items() if seq not in self._foreign}
        return SaveSummariesJob(self._disk, self._paths, saved)


def _load(disk: Disk, paths: EnginePaths) -> dict[int, Summary]:
    """What the file says; nothing where it is missing, damaged or newer."""
    try:
        return decode_summaries(read_whole(disk, paths.summaries, SUMMARIES_BYTES_MAX))
    except (DiskError, FormatError):
        return {}
