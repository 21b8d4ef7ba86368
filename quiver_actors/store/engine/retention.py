"""Keeps and deletes the segments of one engine: its rules at every tick, and the claims of the coordinator.

Owner: the engine, on the loop thread. The rules themselves are `store.retention.rules`; here they meet segments. A file goes as every file
goes: by the sealed segments' delete job, once the progress and the notices that name its loss are durable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from quiver_actors.base.clock import Clock
from quiver_actors.base.config import RetentionSettings, TopicSettings
from quiver_actors.base.policies import DROP_OLDEST
from quiver_actors.base.units import SECOND_NS
from quiver_actors.store.engine.events import Event
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.retention.account import Kept, block_bytes
from quiver_actors.store.retention.ages import Ages
from quiver_actors.store.retention.choice import IN_LOGS, Candidate
from quiver_actors.store.retention.rules import Facts, Verdict, class_of, judge
from quiver_actors.store.subscriber.archiving import has_consumers, unarchived
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass

HELD_RETRY_NS = SECOND_NS
"""When a segment that is over age and held by a consumer is looked at again."""


class Retention:
    """Applies the retention rules to the segments of one engine.

    Attributes:
        settings: the topic's; they may be replaced while the engine runs.
    """

    def __init__(
        self,
        settings: TopicSettings,
        clock: Clock,
        progress: Progress,
        logs: LogQueue,
        sealed_segments: SealedSegments,
    ) -> None:
        self._settings: RetentionSettings = settings.retention
        self._topic = settings.name
        self._clock = clock
        self._progress = progress
        self._logs = logs
        self._sealed_segments = sealed_segments
        self._ages = Ages()
        self._recheck_ns = 0
        self._kept_until_ns: int | None = None
        """When the first of the segments that `keep_for` keeps is old enough to go; None: it keeps none."""
        self._kept = Kept(0, 0)
        self._kept_of: object = None
        """The set of processed segments that `_kept` was computed from."""

    @property
    def settings(self) -> RetentionSettings:
        """The retention settings in force."""
        return self._settings

    @settings.setter
    def settings(self, settings: RetentionSettings) -> None:
        """Replace the settings: another spool may let segments go, another age is looked at with the next tick."""
        self._settings = settings
        self._kept_of = None
        self._recheck_ns = 0
        self._sealed_segments.deletions.search_again()

    # --- rules that need nobody else ---------------------------------------------------------------------------------------

    def tick(self) -> list[Event]:
        """Let segments go that are over age, and have those looked at again whose `keep_for` is over."""
        now_ns = self._clock.monotonic_ns()
        self._see_all(now_ns)
        if self._kept_until_ns is not None and now_ns >= self._kept_until_ns:
            self._kept_until_ns = None
            self._sealed_segments.deletions.search_again()
        max_age_ns = self.settings.max_age_ns
        if not max_age_ns or now_ns < self._recheck_ns:
            return []
        expired = set(self._ages.expired(max_age_ns, now_ns))
        for segment_seq in expired - self._sealed_segments.segments.keys():
            self._ages.forget(segment_seq)
        if expired:
            self._judge_all({}, expired, expired)
            self._recheck_ns = now_ns + HELD_RETRY_NS
        return self._progress.take_events()

    def _see_all(self, now_ns: int) -> None:
        unix_ns = self._clock.unix_ns()
        for segment_seq in self._sealed_segments.take_new():
            info, begun_ns = (
                self._sealed_segments.segments.get(segment_seq),
                self._sealed_segments.begun_ns.pop(segment_seq, None),
            )
            if info is not None:
                self._ages.see(segment_seq, info.last_ingestion_ts_nanos, unix_ns, now_ns, begun_ns)
        for segment_seq in self._sealed_segments.deletions.take_gone():
            self._ages.forget(segment_seq)

    def deadline_ns(self) -> int | None:
        """When `tick` has something to do, as far as only time decides about it."""
        due_ns, kept_until_ns = None, self._kept_until_ns
        if self.settings.max_age_ns:
            due_ns = self._ages.next_expiry_ns(self.settings.max_age_ns)
        if due_ns is None:
            return kept_until_ns
        due_ns = max(due_ns, self._recheck_ns)
        return due_ns if kept_until_ns is None else min(due_ns, kept_until_ns)

    def spool(self, processed: Collection[int]) -> set[int]:
        """The processed segments that are kept all the same: the newest for `steady_state_headroom`, the young ones for `keep_for`, and
        for `archive.keep_local` what nobody but the archiver is done with."""
        return self._newest(processed) | self._young(processed) | self._local(processed)

    def _young(self, processed: Collection[int]) -> set[int]:
        """The processed segments that are younger than `keep_for`."""
        keep_for_ns = self.settings.keep_for_ns
        if not keep_for_ns:
            return set()
        now_ns = self._clock.monotonic_ns()
        self._see_all(now_ns)
        ages_ns = {segment_seq: self._ages.age_ns(segment_seq, now_ns) for segment_seq in processed}
        young = {segment_seq for segment_seq, age_ns in ages_ns.items() if age_ns < keep_for_ns}
        oldest_ns = max((ages_ns[segment_seq] for segment_seq in young), default=None)
        self._kept_until_ns = None if oldest_ns is None else now_ns + keep_for_ns - oldest_ns
        return young

    def _local(self, processed: Collection[int]) -> set[int]:
        """The archived segments that `archive.keep_local` keeps on the disk of a topic without consumers: young and within its size."""
        registry, limits = self._progress.registry, self._progress.registry.archive
        if has_consumers(registry) or not limits.lets_go or not processed:
            return set()
        now_ns, kept = self._clock.monotonic_ns(), set(processed)
        if limits.keep_local_size_bytes:
            kept = self._within(processed, limits.keep_local_size_bytes)
        if limits.keep_local_age_ns:
            self._see_all(now_ns)
            ages_ns = {seq: self._ages.age_ns(seq, now_ns) for seq in kept}
            kept = {seq for seq, age_ns in ages_ns.items() if age_ns < limits.keep_local_age_ns}
            if kept:
                until_ns = now_ns + limits.keep_local_age_ns - max(ages_ns[seq] for seq in kept)
                self._kept_until_ns = min(until_ns, self._kept_until_ns or until_ns)
        return kept

    def _unarchived(self, segment_seqs: Iterable[int]) -> set[int]:
        registry = self._progress.registry
        return unarchived(registry, registry.archive, segment_seqs)

    def _newest(self, processed: Collection[int]) -> set[int]:
        """The newest of the processed segments, as many as there is headroom for."""
        return self._within(processed, self.settings.steady_state_headroom_bytes)

    def _within(self, processed: Collection[int], left_bytes: int) -> set[int]:
        """The newest of the segments, as many as there is room for."""
        kept = set[int]()
        for segment_seq in sorted(processed, reverse=True):
            left_bytes -= block_bytes(self._sealed_segments.segments[segment_seq].size_bytes)
            if left_bytes < 0:
                break
            kept.add(segment_seq)
        return kept

    # --- claims of the coordinator -----------------------------------------------------------------------------------------

    def candidates(self) -> list[Candidate]:
        """Return the segments that may be deleted for want of space."""
        return [*self._sealed_candidates(self._sealed_segments.segments.hot), *self._open_candidate()]

    def evict_cold(self, size_bytes: int) -> None:
        """Let the oldest cold segments go, as far as the rules allow, until there is so much more room on the cold disk."""
        candidates, going = sorted(self._sealed_candidates(self._sealed_segments.segments.cold)), self.doomed_cold_bytes
        chosen: list[Candidate] = []
        for candidate in candidates:
            if going >= size_bytes:
                break
            chosen.append(candidate)
            going += candidate.size_bytes
        self.let_go(chosen)

    def _sealed_candidates(self, segment_seqs: Collection[int]) -> Iterator[Candidate]:
        processed, held = (
            set(self._sealed_segments.deletions.processed()),
            self._progress.registry.held_segments(),
        )
        oldest_unix_ns = NO_LIMIT
        awaited = self._unarchived(self._sealed_segments.segments)
        for segment_seq in sorted(self._sealed_segments.droppable(), reverse=True):
            info = self._sealed_segments.segments[segment_seq]
            # A segment is not younger than one that was sealed after it, whatever the clock was set to meanwhile.
            oldest_unix_ns = min(oldest_unix_ns, max(0, info.first_ingestion_ts_nanos))
            kind = class_of(segment_seq in processed, segment_seq in held, self.settings.size_cap_policy)
            if kind and segment_seq not in awaited and segment_seq in segment_seqs:
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
        processed = set(self._sealed_segments.deletions.processed())
        held = self._progress.registry.held_segments()
        young = self._young(processed)
        spool = self._newest(processed) | self._local(processed)
        droppable = set(self._sealed_segments.droppable())
        awaited = self._unarchived(droppable)
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
                is_young=segment_seq in young,
                is_unarchived=segment_seq in awaited,
            )
            outcome = judge(facts)
            if outcome.verdict is Verdict.DELETE:
                self._sealed_segments.deletions.release(segment_seq, outcome.reason)
            elif outcome.verdict is Verdict.DROP:
                self._sealed_segments.drop(segment_seq, outcome.reason)

    # --- figures -------------------------------------------------------------------------------------------------------

    def kept(self) -> Kept:
        """Bytes that are stored although nobody needs them, as of the last look at what may go; computed anew only after such a look."""
        processed = self._sealed_segments.deletions.kept
        if self._kept_of is not processed:
            self._kept_of = processed
            there = [segment_seq for segment_seq in processed if segment_seq in self._sealed_segments.segments]
            young = self._young(there)
            spooled = self._newest(there) - young
            self._kept = Kept(keep_for_bytes=self._blocks_of(young), headroom_bytes=self._blocks_of(spooled))
        return self._kept

    def _blocks_of(self, segment_seqs: Iterable[int]) -> int:
        segments = self._sealed_segments.segments
        return sum(block_bytes(segments[seq].size_bytes) for seq in segment_seqs if seq in segments.hot)

    @property
    def doomed_bytes(self) -> int:
        """Bytes of the hot segments that go as soon as their loss is durable, or the delete job reaches their files."""
        return self._blocks_of(self._sealed_segments.deletions.going)

    @property
    def doomed_cold_bytes(self) -> int:
        """The same of cold segments."""
        segments = self._sealed_segments.segments
        return sum(segments[seq].size_bytes for seq in self._sealed_segments.deletions.going if seq in segments.cold)
