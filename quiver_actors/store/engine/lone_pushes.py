"""The short way of a push that travels alone: checked, numbered, written, and its commit begun, in one call.

Owner: the engine, on the loop thread. Only where nothing else is under way in the engine: everything that was staged is durable, no commit
is out, and log and segment have room for another entry. Everything else is left to `Intake`, `Engine.write` and
`GroupCommit`, which do the same with more calls.
"""

from __future__ import annotations

from quiver_actors.base.clock import Clock
from quiver_actors.base.model import SEGMENT_BUNDLES_MAX
from quiver_actors.errors import QuiverError
from quiver_actors.store.engine.condition import Condition
from quiver_actors.store.engine.group_commit import GroupCommit
from quiver_actors.store.engine.intake import Intake
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.numbers import Numbers
from quiver_actors.store.engine.producers import Producers
from quiver_actors.store.jobs.commits import LoneCommit
from quiver_actors.store.segment.layout import STREAMS_MAX
from quiver_actors.store.wal import layout
from quiver_actors.store.wal.admission import PUSH_ENTRIES_MAX, PUSH_SLOTS_MAX
from quiver_actors.store.wal.log import Log
from quiver_actors.store.wal.lone import LoneStream, is_sound

_BUNDLES_MAX = SEGMENT_BUNDLES_MAX - PUSH_ENTRIES_MAX
_STREAMS_MAX = STREAMS_MAX - PUSH_SLOTS_MAX


class LonePushes(Intake):
    """The intake of one engine, which also takes pushes that travel alone.

    Attributes:
        segment_seq, bundle_index, sequence, item_count: of the bundle that was taken alone last.
    """

    def __init__(
        self,
        place: str,
        clock: Clock,
        condition: Condition,
        numbers: Numbers,
        logs: LogQueue,
        producers: Producers,
        group_commit: GroupCommit,
    ) -> None:
        """
        Args:
            place: topic and core, for errors.
        """
        super().__init__(place, clock, condition, numbers, logs, producers)
        self.segment_seq = self.bundle_index = self.sequence = 0
        self.item_count = -1
        self._group_commit = group_commit

    def take_lone(
        self,
        span: memoryview,
        stream: LoneStream,
        crc: int,
        row_count: int,
        metadata_bytes: int,
        body_bytes: int,
        item_count: int,
    ) -> LoneCommit | None:
        """Check, complete, number and write an unfinished entry, and begin its commit. None: it has to go the general way, and nothing
        has happened.

        If the write fails, the engine has failed. The commit then has the error, and is not to be carried out.

        Args:
            span: private, writable memory, which is completed in place only if the entry is taken.
            crc, row_count, metadata_bytes, body_bytes: as of `is_sound`.
            item_count: -1: unknown.
        """
        log, size_bytes, numbers = self._logs.active, len(span), self._numbers
        if (
            log is None
            or item_count < -1
            or not self._may_take(log, size_bytes)
            or not is_sound(span, stream, crc, row_count, metadata_bytes, body_bytes)
        ):
            return None
        commit = self._group_commit.begin_lone(log, size_bytes)
        if commit is None:
            return None
        builder = log.builder
        self.segment_seq, self.bundle_index = builder.segment_seq, builder.bundle_count
        self.sequence, self.item_count = log.sequence_end, item_count
        clock = self._clock
        try:
            log.write_lone(
                span,
                stream,
                row_count,
                metadata_bytes,
                body_bytes,
                item_count,
                clock.unix_ns(),
                clock.monotonic_ns(),
            )
        except QuiverError as error:
            self._condition.fail(error)
            commit.error = error.with_traceback(None)
        numbers.next_sequence = self._logs.sequence_written = log.sequence_end
        numbers.position += size_bytes
        self.bundles_in += 1
        self.rows_in += row_count
        self.bytes_in += size_bytes
        return commit

    def _may_take(self, log: Log, size_bytes: int) -> bool:
        """Whether nothing else is in the log that is not durable, and the log stays open with the entry."""
        builder, limits, end = log.builder, self._logs.settings.segment, log.end + size_bytes
        bundle_count = builder.bundle_count
        return (
            self._condition.takes_bundles
            and log.published
            and not (log.closed or log.has_staged)
            and log.synced_end == log.end > layout.HEADER_BYTES
            and end + layout.END_MARK_BYTES <= log.capacity_bytes
            and end - layout.HEADER_BYTES < limits.target_size_bytes
            and bundle_count <= _BUNDLES_MAX
            and bundle_count + 1 < limits.max_bundle_count
            and self._numbers.has_sequences(PUSH_ENTRIES_MAX)
            and builder.stream_count + 1 < min(limits.max_stream_count, _STREAMS_MAX)
        )
