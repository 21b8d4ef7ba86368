"""Summaries of the sealed segments: the schemas that each of them has, known without a look at its file.

Owner: the engine, on the loop thread. The schema of a topic is asked for often and segments are many, so each distinct schema is kept once
for all segments that have it. A segment brings its schemas along when it is sealed; of others the file `quiver.summaries` tells, and what
that does not tell is looked at in the background. Until then such a segment is named as unknown, and a reader looks at it itself.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Collection, Iterable

import msgspec

from quiver_actors.base.clock import Clock
from quiver_actors.base.config.tree import TopicSettings
from quiver_actors.base.protocol.messages import SchemaInfo, SchemaList, SegmentColumns, StatisticsList
from quiver_actors.base.units import MIB, SECOND_NS
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
from quiver_actors.store.jobs.statistics import StatisticsJob
from quiver_actors.store.jobs.summaries import SaveSummariesJob, SummaryJob
from quiver_actors.store.segment.stored_schemas import schemas_of
from quiver_actors.store.wal.log import Log

SAVE_CHANGES_MIN = 64
"""The file is written after so many segments have come, and at a clean end: a crash costs a look at these."""
ANSWER_BYTES_MAX = 4 * MIB
"""Bytes of schemas in one answer; the segments of others count as unknown."""
STATISTICS_AGE_NS = 10 * SECOND_NS
"""How old a segment is when its statistics are made: most are gone by then where consumers keep up."""
STATISTICS_REST = 49
"""Pause after the statistics of a segment, in durations of that work: it takes a fiftieth of the time at most."""
ANSWER_SEGMENTS_MAX = 256
"""Segments in one answer about statistics: other requests do not wait long for it."""
NAMED_MAX = 4
"""How many of the segments that have a schema an answer names."""


class Summaries:
    """The summaries of one engine's sealed segments.

    Attributes:
        has_statistics: whether statistics are made of those that have none.
        bounded: the columns that get bounds in those that are made from now on; None: the first ones of each schema.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        clock: Clock,
        segments: SegmentTable,
        waiting: Collection[int],
        foreign: Collection[int],
    ) -> None:
        """Read the file.

        Args:
            waiting: segments that are not checked yet; nothing is looked at before they are.
            foreign: segments of other writers. The file says nothing of them: nothing tells them apart but their contents.
        """
        self._disk = disk
        self._paths = paths
        self._clock = clock
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
        self.has_statistics = True
        self.bounded: Collection[str] | None = None
        self._bare: deque[tuple[int, int]] = deque()
        """When to make the statistics of which segment, in that order; some may be gone, or have them by now."""
        self._job: StatisticsJob | None = None
        self._resumes_ns = self._spent_ns = 0
        found = _load(disk, paths)
        for segment_seq, info in sorted(segments.items()):
            summary = found.get(segment_seq)
            if summary is not None and segment_seq not in self._foreign and summary.identity == identity_of(info):
                self._put(segment_seq, summary)
        segments.changed = segments.keys() - self._known.keys()

    def change_settings(self, settings: TopicSettings) -> None:
        """Make statistics as these settings say from now on; those that are made stay as they are."""
        self.has_statistics = settings.segment.statistics == "auto"
        self.bounded = settings.bounded_columns()

    # --- what is known -------------------------------------------------------------------------------------------------------

    def schemas(self, tag: int, logs: Iterable[Log]) -> SchemaList:
        """Each distinct schema of sealed segments and of these logs, oldest first, and the sealed segments whose schemas are not known."""
        self._follow()
        open_segments: dict[StoredSchema, dict[int, None]] = {}
        for log in logs:
            for schema, _ in schemas_of(log.builder.streams):
                open_segments.setdefault(schema, {})[log.segment_seq] = None
        found, left_out, message_bytes = [], {*self._unknown, *self._unreadable}, 0
        for schema in {**self._holders, **open_segments}:
            holders, logs_of_it = self._holders.get(schema, {}), open_segments.get(schema, {})
            message_bytes += len(schema.message)
            if message_bytes > ANSWER_BYTES_MAX:
                left_out.update(holders, logs_of_it)
            else:
                some = tuple(itertools.islice(holders, NAMED_MAX))
                found.append(SchemaInfo(schema.slot_id, schema.message, len(holders), some, tuple(logs_of_it)))
        return SchemaList(tag, found, tuple(sorted(left_out)))

    def statistics(self, tag: int, first: int) -> StatisticsList:
        """Return what is known of the columns of the segments from `first` on, as far as one message holds it."""
        self._follow()
        schemas: dict[StoredSchema, int] = {}
        found: list[SegmentColumns] = []
        size_bytes = 0
        for segment_seq in sorted(seq for seq in self._known if seq >= first):
            summary = self._known[segment_seq]
            size_bytes += len(summary.statistics) + sum(
                len(each.message) for each, _ in summary.streams if each not in schemas
            )
            if len(found) == ANSWER_SEGMENTS_MAX or (found and size_bytes > ANSWER_BYTES_MAX):
                return StatisticsList(tag, _listed(schemas), found, segment_seq)
            streams = [(schemas.setdefault(schema, len(schemas)), rows) for schema, rows in summary.streams]
            found.append(SegmentColumns(segment_seq, streams, summary.statistics))
        return StatisticsList(tag, _listed(schemas), found)

    def of(self, segment_seq: int) -> Summary | None:
        """Return the summary of a segment, None if there is none."""
        self._follow()
        return self._known.get(segment_seq)

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
        if not summary.statistics:
            self._bare.append((self._clock.monotonic_ns() + STATISTICS_AGE_NS, segment_seq))
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
        segment_seq = next((seq for seq in self._unknown if seq not in self._segments.cold), None)
        if segment_seq is None:
            return None  # the cold disk is not read for that
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

    def statistics_job(self) -> StatisticsJob | None:
        """Return the next slice of the job that makes a segment's statistics; None if none is due."""
        due_ns = self.statistics_due_ns()
        if due_ns is None or self._clock.monotonic_ns() < due_ns:
            return None
        if self._job is None:
            _, segment_seq = self._bare.popleft()
            identity = self._known[segment_seq].identity
            self._job = StatisticsJob(self._disk, self._paths, segment_seq, identity, self.bounded)
        return self._job

    def statistics_due_ns(self) -> int | None:
        """When a segment's statistics are to be made, by the monotonic clock; None if there is nothing to do."""
        self._follow()
        if not self.has_statistics:
            return None
        if self._job is not None:
            return 0
        while self._bare and not self._is_bare(self._bare[0][1]):
            self._bare.popleft()
        return max(self._bare[0][0], self._resumes_ns) if self._bare else None

    def _is_bare(self, segment_seq: int) -> bool:
        known = self._known.get(segment_seq)
        return known is not None and not known.statistics and segment_seq not in self._segments.cold

    def finish_statistics(self, job: StatisticsJob) -> list[Event]:
        """Take back a slice. Slices of one segment follow each other, as its copy takes memory; then there is a rest."""
        self._spent_ns += job.took_ns
        if not job.is_done:
            return []
        self._job = None
        self._resumes_ns = self._clock.monotonic_ns() + STATISTICS_REST * self._spent_ns
        self._spent_ns = 0
        self._follow()
        known = self._known.get(job.segment_seq)
        if job.statistics and known is not None and known.identity == job.identity:
            self._put(job.segment_seq, Summary(job.identity, job.streams, job.statistics))
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
        """Write the file now, if anything has changed, and stop making statistics. Blocking; errors are logged."""
        self._job = None
        self._follow()
        if self._unsaved_count:
            self._write().run()

    def _write(self) -> SaveSummariesJob:
        self._unsaved_count = 0
        saved = {seq: summary for seq, summary in self._known.items() if seq not in self._foreign}
        return SaveSummariesJob(self._disk, self._paths, saved)


def _listed(schemas: Iterable[StoredSchema]) -> list[tuple[int, bytes]]:
    return [(schema.slot_id, schema.message) for schema in schemas]


def _load(disk: Disk, paths: EnginePaths) -> dict[int, Summary]:
    """What the file says; nothing where it is missing, damaged or newer."""
    try:
        return decode_summaries(read_whole(disk, paths.summaries, SUMMARIES_BYTES_MAX))
    except (DiskError, FormatError):
        return {}
