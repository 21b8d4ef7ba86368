"""What the outside world knows of one engine, and since when: what was pushed, acknowledged, subscribed, resolved, deleted.

Everything carries the number of disk calls after which it was true. So one ledger says for every moment of a run what a crash at
that moment must leave, may leave and must not leave.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from quiver_actors.base.rights import OF_TOPICS_OWNER, Ownership
from tests.sim.bundles import Slots
from tests.sim.stage_ledger import NEVER, BundleId, StageLedger

Key = tuple[str, int]
"""An idempotent producer, and the number that it has given to one of its bundles."""


@dataclass(slots=True)
class Fact:
    """Something that was done, and later became durable."""

    done_at: int
    durable_at: int = NEVER


@dataclass(slots=True)
class PushedBundle:
    id: BundleId
    sequence: int
    slots: Slots
    time_ns: int
    """Time of the push on the clock of the engine."""
    staged_at: int
    written_at: int = NEVER
    """Acknowledged as written: survives the end of the process."""
    durable_at: int = NEVER
    """Acknowledged as synced, or said to be durable: survives everything."""
    lost_at: int = NEVER
    """A crash took it, and it had not been promised."""
    is_staged: bool = False
    """Part of a transaction: it is promised once its publish is said to be done, and not by a position in a log."""


@dataclass(slots=True)
class Subscription:
    """One life of one subscriber id, from its registration to its unregistration.

    Owed are the bundles from `first_sequence` on, and those of `owed_before`; it gets no others, but perhaps those of `may_get`.
    """

    subscriber: str
    registered: Fact
    first_sequence: int
    owed_before: frozenset[BundleId] = frozenset()
    may_get: frozenset[BundleId] = frozenset()
    """Bundles behind its start that were evicted before it registered: a crash may bring them back."""
    ownership: Ownership = OF_TOPICS_OWNER
    """Owner of the subscriber: durable with its registration."""
    ended: Fact = field(default_factory=lambda: Fact(NEVER))
    resolved: dict[BundleId, Fact] = field(default_factory=dict)
    dropped: set[BundleId] = field(default_factory=set)
    """Bundles among these that were evicted to free space."""

    def owes(self, bundle: PushedBundle) -> bool:
        return bundle.sequence >= self.first_sequence or bundle.id in self.owed_before


@dataclass(slots=True)
class Deletion:
    started_at: int
    done_at: int = NEVER


__all__ = ["NEVER", "BundleId", "Deletion", "Fact", "Ledger", "PushedBundle", "Subscription"]


class Ledger:
    def __init__(self) -> None:
        self.bundles: dict[BundleId, PushedBundle] = {}
        self.subscriptions: list[Subscription] = []
        self.deletions: dict[int, Deletion] = {}
        self.stages = StageLedger()
        self.keys: dict[Key, list[BundleId]] = {}
        """Where bundles with a key were stored: again only where a crash has taken the one before."""
        self.drops: dict[int, Fact] = {}
        """Segments that were evicted to free space."""
        self.condemned: set[int] = set()
        """Segments that the process which runs now has decided to delete, while nobody needed them."""
        self.made_room: set[int] = set()
        """Segments that a claim of the coordinator has named: whatever else keeps them does not count any more."""
        self.positions: dict[int, tuple[int, int, int]] = {}
        """Per sealed segment: first and last log position, and since when it is known."""

    # --- at a moment ------------------------------------------------------------------------------------------------------

    def promised(self, at: int, *, is_kill: bool) -> Iterator[PushedBundle]:
        """Bundles that a crash at that moment must leave readable."""
        for bundle in self.bundles.values():
            known_at = min(bundle.durable_at, bundle.written_at) if is_kill else bundle.durable_at
            if known_at <= at < bundle.lost_at and not self.may_be_deleted(bundle.id[0], at):
                yield bundle

    def may_be_deleted(self, segment_seq: int, at: int) -> bool:
        deletion = self.deletions.get(segment_seq)
        return deletion is not None and deletion.started_at <= at

    def is_deleted(self, segment_seq: int, at: int) -> bool:
        deletion = self.deletions.get(segment_seq)
        return deletion is not None and deletion.done_at <= at

    def highest_used(self, at: int) -> tuple[int, int]:
        """The highest segment number and sequence that any bundle was given so far, -1 for none."""
        used = [bundle for bundle in self.bundles.values() if bundle.staged_at <= at]
        return max((b.id[0] for b in used), default=-1), max((b.sequence for b in used), default=-1)

    def known(self, subscriber: str, at: int) -> tuple[Subscription | None, bool]:
        """The latest subscription of that id that is durable, and whether a crash may leave another state of it."""
        durable, is_open = None, False
        for subscription in self.subscriptions:
            if subscription.subscriber != subscriber or subscription.registered.done_at > at:
                continue
            if subscription.registered.durable_at <= at:
                durable, is_open = subscription, False
            else:
                is_open = True
            if subscription.ended.durable_at <= at:
                durable, is_open = None, False
            elif subscription.ended.done_at <= at:
                is_open = True
        return durable, is_open

    def subscribers(self) -> set[str]:
        return {subscription.subscriber for subscription in self.subscriptions}

    # --- now --------------------------------------------------------------------------------------------------------------

    def live(self, subscriber: str) -> Subscription | None:
        """The subscription that is in force now, durable or not."""
        found = [s for s in self.subscriptions if s.subscriber == subscriber and s.ended.done_at == NEVER]
        return found[-1] if found else None

    def drop(self, segment_seq: int, fact: Fact) -> None:
        """The engine gives a sealed segment up: nobody gets what he has not resolved of it."""
        self.drops[segment_seq] = fact
        for subscription in self.subscriptions:
            if subscription.ended.done_at != NEVER:
                continue
            for id_, bundle in self.bundles.items():
                if id_[0] == segment_seq and subscription.owes(bundle) and id_ not in subscription.resolved:
                    subscription.resolved[id_] = fact
                    subscription.dropped.add(id_)

    def forget_drops(self, deliverable: set[int], there: Collection[int], now: int, *, has_subscribers: bool) -> None:
        """After a crash: a drop of which nobody gets anything was durable, or has become so. Progress and notices are all that bears one:
        where nobody has any, a segment that is still there is whole, and whoever comes next gets it."""
        for segment_seq, fact in list(self.drops.items()):
            if segment_seq in deliverable or (not has_subscribers and segment_seq in there):
                del self.drops[segment_seq]
            elif has_subscribers:
                fact.durable_at = min(fact.durable_at, now)
            elif fact.durable_at == NEVER:
                del self.drops[segment_seq]

    def condemn(self, segment_seqs: Iterable[int]) -> None:
        """The engine decides to delete these segments. The files go later: a deletion waits for room on a full disk. A subscriber that
        leaves meanwhile, be it the last one, takes nothing back; whoever comes meanwhile is not owed them."""
        for segment_seq in segment_seqs:
            is_right = segment_seq in self.condemned or self.may_delete(segment_seq)
            assert is_right, f"the engine decides to delete segment {segment_seq} although it may be needed"
            self.condemned.add(segment_seq)

    def check_kept(self, segment_seqs: Iterable[int], now_unix_ns: int, keep_for_ns: int) -> None:
        """The engine deletes these segments now: what nobody needs stays for `keep_for`, unless room is wanted."""
        for segment_seq in segment_seqs:
            if segment_seq in self.drops or segment_seq in self.made_room:
                continue
            newest_ns = max(
                (bundle.time_ns for id_, bundle in self.bundles.items() if id_[0] == segment_seq), default=0
            )
            age_ns = now_unix_ns - newest_ns
            assert age_ns >= keep_for_ns, f"segment {segment_seq} goes at an age of {age_ns} ns, kept are {keep_for_ns}"

    def may_delete(self, segment_seq: int) -> bool:
        """Whether the engine may decide to delete that segment now. Every subscriber has resolved, durably, all that it was owed of the
        segment, and there is a subscriber; or the segment was given up, and that is durable."""
        if segment_seq in self.drops and self.drops[segment_seq].durable_at != NEVER:
            return True
        live = [s for s in self.subscriptions if s.ended.durable_at == NEVER]
        return bool(live) and not any(self._needs(subscription, segment_seq) for subscription in live)

    def _needs(self, subscription: Subscription, segment_seq: int) -> bool:
        return any(
            id_[0] == segment_seq
            and bundle.lost_at == NEVER
            and subscription.owes(bundle)
            and (id_ not in subscription.resolved or subscription.resolved[id_].durable_at == NEVER)
            for id_, bundle in self.bundles.items()
        )
