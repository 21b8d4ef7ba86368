"""What one engine keeps and what goes: its rules at every tick, the claims of the coordinator, and the account of its directory.

Owner: the engine, on the loop thread. The rules themselves are `quiver_actors.retention.rules`; here they meet segments. A file goes as
every file goes: by the shelf's delete job, once the progress and the notices that name its loss are durable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from quiver_actors.ballast import Ballast
from quiver_actors.clock import Clock
from quiver_actors.config import RetentionSettings, TopicSettings
from quiver_actors.disk.protocol import Disk
from quiver_actors.engine.log_queue import LogQueue
from quiver_actors.engine.progress import Progress
from quiver_actors.engine.shelf import Shelf
from quiver_actors.events import Event
from quiver_actors.footprint import Footprint, MeasureJob, list_strays, measure_small_files
from quiver_actors.paths import EnginePaths, segment_seq_of
from quiver_actors.protocol.messages import SegmentInfo
from quiver_actors.retention.account import DiskUse, block_bytes
from quiver_actors.retention.ages import Ages
from quiver_actors.retention.choice import IN_LOGS, Candidate
from quiver_actors.retention.rules import DROP_OLDEST, Facts, Verdict, class_of, judge
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from quiver_actors.units import SECOND_NS

MEASURE_INTERVAL_NS = 2 * SECOND_NS
LIST_INTERVAL_NS = 60 * SECOND_NS
"""How often the directory of the segments is listed, for files that somebody else has put there."""
HELD_RETRY_NS = SECOND_NS
"""When a segment that is over age and held by a consumer is looked at again."""


class Retention:
    """See the module.

    Attributes:
        settings: of the topic; may be replaced while the engine runs.
    """

    def __init__(
        self,
        disk: Disk,
        paths: EnginePaths,
        settings: TopicSettings,
        clock: Clock,
        progress: Progress,
        logs: LogQueue,
        shelf: Shelf,
        ballast: Ballast,
    ) -> None:
        self._ballast = ballast
        self._settings: RetentionSettings = settings.retention
        self._topic = settings.name
        self._disk = disk
        self._paths = paths
        self._clock = clock
        self._progress = progress
        self._logs = logs
        self._shelf = shelf
        self._ages = Ages()
        self._recheck_ns = 0
        self._strays: set[str] = set()
        self._take(measure_small_files(disk, paths, list_strays(disk, paths, shelf.segments)))
        self._is_measured = True
        self._measure_due_ns = clock.monotonic_ns() + MEASURE_INTERVAL_NS
        self._list_due_ns = clock.monotonic_ns() + LIST_INTERVAL_NS

    @property
    def settings(self) -> RetentionSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: RetentionSettings) -> None:
        """Another spool may let segments go, another age is looked at with the next tick."""
        self._settings = settings
        self._recheck_ns = 0
        self._shelf.search_again()

    # --- rules that need nobody else ---------------------------------------------------------------------------------------

    def tick(self) -> list[Event]:
        """Let go what is over age."""
        now_ns = self._clock.monotonic_ns()
        self._see_all(now_ns)
        max_age_ns = self.settings.max_age_ns
        if not max_age_ns or now_ns < self._recheck_ns:
            return []
        expired = set(self._ages.expired(max_age_ns, now_ns))
        for segment_seq in expired - self._shelf.segments.keys():
            self._ages.forget(segment_seq)
        if expired:
            self._judge_all({}, expired, expired)
            self._recheck_ns = now_ns + HELD_RETRY_NS
        return self._progress.take_events()

    def _see_all(self, now_ns: int) -> None:
        unix_ns = self._clock.unix_ns()
        for segment_seq in self._shelf.take_new():
            info, begun_ns = self._shelf.segments.get(segment_seq), self._shelf.begun_ns.pop(segment_seq, None)
            if info is not None:
                self._ages.see(segment_seq, info.last_ingestion_ts_nanos, unix_ns, now_ns, begun_ns)
        for segment_seq in self._shelf.take_gone():
            self._ages.forget(segment_seq)

    def deadline_ns(self) -> int | None:
        """When `tick` has something to do, as far as only time decides about it."""
        if not self.settings.max_age_ns:
            return None
        due_ns = self._ages.next_expiry_ns(self.settings.max_age_ns)
        return None if due_ns is None else max(due_ns, self._recheck_ns)

    def spool(self, processed: Collection[int]) -> set[int]:
        """The newest of the processed segments that `steady_state_headroom` keeps."""
        left_bytes, kept = self.settings.steady_state_headroom_bytes, set[int]()
        for segment_seq in sorted(processed, reverse=True):
            left_bytes -= block_bytes(self._shelf.segments[segment_seq].size_bytes)
            if left_bytes < 0:
                break
            kept.add(segment_seq)
        return kept

    # --- claims of the coordinator -----------------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """What may go for want of space."""
        processed = set(self._shelf.processed())
        held = self._progress.registry.held_segments()
        return [*self._sealed_candidates(processed, held), *self._open_candidate()]

    def _sealed_candidates(self, processed: set[int], held: set[int]) -> Iterator[Candidate]:
        oldest_unix_ns = NO_LIMIT
        for segment_seq in sorted(self._shelf.droppable(), reverse=True):
            info = self._shelf.segments[segment_seq]
            # A segment is not younger than one that was sealed after it, whatever the clock was set to meanwhile.
            oldest_unix_ns = min(oldest_unix_ns, max(0, info.first_ingestion_ts_nanos))
            kind = class_of(segment_seq in processed, segment_seq in held, self.settings.size_cap_policy)
            if kind:
                yield Candidate(kind, oldest_unix_ns, self._topic, segment_seq, block_bytes(info.size_bytes))

    def _open_candidate(self) -> Iterator[Candidate]:
        unix_ns = self._logs.first_ingestion_unix_ns()
        if unix_ns and self.settings.size_cap_policy == DROP_OLDEST:
            yield Candidate(EvictionClass.OPEN, unix_ns, self._topic, IN_LOGS, self._logs.entry_bytes)

    def let_go(self, chosen: Collection[Candidate]) -> None:
        """Carry a claim out: what `choose` has chosen of this engine's candidates goes, as far as the rules allow."""
        claimed = {each.segment_seq: each.eviction_class for each in chosen}
        if claimed.pop(IN_LOGS, None):
            self._logs.seal_now()
        self._judge_all(claimed, claimed.keys(), set())

    def _judge_all(self, claimed: dict[int, int], segment_seqs: Collection[int], expired: Collection[int]) -> None:
        processed = set(self._shelf.processed())
        held = self._progress.registry.held_segments()
        spool = self.spool(processed)
        droppable = set(self._shelf.droppable())
        for segment_seq in sorted(segment_seqs):
            if segment_seq not in droppable:
                continue
            facts = Facts(
                is_processed=segment_seq in processed,
                is_held=segment_seq in held,
                is_expired=segment_seq in expired,
                in_spool=segment_seq in spool,
                policy=self.settings.size_cap_policy,
                claimed_class=claimed.get(segment_seq, 0),
            )
            outcome = judge(facts)
            if outcome.verdict is Verdict.DELETE:
                self._shelf.release(segment_seq, outcome.reason)
            elif outcome.verdict is Verdict.DROP:
                self._shelf.drop(segment_seq, outcome.reason)

    # --- the account -------------------------------------------------------------------------------------------------------

    def touched(self) -> None:
        """Small files may have changed."""
        self._is_measured = False

    def look_again(self) -> bool:
        """Asked now and then, also while nothing happens: have the directory of the segments listed if that is long ago. Whether it is."""
        is_due = bool(self._shelf.segments) and self._clock.monotonic_ns() >= self._list_due_ns
        if is_due:
            self.touched()
        return is_due

    def list_due_ns(self) -> int | None:
        """When that is next, if there is anything to list."""
        return self._list_due_ns if self._shelf.segments else None

    def watch(self, strays: Collection[str]) -> None:
        """Work is begun that may leave files of these names beside the segments."""
        self._strays.update(strays)

    def measure_job(self) -> MeasureJob | None:
        now_ns = self._clock.monotonic_ns()
        if self._is_measured or now_ns < self._measure_due_ns:
            return None
        self._is_measured = True
        self._measure_due_ns = now_ns + MEASURE_INTERVAL_NS
        segments, lists_all = self._shelf.segments, now_ns >= self._list_due_ns
        if lists_all:
            self._list_due_ns = now_ns + LIST_INTERVAL_NS
        self._strays = {name for name in self._strays if segment_seq_of(name) not in segments}
        return MeasureJob(self._disk, self._paths, frozenset(self._strays), frozenset(segments) if lists_all else None)

    def measure_due_ns(self) -> int | None:
        return None if self._is_measured else self._measure_due_ns

    def finish_measure(self, job: MeasureJob) -> list[Event]:
        if job.found is None:
            self._is_measured = False
        else:
            self._strays -= job.strays_watched
            self._take(job.found)
        return []

    def _take(self, found: Footprint) -> None:
        self._small = replace(found.small, ballast_bytes=0)
        self._small_bytes = self._small.total_bytes
        """All but the ballast, which is known at every moment."""
        self._strays.update(found.strays)

    def disk_use(self) -> DiskUse:
        """Everything in the directory, as it is now."""
        return DiskUse(
            log_bytes=self._logs.open_bytes,
            sealing_bytes=self._logs.sealing_bytes,
            segment_bytes=self._shelf.segments.block_bytes,
            small=replace(self._small, ballast_bytes=self._ballast.counted_bytes),
        )

    @property
    def used_bytes(self) -> int:
        """The total of `disk_use`."""
        segments_bytes = self._shelf.segments.block_bytes
        return self._logs.allocated_bytes + segments_bytes + self._small_bytes + self._ballast.counted_bytes

    @property
    def doomed_bytes(self) -> int:
        """What goes as soon as its loss is durable, or its file is reached."""
        return sum(block_bytes(info.size_bytes) for info in self._going())

    def _going(self) -> Iterator[SegmentInfo]:
        return (self._shelf.segments[seq] for seq in self._shelf.going if seq in self._shelf.segments)
