"""The subscribers of one engine: who they are, where they begin, to whom they belong, and under which terms they get bundles.

Owner: the engine, on the loop thread. It owns no state: progress, segments and logs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from quiver_actors.base.clock import Clock
from quiver_actors.base.model import check_id
from quiver_actors.base.protocol.archived_start import ArchivedStart
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import UsageError
from quiver_actors.store.engine.events import GapFound
from quiver_actors.store.engine.log_queue import LogQueue
from quiver_actors.store.engine.owed import Owed
from quiver_actors.store.engine.progress import Progress
from quiver_actors.store.engine.readable_end import ReadableEnd
from quiver_actors.store.engine.sealed_segments import SealedSegments
from quiver_actors.store.subscriber import bitmap as bitmaps
from quiver_actors.store.subscriber import losses, terms
from quiver_actors.store.subscriber.archived_part import plan_archived
from quiver_actors.store.subscriber.progress import SegmentProgress
from quiver_actors.store.subscriber.progress_state import Position
from quiver_actors.store.subscriber.seek import archived_of, before_position, plan_seek
from quiver_actors.store.subscriber.starts import Start, parse_start, resolved_before


class Registrations:
    """Registers, moves and forgets the subscribers of one engine. Every ticket is durable once `Progress.durable` has reached it."""

    def __init__(
        self,
        core: int,
        clock: Clock,
        logs: LogQueue,
        progress: Progress,
        sealed_segments: SealedSegments,
        readable_end: ReadableEnd,
        owed: Owed,
        unannounced: Callable[[], Iterable[int]],
        next_segment_seq: Callable[[], int],
    ) -> None:
        """
        Args:
            unannounced: says the numbers of the segments that subscribers have not been told of yet.
            next_segment_seq: says the number that no segment has had, nor a higher one.
        """
        self._core = core
        self._clock = clock
        self._logs = logs
        self._progress = progress
        self._sealed_segments = sealed_segments
        self._readable_end = readable_end
        self._owed = owed
        self._numbers_unannounced = unannounced
        self._next_segment_seq = next_segment_seq

    def names(self) -> list[str]:
        """Return the names of all subscribers."""
        return [state.subscriber for state in self._progress.registry]

    def ownership_of(self, subscriber: str) -> Ownership | None:
        """The owner of a subscriber and the users who may join it; None: there is no subscriber of that name."""
        registry = self._progress.registry
        return registry.get(subscriber).progress.ownership if subscriber in registry else None

    def count_owned_by(self, uid: int) -> int:
        """How many subscribers belong to that user itself; those of the topic's owner are not counted."""
        return sum(state.progress.ownership.owner_uid == uid for state in self._progress.registry)

    def register(
        self,
        subscriber: str,
        start: str,
        ownership: Ownership = OF_TOPICS_OWNER,
        archived: ArchivedStart | None = None,
        *,
        reads_archive: bool = False,
    ) -> int:
        """Make a subscriber known, or resume it. Durable once `Progress.durable` reaches the returned ticket.

        Args:
            start: see `base.protocol.messages.Register`; only used when the subscriber is new.
            ownership: who owns it; also only used when the subscriber is new.
            archived: what it is to get from the archive before what is on the disk; also only used when it is new.
            reads_archive: whether its consumers read the archive: what was lost on the disk is had there; also only used when it is new.

        Raises:
            InvalidId, UsageError: bad id or start, or too much in the archive.
            NotStored: the archive has to be looked at again.
            DiskError, FormatError: the times of old bundles could not be read.
        """
        begin = parse_start(start)
        if subscriber in self._progress.registry:
            return self._progress.ticket
        check_id("subscriber", subscriber)
        doomed = self._sealed_segments.deletions.doomed
        part = None
        if archived is not None:
            here = {*self._sealed_segments.segments.keys(), *self._numbers_unannounced()}.difference(doomed)
            part = plan_archived(archived, here, self._next_segment_seq())
        state = self._progress.registry.register(
            subscriber, self._beginning(begin), ownership, part, reads_archive=reads_archive
        )
        for segment_seq in doomed:
            if segment_seq not in state.progress.archived:
                losses.forget_segment(state, segment_seq)
        for notice in losses.lose_archived(state, () if part is None else part.lost):
            run = (notice.segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *run, notice.reason))
        self._readable_end.advance()  # the first subscriber: until now nobody was shown anything
        self._sealed_segments.deletions.hold_back()
        self._progress.changed()
        return self._progress.flush()

    def _beginning(self, begin: Start) -> Position | Mapping[int, SegmentProgress]:
        """Where a new subscriber begins on this core, or what of everything appended so far it does not want."""
        end = self._logs.end
        if begin.kind == "latest":
            return end
        if begin.kind == "bundle" and begin.core == self._core:
            return min(end, (begin.segment_seq, begin.bundle_index))
        return self._resolved_before(begin.unix_ns) if begin.kind == "time" else (0, 0)

    def read_archive(self, subscriber: str, *, is_read: bool) -> None:
        """Note whether all consumers of a known subscriber read the archive. Then what leaves the disk of an archived topic is not lost
        to it."""
        progress = self._progress.registry.get(subscriber).progress
        is_read &= self._progress.registry.archive.enabled
        if is_read != progress.archived.is_read:
            progress.archived.is_read = is_read
            progress.changes.note()
            self._progress.changed()

    def is_archived(self, subscriber: str, segment_seq: int | None = None) -> bool:
        """Whether a subscriber has unresolved bundles in the archive, or in that archived segment. False if it is not known."""
        registry = self._progress.registry
        if subscriber not in registry:
            return False
        progress = registry.get(subscriber).progress
        numbers = progress.archived.numbers if segment_seq is None else [segment_seq]
        return any(number in progress.archived and number in progress.segments for number in numbers)

    def _resolved_before(self, unix_ns: int) -> dict[int, SegmentProgress]:
        """What of everything appended so far was ingested before that time."""
        found = {}
        for seq, info in self._sealed_segments.segments.items():
            if info.last_ingestion_ts_nanos and info.last_ingestion_ts_nanos < unix_ns:
                found[seq] = SegmentProgress(info.bundle_count, bitmaps.full(info.bundle_count))
            elif info.first_ingestion_ts_nanos < unix_ns:
                found[seq] = resolved_before(self._sealed_segments.ingestion_times(seq), unix_ns)
        for seq, times in self._logs.ingestion_times():
            if len(times):
                found[seq] = resolved_before(times, unix_ns)
        return found

    def unregister(self, subscriber: str) -> tuple[int, int]:
        """Forget a subscriber and what it is owed.

        Returns:
            The ticket (durable once `Progress.durable` reaches it) and how many bundles it was owed.

        Raises:
            UnknownSubscriber: it is not known.
        """
        unsealed = self._owed.unsealed_of(self._progress.registry.get(subscriber))
        owed = unsealed + self._progress.unregister(subscriber)
        return self._progress.flush(), owed

    def seek(self, subscriber: str, start: str, *, is_dry: bool = False) -> tuple[int, int, int]:
        """Move a known subscriber to where `start` says, as if it was new; see `store.subscriber.seek`. Its terms must be set again.

        Returns:
            The ticket (durable once `Progress.durable` reaches it), how many bundles it skips, and how many it is owed again.

        Raises:
            UnknownSubscriber, UsageError: no such subscriber, or a start that is none.
            DiskError, FormatError: the times of old bundles could not be read.
        """
        begin = parse_start(start)
        state = self._progress.registry.get(subscriber)
        archived = archived_of(state)
        if archived and begin.kind == "time":
            raise UsageError(
                f"subscriber {subscriber!r} still gets bundles from the archive, whose times are not known here: move it to a bundle, to "
                "'earliest' or to 'latest', or drop it and subscribe anew"
            )
        doomed, stored = set(self._sealed_segments.deletions.doomed), self._logs.bundle_counts()
        doomed.difference_update(archived)
        stored.update((info.segment_seq, info.bundle_count) for info in self._sealed_segments)
        going = {seq: stored.pop(seq) for seq in doomed & stored.keys()}
        stored.update(archived)
        if begin.kind == "time":
            before = self._resolved_before(begin.unix_ns)
        else:
            at_bundle = begin.kind == "bundle" and begin.core == self._core
            position = (begin.segment_seq, begin.bundle_index) if at_bundle else (0, 0)
            end = self._logs.end
            before = before_position(end if begin.kind == "latest" else min(position, end), stored)
        floor = min(
            [self._logs.end[0], *(seq for seq in self._numbers_unannounced() if not state.progress.is_complete(seq))]
        )
        plan = plan_seek(state, stored, before, floor, going)
        if is_dry:
            return 0, plan.skipped_count, plan.again_count
        for notice in self._progress.registry.seek(subscriber, plan):
            run = (notice.segment_seq, notice.bundle_index_first, notice.bundle_count)
            self._progress.tell(GapFound(subscriber, *run, notice.reason))
        self._sealed_segments.deletions.hold_back()
        self._progress.note_resolved()
        return self._progress.flush(), plan.skipped_count, plan.again_count

    def set_terms(self, subscriber: str, *, lease_ns: int, max_deliveries: int, exhausted: str) -> None:
        """
        Raises:
            UnknownSubscriber, UsageError: nothing was changed.
        """
        state = self._progress.registry.get(subscriber)
        version = state.progress.changes.version
        terms.set_terms(
            state,
            lease_ns=lease_ns,
            max_deliveries=max_deliveries,
            exhausted=exhausted,
            now_ns=self._clock.monotonic_ns(),
        )
        if state.progress.changes.version != version:
            self._progress.note_resolved()

    def share(self, subscriber: str, uids: Iterable[int]) -> int:
        """Let these users join a subscriber, in place of those that its owner named before. Returns the ticket that makes it durable.

        Raises:
            UnknownSubscriber: it is not known.
        """
        state = self._progress.registry.get(subscriber)
        return self.give(subscriber, state.progress.ownership._replace(joined_uids=tuple(sorted(set(uids)))))

    def give(self, subscriber: str, ownership: Ownership) -> int:
        """A known subscriber has that owner from now on; its progress stays. Returns the ticket that makes it durable.

        Raises:
            UnknownSubscriber: it is not known.
        """
        self._progress.registry.get(subscriber).progress.belong(ownership)
        self._progress.changed()
        return self._progress.flush()
