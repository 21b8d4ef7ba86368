"""The files of subscribers that are behind what is in memory, and what becomes durable with each flush of them.

Owner: one `SubscriberRegistry`. Pure: the engine writes what `dirty` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from quiver_actors.store.subscriber.attention import Attention
from quiver_actors.store.subscriber.claims import SubscriberState
from quiver_actors.store.subscriber.progress import SubscriberProgress


class Flushes:
    """The flushes of the progress and of the gap notices of one engine's subscribers."""

    def __init__(self, states: Mapping[str, SubscriberState], attention: Attention[SubscriberState]) -> None:
        """
        Args:
            states: the subscribers by name, as the registry keeps them.
        """
        self._states = states
        self._attention = attention
        self._settled: set[int] | None = None
        """Segments that `take_settled` returns next."""

    @property
    def is_dirty(self) -> bool:
        """Whether any file is behind."""
        return any(state.progress.changes.is_dirty or state.gaps.changes.is_dirty for state in self.changed())

    def changed(self) -> list[SubscriberState]:
        """All subscribers whose files are behind, and perhaps others."""
        return [self._states[name] for name in self._attention.changed if name in self._states]

    def dirty(self, next_segment_seq: int) -> list[tuple[str, int, SubscriberProgress]]:
        """The progress to write of each subscriber whose file is behind: (subscriber, version, progress). Tell `mark_flushed` then, or
        `mark_journaled`.

        Args:
            next_segment_seq: the oldest segment that is not sealed yet; see `ProgressState.watermark`.
        """
        return [
            (state.subscriber, state.progress.changes.version, state.progress.snapshot(next_segment_seq))
            for state in self.changed()
            if state.progress.changes.is_dirty
        ]

    def mark_flushed(self, subscriber: str, version: int) -> None:
        """Note that the progress that `dirty` returned with that version is in its file. Ignored if the subscriber is gone."""
        state = self._states.get(subscriber)
        if state is None:
            return
        settled = state.progress.completed.mark_flushed(version)
        self._note_flush(state)
        if settled is None:
            self._settled = None
        elif self._settled is not None:
            self._settled.update(settled)

    def mark_journaled(self, subscriber: str, version: int) -> None:
        """Note that the progress that `dirty` returned with that version is in the journal. Ignored if the subscriber is gone."""
        state = self._states.get(subscriber)
        if state is not None:
            state.progress.changes.mark_journaled(version)
            self._note_flush(state)

    def is_file_awaited(self, subscribers: Iterable[str]) -> bool:
        """Whether everybody has durably completed some segment, and the progress file of one of these subscribers does not say so yet."""
        completed = {name: state.progress.completed for name, state in self._states.items()}
        unfiled = {seq for name in subscribers if name in completed for seq in completed[name].unfiled()}
        return any(all(each.is_durable(seq) for each in completed.values()) for seq in unfiled)

    def mark_gaps_flushed(self, subscriber: str, version: int) -> None:
        """Note that the gap notices as they stood at that version are durable. Ignored if the subscriber is gone."""
        state = self._states.get(subscriber)
        if state is not None:
            state.gaps.mark_flushed(version)
            self._note_flush(state)

    def _note_flush(self, state: SubscriberState) -> None:
        if not state.is_behind:
            self._attention.changed.pop(state.subscriber, None)

    def unsettle(self) -> None:
        """Note that a subscriber has come or gone: any segment may be deletable by it."""
        self._settled = None

    def take_settled(self) -> set[int] | None:
        """The segments that `SubscriberRegistry.deletable` may name now and did not name at the last call, as far as flushes and
        subscribers that come and go decide about it; None: any segment may be one."""
        settled, self._settled = self._settled, set()
        return settled
