"""All durable subscribers of one engine.

Owner: the engine, on the loop thread. Pure: the engine reads the progress files at open, hands them in with `load`, and writes
what `Flushes.dirty` names. A subscriber is known from `load` or `register` until `unregister`; a known one counts for deletion whether
or not anybody is attached to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from quiver_actors.base.config import ArchiveSettings
from quiver_actors.base.model import check_id
from quiver_actors.base.ranges import Runs
from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from quiver_actors.errors import UnknownSubscriber, UsageError
from quiver_actors.store.subscriber import archiving, losses
from quiver_actors.store.subscriber.archived_part import ArchivedPart
from quiver_actors.store.subscriber.attention import Attention
from quiver_actors.store.subscriber.claim_order import SizesOf
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.flushes import Flushes
from quiver_actors.store.subscriber.gaps import GapLedger, GapNotice
from quiver_actors.store.subscriber.grants import TokenSource
from quiver_actors.store.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.store.subscriber.progress_state import Position
from quiver_actors.store.subscriber.seek import SeekPlan
from quiver_actors.store.subscriber.sizes import OpenSizes


@dataclass(frozen=True, slots=True)
class _Segments:
    """The segments that subscribers were told of, and may still need."""

    sealed: dict[int, tuple[int, int]]
    """Bundle counts and sizes in bytes."""
    open: dict[int, OpenSizes]
    """Segments that are not sealed: how many of their bundles can be read, and how large these are."""
    lost: dict[int, Runs]
    """The bundles that are known to be lost, in the form that `give_up` takes."""

    def forget(self, segment_seq: int) -> None:
        """Forget a segment that nobody gets any more."""
        self.sealed.pop(segment_seq, None)
        self.open.pop(segment_seq, None)
        self.lost.pop(segment_seq, None)


class SubscriberRegistry:
    """The subscribers of one engine, the sealed segments that they may still need, and what can be read of the others.

    Attributes:
        flushes: what of them is to be made durable.
        states: their states by name; only the registry changes it.
        attention: which of them need attention, and when.
        archive: whether the archiver counts among them, and for what.
    """

    def __init__(self, sizes_of: SizesOf = lambda _: None) -> None:
        """
        Args:
            sizes_of: the exact sizes of a sealed segment's bundles, for windows in bytes; None where they are not known.
        """
        self.states: dict[str, SubscriberState] = {}
        self._segments = _Segments({}, {}, {})
        self._sizes_of = sizes_of
        self._version_start = 0
        self.archive = ArchiveSettings()
        self._tokens = TokenSource()
        self.attention = Attention[SubscriberState]()
        self.flushes = Flushes(self.states, self.attention)

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[SubscriberState]:
        return iter(self.states.values())

    def __contains__(self, subscriber: str) -> bool:
        return subscriber in self.states

    def get(self, subscriber: str) -> SubscriberState:
        """The state of a known subscriber.

        Raises:
            UnknownSubscriber: it is neither loaded nor registered.
        """
        state = self.states.get(subscriber)
        if state is None:
            raise UnknownSubscriber(
                f"subscriber {subscriber!r} is not registered here: register it first; known: {sorted(self.states)}"
            )
        return state

    # --- subscribers come and go -----------------------------------------------------------------------------------------

    def load(self, subscriber: str, progress: SubscriberProgress, gaps: GapLedger | None = None) -> SubscriberState:
        """Make a subscriber known from its files; without gap notices it owes no flush.

        Raises:
            UsageError: it is known already.
        """
        if subscriber in self.states:
            raise UsageError(f"subscriber {subscriber!r} is loaded already")
        state = self._new(subscriber)
        state.load_files(progress, gaps)
        return self._adopt(state)

    def register(
        self,
        subscriber: str,
        begin: Position | Mapping[int, SegmentProgress],
        ownership: Ownership = OF_TOPICS_OWNER,
        archived: ArchivedPart | None = None,
        *,
        reads_archive: bool = False,
    ) -> SubscriberState:
        """Make a new subscriber. Raises InvalidId.

        Args:
            begin: where it begins, or the bundles that count to it as resolved.
            archived: what it gets from the archive before that.
            reads_archive: whether its consumers read the archive.
        """
        state = self._new(check_id("subscriber", subscriber))
        state.progress.belong(ownership)
        if isinstance(begin, tuple):
            state.progress.start_at(*begin)
        else:
            state.progress.start_with(begin)
        state.progress.archived.is_read = reads_archive and self.archive.enabled
        if archived is not None:
            state.progress.archived.begin(archived, state.progress.awaited.entries)
        return self._adopt(state)

    def _new(self, subscriber: str) -> SubscriberState:
        return SubscriberState(
            subscriber,
            version=self._version_start,
            tokens=self._tokens,
            sizes_of=self._sizes_of,
            attention=self.attention,
        )

    def _adopt(self, state: SubscriberState) -> SubscriberState:
        self.states[state.subscriber] = state
        self.flushes.unsettle()
        if (due_ns := state.next_due_ns()) is not None:
            self.attention.call_at(state, due_ns)
        state.progress.completed.begin()
        for segment_seq in sorted(state.progress.archived.numbers):
            bundle_count = state.progress.awaited.bundle_count(segment_seq)
            state.add_segment(segment_seq, bundle_count, bundle_count * state.progress.archived.mean_bytes)
        for segment_seq in sorted(self._segments.open):
            sizes = self._segments.open[segment_seq]
            state.grow_segment(segment_seq, sizes.bundle_count, sizes)
        for segment_seq in sorted(self._segments.sealed):
            state.add_segment(segment_seq, *self._segments.sealed[segment_seq])
        for segment_seq in sorted([*self._segments.sealed, *self._segments.open]):
            if lost := self._segments.lost.get(segment_seq):
                is_archived = archiving.is_archived(self, self.archive, segment_seq)
                _lose(state, segment_seq, lost, self._segments.sealed.get(segment_seq) if is_archived else None)
        return state

    def seek(self, subscriber: str, plan: SeekPlan) -> list[GapNotice]:
        """Let a known subscriber stand where the plan says. Whatever it holds is held no more, and its terms must be set again.

        Returns:
            The notices of what it skips.
        """
        old = self.states.pop(subscriber)
        for notice in plan.withdrawn:
            old.gaps.withdraw(notice.notice)
        self._version_start = max(self._version_start, old.progress.changes.version)
        state = self._new(subscriber)
        state.load_files(plan.progress, old.gaps)
        state.progress.belong(old.progress.ownership)
        self.attention.forget(old)
        state.progress.changes.note()
        state.succeed(old)
        state.counts.dropped += plan.skipped_count
        skipped = [(seq, *run) for seq, runs in plan.skipped.items() for run in runs]
        notices = [state.gaps.add(*run, -1, "dropped", state.progress.changes.version) for run in skipped]
        self._adopt(state)
        return notices

    def unregister(self, subscriber: str) -> int:
        """Forget a subscriber and all that it was owed; its file is the engine's to delete.

        Returns:
            How many bundles of sealed segments it had not resolved.

        Raises:
            UnknownSubscriber: it is not known.
        """
        state = self.get(subscriber)
        state.leases.withdraw_all()
        del self.states[subscriber]
        self.attention.forget(state)
        self.flushes.unsettle()
        # A flush of it may be under way: a new subscriber of that id must not take the answer for its own.
        self._version_start = max(self._version_start, state.progress.changes.version, state.gaps.changes.version)
        return state.progress.unresolved_count

    # --- segments come and go --------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int, size_bytes: int = 0) -> None:
        """A segment is sealed and readable: every subscriber that is not past it is owed its bundles."""
        self._segments.open.pop(segment_seq, None)
        self._segments.sealed[segment_seq] = bundle_count, size_bytes
        for state in self:
            state.add_segment(segment_seq, bundle_count, size_bytes)

    def grow_segment(self, segment_seq: int, sizes: OpenSizes) -> None:
        """The bundles of a segment that is not sealed that have their sizes can be read: every subscriber that is not past it is owed them.
        The sizes of those that follow are added to the same object."""
        self._segments.open[segment_seq] = sizes
        for state in self.states.values():
            state.grow_segment(segment_seq, sizes.bundle_count, sizes)

    def give_up(
        self,
        segment_seq: int,
        bundle_count: int,
        reason: str,
        rows: Callable[[int, int], int],
        lost: Iterable[tuple[int, int]] | None = None,
    ) -> list[tuple[str, GapNotice]]:
        """Record the bundles of a segment, or the `lost` ones of it, as lost for each subscriber that was owed them from the disk.

        Args:
            bundle_count: how many bundles the segment has; 0 if nobody knows.
            rows: how many rows are in (first index, count), -1 if nobody knows.
            lost: runs as (first index, count) of a segment that was added, count 0 = nobody knows how many; None: all of it.

        Returns:
            (subscriber, its new notice).
        """
        noted = []
        if lost is None:
            self._segments.forget(segment_seq)
        else:
            lost = list(lost)
            self._segments.lost[segment_seq] = list(dict.fromkeys([*self._segments.lost.get(segment_seq, ()), *lost]))
        for state in self:
            if state.progress.is_complete(segment_seq) or segment_seq in state.progress.archived:
                continue
            if lost is None:
                runs = _all_unresolved(state, segment_seq, bundle_count)
            else:
                runs = _drop(state, segment_seq, lost)
            for first, count in runs:
                number = rows(first, count) if count else -1
                noted.append(
                    (
                        state.subscriber,
                        state.gaps.add(segment_seq, first, count, number, reason, state.progress.changes.version),
                    )
                )
        return noted

    def lose_behind(self, segment_seq: int, bundle_count: int) -> list[tuple[str, int, int]]:
        """Note what some progress proves to have been behind the end of a segment that is about to be added: it was shown, so it was
        durable, and the log that the segment was made of lacks it.

        Returns:
            (subscriber, first index, count) of each run that somebody loses.
        """
        shown_count = max((state.progress.awaited.shown_count(segment_seq) for state in self), default=0)
        if shown_count <= bundle_count:
            return []
        lost = ((state, losses.lose_behind(state, segment_seq, bundle_count, shown_count)) for state in self)
        return [(state.subscriber, *run) for state, runs in lost for run in runs]

    def forget_segment(
        self, segment_seq: int, *, file_is_gone: bool = False
    ) -> list[tuple[str, list[tuple[int, int]]]]:
        """Forget a segment that was deleted, or is damaged: nobody gets the rest of it.

        Args:
            file_is_gone: its unlink is durable; see `losses.forget_segment`.

        Returns:
            For each subscriber that loses bundles by it: its id and the bundles as (first index, count).
        """
        self._segments.forget(segment_seq)
        lost = {
            state.subscriber: losses.forget_segment(state, segment_seq, file_is_gone=file_is_gone)
            for state in self
            if segment_seq not in state.progress.archived
        }
        return [(subscriber, runs) for subscriber, runs in lost.items() if runs]

    def deletable(self, segment_seqs: Iterable[int]) -> list[int]:
        """The segments among these that every known subscriber has completed, durably; none while only onlookers are known.

        "Durably" so that no crash can bring back a progress that misses a file which we deleted ourselves; the start of a new
        subscriber counts too. Without a segment that comes the answer grows only with `mark_flushed` and `unregister`.

        Whoever is furthest behind is asked first and leaves the fewest to ask the others about: beside one that has read nothing, it is
        one look for the oldest. Else segments x subscribers, about 0.05 us each.
        """
        # What only an onlooker has seen was delivered to nobody yet: the next subscriber, or a reader of ranges, may want it.
        left = list(segment_seqs) if archiving.may_be_done(self, self.archive) else []
        for state in sorted(archiving.counting(self, self.archive), key=lambda state: state.progress.completed.floor):
            left = state.progress.completed.durable(left)
            if not left:
                break
        kept = archiving.unarchived(self, self.archive, left)
        return [seq for seq in left if seq not in kept] if kept else left

    def held_segments(self) -> set[int]:
        """Segments of which some consumer holds bundles now."""
        return {seq for state in self for seq in state.leases.segments()}

    def awaited_segments(self) -> list[int]:
        """Segments that some progress names and that were not added, ascending; see `Awaited.segments_without`."""
        found = (state.progress.awaited.segments_without(state.progress.segments) for state in self)
        return sorted({seq for each in found for seq in each})

    def known_bundle_count(self, segment_seq: int) -> int:
        """How many bundles a segment that was not added has at least, as far as some progress tells; 0 if none does."""
        return max((state.progress.awaited.bundle_count(segment_seq) for state in self), default=0)

    def is_done_with_unsealed(self, segment_seq: int) -> bool:
        """Whether some progress names a segment that was not added, and each that does says that all of it is resolved, as far as any
        of them knows it. So it is of every segment that was deleted because everybody was done with it."""
        count = self.known_bundle_count(segment_seq)
        naming = [state for state in self if state.progress.awaited.bundle_count(segment_seq)]
        return bool(naming) and not any(state.progress.unresolved_in_unsealed(segment_seq, count) for state in naming)

    def highest_segment_seq_seen(self) -> int:
        """The highest segment number in any progress, or added; -1 for none. The next new segment must be above it."""
        return max((state.progress.highest_segment_seq() for state in self), default=-1)

    def completed_since(self) -> list[tuple[str, int]]:
        """Take the segments that subscribers have completed since the last call, as (subscriber, segment)."""
        completing = [name for name in self.attention.completing if name in self.states]
        self.attention.completing.clear()
        return [(name, seq) for name in completing for seq in self.states[name].progress.completed.take_new()]

    # --- owners and time -------------------------------------------------------------------------------------------------

    def release(self, owner: object) -> list[str]:
        """An owner is gone: its claims of all subscribers are pending again; returns the subscribers it held bundles of."""
        return [state.subscriber for state in self if state.release(owner)]

    def due(self, now_ns: int) -> list[str]:
        """End the delays that have passed; returns the subscribers that have bundles to claim by it."""
        return [state.subscriber for state in self.attention.due(now_ns) if state.due(now_ns)]


def _lose(state: SubscriberState, segment_seq: int, lost: Runs, archived: tuple[int, int] | None) -> None:
    """Let a subscriber that comes to a segment get from the archive what is known to be lost of it, or lose that too.

    Args:
        archived: the segment's bundle count and size in bytes; None: it is not sealed, or not archived.
    """
    if segment_seq in state.progress.archived:
        return
    if archived is not None and archiving.follow_to_archive(state, segment_seq, *archived, lost):
        return
    for run in _drop(state, segment_seq, lost):
        state.gaps.add(segment_seq, *run, -1, "damaged", state.progress.changes.version)


def _drop(state: SubscriberState, segment_seq: int, lost: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop what is lost of a segment that was added. Returns the runs that were unresolved, those of unknown length among them."""
    if state.progress.is_complete(segment_seq):
        return []
    return [
        run
        for first, count in lost
        for run in (losses.drop(state, segment_seq, first, count) if count else _open_end(state, segment_seq, first))
    ]


def _open_end(state: SubscriberState, segment_seq: int, first: int) -> list[tuple[int, int]]:
    """The run from `first` on of unknown length, unless a notice names it already, as after a crash between the notice and the drop."""
    return [] if state.gaps.has_open_end(segment_seq) else [(first, 0)]


def _all_unresolved(state: SubscriberState, segment_seq: int, bundle_count: int) -> list[tuple[int, int]]:
    """Drop a whole segment. Returns the runs that were unresolved, [(0, 0)] where nobody knows how many there were."""
    if bundle_count:
        state.add_segment(segment_seq, bundle_count)
        return losses.forget_segment(state, segment_seq)
    if state.progress.awaited.is_complete(segment_seq):
        return losses.forget_segment(state, segment_seq)
    return losses.forget_segment(state, segment_seq) or [(0, 0)]
