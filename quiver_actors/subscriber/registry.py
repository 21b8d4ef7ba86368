"""All durable subscribers of one engine.

Owner: the engine, on the loop thread. Pure: the engine reads the progress files at open, hands them in with `load`, and writes
what `dirty` names. A subscriber is known from `load` or `register` until `unregister`; a known one counts for deletion whether
or not anybody is attached to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from quiver_actors.errors import UnknownSubscriber, UsageError
from quiver_actors.model import ONLOOKER_PREFIX, check_id
from quiver_actors.subscriber.attention import Attention
from quiver_actors.subscriber.claim_order import SizesOf
from quiver_actors.subscriber.claims import SubscriberState
from quiver_actors.subscriber.gaps import GapLedger, GapNotice
from quiver_actors.subscriber.grants import TokenSource
from quiver_actors.subscriber.progress import SegmentProgress, SubscriberProgress
from quiver_actors.subscriber.seek import SeekPlan
from quiver_actors.subscriber.sizes import BundleSizes

START_LATEST = "latest"
START_EARLIEST = "earliest"


class SubscriberRegistry:
    """The subscribers of one engine and the sealed segments that they may still need."""

    def __init__(self) -> None:
        self._states: dict[str, SubscriberState] = {}
        self._sealed: dict[int, tuple[int, int]] = {}
        self._lost: dict[int, list[tuple[int, int]]] = {}
        """What is known to be lost of those segments: runs as of `give_up`."""
        self.sizes_of: SizesOf = lambda _: None
        """The engine's: the exact sizes of a sealed segment's bundles, for windows in bytes."""
        self._version_start = 0
        self._tokens = TokenSource()
        self._attention = Attention[SubscriberState]()
        self._settled: set[int] | None = None
        """See `take_settled`."""

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[SubscriberState]:
        return iter(self._states.values())

    def __contains__(self, subscriber: str) -> bool:
        return subscriber in self._states

    def get(self, subscriber: str) -> SubscriberState:
        """The state of a known subscriber.

        Raises:
            UnknownSubscriber: it is neither loaded nor registered.
        """
        state = self._states.get(subscriber)
        if state is None:
            raise UnknownSubscriber(
                f"subscriber {subscriber!r} is not registered here: register it first; known: {sorted(self._states)}"
            )
        return state

    # --- subscribers come and go -----------------------------------------------------------------------------------------

    def load(self, subscriber: str, progress: SubscriberProgress, gaps: GapLedger | None = None) -> SubscriberState:
        """Make a subscriber known from its files; without gap notices it owes no flush.

        Raises:
            UsageError: it is known already.
        """
        if subscriber in self._states:
            raise UsageError(f"subscriber {subscriber!r} is loaded already")
        state = self._new(subscriber)
        state.load_files(progress, gaps)
        return self._adopt(state)

    def register(self, subscriber: str, start: str, open_segment: tuple[int, int]) -> SubscriberState:
        """Resume a known subscriber, or make a new one, which is durable only after the next flush.

        Args:
            start: `latest` or `earliest`; only used when the subscriber is new.
            open_segment: number of the open segment and how many bundles it holds: what `latest` begins behind.

        Raises:
            InvalidId: the id may not be used.
            UsageError: `start` is something else.
        """
        check_id("subscriber", subscriber)
        if start not in (START_LATEST, START_EARLIEST):
            raise UsageError(f"start {start!r} is unknown: expected {START_LATEST!r} or {START_EARLIEST!r}")
        known = self._states.get(subscriber)
        if known is not None:
            return known
        return self.register_at(subscriber, open_segment if start == START_LATEST else (0, 0))

    def register_at(self, subscriber: str, position: tuple[int, int]) -> SubscriberState:
        """Make a new subscriber that begins at that (segment, bundle index). Raises InvalidId."""
        state = self._new(check_id("subscriber", subscriber))
        state.start_at(*position)
        return self._adopt(state)

    def register_with(self, subscriber: str, resolved: Mapping[int, SegmentProgress]) -> SubscriberState:
        """Make a new subscriber to which those bundles count as resolved. Raises InvalidId."""
        state = self._new(check_id("subscriber", subscriber))
        state.start_with(resolved)
        return self._adopt(state)

    def _new(self, subscriber: str) -> SubscriberState:
        return SubscriberState(
            subscriber,
            version=self._version_start,
            tokens=self._tokens,
            sizes_of=self._exact_sizes,
            attention=self._attention,
        )

    def _exact_sizes(self, segment_seq: int) -> BundleSizes | None:
        return self.sizes_of(segment_seq)

    def _adopt(self, state: SubscriberState) -> SubscriberState:
        self._states[state.subscriber] = state
        self._settled = None
        if (due_ns := state.next_due_ns()) is not None:
            self._attention.call_at(state, due_ns)
        state.begin()
        for segment_seq in sorted(self._sealed):
            state.add_segment(segment_seq, *self._sealed[segment_seq])
            for run in _drop(state, segment_seq, self._lost.get(segment_seq, ())):
                state.gaps.add(segment_seq, *run, -1, "damaged", state.version)
        return state

    def seek(self, subscriber: str, plan: SeekPlan) -> list[GapNotice]:
        """Let a known subscriber stand where the plan says. Whatever it holds is held no more, and its terms must be set again.

        Returns:
            The notices of what it skips.
        """
        old = self._states.pop(subscriber)
        for notice in plan.withdrawn:
            old.gaps.withdraw(notice.notice)
        self._version_start = max(self._version_start, old.version)
        state = self._new(subscriber)
        state.load_files(plan.progress, old.gaps)
        self._attention.forget(old)
        state.version += 1
        state.succeed(old)
        state.dropped += plan.skipped_count
        skipped = [(seq, *run) for seq, runs in plan.skipped.items() for run in runs]
        notices = [state.gaps.add(*run, -1, "dropped", state.version) for run in skipped]
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
        del self._states[subscriber]
        self._attention.forget(state)
        self._settled = None
        # A flush of it may be under way: a new subscriber of that id must not take the answer for its own.
        self._version_start = max(self._version_start, state.version, state.gaps.version)
        return state.unresolved_count

    # --- segments come and go --------------------------------------------------------------------------------------------

    def add_segment(self, segment_seq: int, bundle_count: int, size_bytes: int = 0) -> None:
        """A segment is sealed and readable: every subscriber that is not past it is owed its bundles."""
        self._sealed[segment_seq] = bundle_count, size_bytes
        for state in self:
            state.add_segment(segment_seq, bundle_count, size_bytes)

    def give_up(
        self,
        segment_seq: int,
        bundle_count: int,
        reason: str,
        rows: Callable[[int, int], int],
        lost: Iterable[tuple[int, int]] | None = None,
    ) -> list[tuple[str, GapNotice]]:
        """Nobody gets the bundles of a segment, or the `lost` ones of it, any more: note it for each subscriber that was owed them.

        Args:
            bundle_count: of the segment; 0 if nobody knows.
            rows: how many rows are in (first index, count), -1 if nobody knows.
            lost: runs as (first index, count) of a segment that was added, count 0 for nobody knows how many; None: all of it.

        Returns:
            (subscriber, its new notice).
        """
        noted = []
        if lost is None:
            self._forget(segment_seq)
        else:
            lost = list(lost)
            self._lost[segment_seq] = list(dict.fromkeys([*self._lost.get(segment_seq, ()), *lost]))
        for state in self:
            if state.is_complete(segment_seq):
                continue
            if lost is None:
                runs = _all_unresolved(state, segment_seq, bundle_count)
            else:
                runs = _drop(state, segment_seq, lost)
            for first, count in runs:
                number = rows(first, count) if count else -1
                noted.append(
                    (state.subscriber, state.gaps.add(segment_seq, first, count, number, reason, state.version))
                )
        return noted

    def forget_segment(
        self, segment_seq: int, *, file_is_gone: bool = False
    ) -> list[tuple[str, list[tuple[int, int]]]]:
        """A segment was deleted, or is damaged: nobody gets the rest of it.

        Args:
            file_is_gone: its unlink is durable; see `SubscriberState.forget_segment`.

        Returns:
            For each subscriber that loses bundles by it: its id and the bundles as (first index, count).
        """
        self._forget(segment_seq)
        losses = ((state.subscriber, state.forget_segment(segment_seq, file_is_gone=file_is_gone)) for state in self)
        return [(subscriber, runs) for subscriber, runs in losses if runs]

    def _forget(self, segment_seq: int) -> None:
        self._sealed.pop(segment_seq, None)
        self._lost.pop(segment_seq, None)

    def deletable(self, segment_seqs: Iterable[int]) -> list[int]:
        """Those of the segments that every known subscriber has completed, durably; none while there is no subscriber but onlookers.

        "Durably" so that no crash can bring back a progress that misses a file which we deleted ourselves; the start of a new
        subscriber counts too. Without a segment that comes the answer grows only with `mark_flushed` and `unregister`.

        Whoever is furthest behind is asked first and leaves the fewest to ask the others about: beside one that has read nothing, it is
        one look for the oldest. Else segments x subscribers, about 0.05 us each.
        """
        # What only an onlooker has seen was delivered to nobody yet: the next subscriber, or a reader of ranges, may want it.
        has_consumers = not all(subscriber.startswith(ONLOOKER_PREFIX) for subscriber in self._states)
        left = list(segment_seqs) if has_consumers else []
        for state in sorted(self, key=lambda state: state.floor):
            left = state.durably_complete(left)
            if not left:
                break
        return left

    def take_settled(self) -> set[int] | None:
        """Of which segments the answer of `deletable` may have grown since the last call, as far as flushes and subscribers that come
        and go decide about it; None: of any."""
        settled, self._settled = self._settled, set()
        return settled

    def held_segments(self) -> set[int]:
        """Segments of which some consumer holds bundles now."""
        return {seq for state in self for seq in state.held_segments()}

    def awaited_segments(self) -> list[int]:
        """Segments that some progress names and that were not added, ascending; see `SubscriberState.awaited_segments`."""
        return sorted({seq for state in self for seq in state.awaited_segments()})

    def known_bundle_count(self, segment_seq: int) -> int:
        """How many bundles a segment that was not added has at least, as far as some progress tells; 0 if none does."""
        return max((state.known_bundle_count(segment_seq) for state in self), default=0)

    def is_done_with_unsealed(self, segment_seq: int) -> bool:
        """Whether some progress names a segment that was not added, and each that does says that all of it is resolved, as far as any
        of them knows it. So it is of every segment that was deleted because everybody was done with it."""
        count = self.known_bundle_count(segment_seq)
        naming = [state for state in self if state.known_bundle_count(segment_seq)]
        return bool(naming) and not any(state.unresolved_in_unsealed(segment_seq, count) for state in naming)

    def highest_segment_seq_seen(self) -> int:
        """The highest segment number in any progress, or added; -1 for none. The next new segment must be above it."""
        return max((state.highest_segment_seq() for state in self), default=-1)

    def completed_since(self) -> list[tuple[str, int]]:
        """(subscriber, segment) for each segment that a subscriber has completed since the last call."""
        completing = [name for name in self._attention.completing if name in self._states]
        self._attention.completing.clear()
        return [(name, seq) for name in completing for seq in self._states[name].completed_since()]

    # --- owners and time -------------------------------------------------------------------------------------------------

    def release(self, owner: object) -> list[str]:
        """An owner is gone: its claims of all subscribers are pending again; returns the subscribers it held bundles of."""
        return [state.subscriber for state in self if state.release(owner)]

    def due(self, now_ns: int) -> list[str]:
        """End the delays that have passed; returns the subscribers that have bundles to claim by it."""
        return [state.subscriber for state in self._attention.due(now_ns) if state.due(now_ns)]

    def next_due_ns(self) -> int | None:
        """When `due` should be called next; None if nothing is deferred."""
        return self._attention.next_due_ns()

    # --- durable progress ------------------------------------------------------------------------------------------------

    def dirty(self, next_segment_seq: int) -> list[tuple[str, int, SubscriberProgress]]:
        """(subscriber, version, progress) of each subscriber whose file is behind; tell `mark_flushed` when it is durable.

        Args:
            next_segment_seq: the oldest segment that is not sealed yet; see `SubscriberState.watermark`.
        """
        dirty = (state for state in self.changed() if state.is_dirty)
        return [(state.subscriber, state.version, state.snapshot(next_segment_seq)) for state in dirty]

    def changed(self) -> list[SubscriberState]:
        """All whose files are behind, and perhaps others."""
        return [self._states[name] for name in self._attention.changed if name in self._states]

    def _note_flush(self, state: SubscriberState) -> None:
        if not state.is_behind:
            self._attention.changed.pop(state.subscriber, None)

    def mark_flushed(self, subscriber: str, version: int) -> None:
        """The progress that `dirty` gave out with that version is durable. Ignored if the subscriber is gone."""
        state = self._states.get(subscriber)
        if state is None:
            return
        settled = state.mark_flushed(version)
        self._note_flush(state)
        if settled is None:
            self._settled = None
        elif self._settled is not None:
            self._settled.update(settled)

    def mark_gaps_flushed(self, subscriber: str, version: int) -> None:
        """The gap notices as they stood at that version are durable. Ignored if the subscriber is gone."""
        state = self._states.get(subscriber)
        if state is not None:
            state.gaps.mark_flushed(version)
            self._note_flush(state)

    @property
    def is_dirty(self) -> bool:
        """Whether any file is behind."""
        return any(state.is_dirty or state.gaps.is_dirty for state in self.changed())


def _drop(state: SubscriberState, segment_seq: int, lost: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Drop what is lost of a segment that was added; the runs that were unresolved, and those of nobody knows how many."""
    if state.is_complete(segment_seq):
        return []
    return [
        run
        for first, count in lost
        for run in (state.drop(segment_seq, first, count) if count else _open_end(state, segment_seq, first))
    ]


def _open_end(state: SubscriberState, segment_seq: int, first: int) -> list[tuple[int, int]]:
    """Told once: a crash may have come between the notice and what it is about."""
    return [] if state.gaps.has_open_end(segment_seq) else [(first, 0)]


def _all_unresolved(state: SubscriberState, segment_seq: int, bundle_count: int) -> list[tuple[int, int]]:
    """Drop a whole segment; the runs that were unresolved, [(0, 0)] where nobody knows how many there were."""
    if bundle_count:
        state.add_segment(segment_seq, bundle_count)
        return state.forget_segment(segment_seq)
    if state.awaits_complete(segment_seq):
        return state.forget_segment(segment_seq)
    return state.forget_segment(segment_seq) or [(0, 0)]
