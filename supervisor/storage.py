"""The coordinator's hands: what the children say about the disk goes in, quotas and claims come out, all through the counters page.

Owner: the supervisor's loop. Holds no policy: that is `coordinator`. Without a cap it writes one word a child, once, and rests. The same
hands keep the node to its cap and each topic to its limit; `node_storage` has all of them.

A child that has died keeps its quota until its directories were measured, a few hundred entries a turn; one that lives and has not
said anything yet may be using all of its quota.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterable, Sequence

import msgspec

from ..shm.counters import CountersPage, RegionWriter, RowWriter
from ..shm.live_row import LiveRow
from ..shm.words import WEAKLY_ORDERED, fence
from .coordinator import RESPONSIVE_NS, SILENT_NS, Claim, Decision, Evictions, Holding, Limits, decide, limits_of
from .decide import Child
from .figures import (
    NO_LIMIT,
    NODE_STORAGE_LABEL,
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    TOPIC_QUOTA_ROW,
    TOPIC_STORAGE_ROW,
    TOPIC_SUM_ROW,
    NodeStorageFigure,
    QuotaFigure,
    StorageFigure,
    region_of,
)
from .measure import all_of, measuring
from .spec import MILLISECOND_NS, SECOND_NS

BUSY_INTERVAL_NS = 20 * MILLISECOND_NS
"""How often the words are looked at while somebody wants or deletes something."""
CALM_INTERVAL_NS = 100 * MILLISECOND_NS
UNOWNED_INTERVAL_NS = 60 * SECOND_NS
"""How often it is looked how much is in nobody's directories."""

_Steps = Generator[None, None, int]


class StorageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The disk that is shared out, and among which directories."""

    root: str
    """Directory whose whole content counts."""
    cap_bytes: Callable[[], int]
    """The cap in bytes as it is now; 0 = no cap."""
    directories: Callable[[int], Sequence[str]]
    """The directories below the root that a child (by its index) writes to, as they are now."""
    topic_directories: Callable[[int, str], Sequence[str]] = lambda index, topic: ()
    """Those of them that belong to one topic."""
    measuring: Callable[[Iterable[str], Collection[str]], _Steps] = measuring
    """How what directories take is counted, see `measure`."""


class Coordination:
    """Carries reports, quotas and claims between children and coordinator, for one limit. That of the node is made before the first fork:
    every child finds its quota."""

    def __init__(
        self, spec: StorageSpec, children: Sequence[Child], page: CountersPage, own: RegionWriter, topic: str = ""
    ) -> None:
        """
        Args:
            topic: whose limit it is; empty: the node's.

        Raises:
            ShmError: the region has no row left.
            OSError: the directories cannot be measured.
        """
        self._spec = spec
        self._topic = topic
        self._own = own
        self._cap_bytes = spec.cap_bytes()
        self._shares = {child.spec.index: _share_of(child, page, own, topic) for child in children}
        self._node = own.row(TOPIC_SUM_ROW, topic) if topic else own.row(NODE_STORAGE_ROW, NODE_STORAGE_LABEL)
        claims = [self._node.get(NodeStorageFigure.CLAIMS), *(share.claim_number for share in self._shares.values())]
        self._evictions = Evictions(max(claims))
        self._evictions.expired = self._node.get(NodeStorageFigure.CLAIMS_EXPIRED)
        self._unowned_bytes = 0
        self._unowned_steps: _Steps | None = None
        self._unowned_due_ns = 0
        self._due_ns = 0
        self._begin()

    def _begin(self) -> None:
        for index, share in self._shares.items():
            share.measured_bytes = self._measured(self._spec.directories(index)) if self._cap_bytes else 0
        if self._cap_bytes and not self._topic:
            self._unowned_bytes = self._measured([self._spec.root], self._owned())
        self._unowned_due_ns = time.monotonic_ns() + UNOWNED_INTERVAL_NS
        self._due_ns = 0

    def _measured(self, directories: Iterable[str], without: Collection[str] = ()) -> int:
        return all_of(self._spec.measuring(directories, without))

    def follow_cap(self) -> None:
        """Read the cap anew, which may have changed. A store above it works its way down."""
        before, self._cap_bytes = self._cap_bytes, self._spec.cap_bytes()
        if self._cap_bytes == before:
            return
        if self._topic:
            self._due_ns = 0
            return
        try:
            self._begin()
        except OSError:
            # As in `_measure_unowned`: the former cap holds until the next call.
            self._cap_bytes = before

    def wake(self) -> None:
        """A child has something new to say: look in this turn."""
        if self._cap_bytes:
            self._due_ns = 0

    def next_deadline_ns(self) -> int | None:
        """Return the monotonic time of the next round; None if nothing is due."""
        return self._due_ns if self._due_ns < NO_LIMIT else None

    def turn(self, children: Sequence[Child]) -> bool:
        """Look at the words and write what follows from them, if it is time; return whether it was."""
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            return False
        self._measure_unowned(now_ns)
        holdings = [self._holding(child, now_ns) for child in children]
        limits = self._limits(holdings)
        quotas = {index: share.quota_bytes for index, share in self._shares.items()}
        is_over = bool(self._node.get(NodeStorageFigure.IS_OVER))
        decision = decide(now_ns, limits, self._unowned_bytes, holdings, quotas, is_over)
        claim = self._evictions.decide(now_ns, limits, decision, holdings)
        for index, share in self._shares.items():
            share.set_quota(decision.quotas[index])
            share.claim(claim if claim is not None and claim.index == index else None)
        self._publish(limits, decision)
        for share in self._shares.values() if self._topic else ():
            share.note_change()
        busy = claim is not None or decision.is_over or any(share.steps is not None for share in self._shares.values())
        busy = busy or any(holding.waiting_since_ns if self._topic else holding.wanted_bytes for holding in holdings)
        # A topic that nobody waits for is looked at when a child says something new of it.
        calm_ns = NO_LIMIT if self._topic else CALM_INTERVAL_NS
        self._due_ns = now_ns + (BUSY_INTERVAL_NS if busy else calm_ns) if self._cap_bytes else NO_LIMIT
        return True

    def end(self) -> None:
        """Drop the rows: the limit holds no longer."""
        for share in self._shares.values():
            share.drop(self._own)
        self._own.drop(self._node)

    def _limits(self, holdings: Sequence[Holding]) -> Limits | None:
        if not self._cap_bytes:
            return None
        return limits_of(self._cap_bytes, max((holding.step_bytes for holding in holdings), default=0))

    def _holding(self, child: Child, now_ns: int) -> Holding:
        index = child.spec.index
        share = self._shares[index]
        words = share.row.load_all()
        if words[StorageFigure.REPORTED] and child.has_process:
            share.used_seen_bytes = words[StorageFigure.USED_BYTES]
            share.forget_measure()
            return _reported(index, words, share.beat.load(StorageFigure.BEAT_NS), now_ns, is_stopped=child.stopped)
        if child.has_process:
            share.forget_measure()
            return Holding(index=index, used_bytes=share.known_bytes, seen_bytes=share.quota_bytes, is_responsive=False)
        if not share.is_measured:
            share.measure_on(lambda: self._spec.measuring(self._spec.directories(index), ()))
        seen_bytes = 0 if share.is_measured else max(share.quota_bytes, words[StorageFigure.QUOTA_SEEN_BYTES])
        return Holding(index=index, used_bytes=share.known_bytes, seen_bytes=seen_bytes, is_responsive=False)

    def _owned(self) -> set[str]:
        return {path for index in self._shares for path in self._spec.directories(index)}

    def _measure_unowned(self, now_ns: int) -> None:
        is_due = self._cap_bytes and not self._topic and now_ns >= self._unowned_due_ns
        if self._unowned_steps is None and not is_due:
            return
        try:
            if self._unowned_steps is None:
                self._unowned_due_ns = now_ns + UNOWNED_INTERVAL_NS
                self._unowned_steps = self._spec.measuring([self._spec.root], self._owned())
            next(self._unowned_steps)
        except StopIteration as done:
            self._unowned_bytes, self._unowned_steps = int(done.value), None
        except OSError:
            # A disk that does not answer, no descriptor left: what was found last stands until the next time.
            self._unowned_steps = None

    def _publish(self, limits: Limits | None, decision: Decision) -> None:
        node = self._node
        node.set(NodeStorageFigure.CAP_BYTES, self._cap_bytes)
        node.set(NodeStorageFigure.SOFT_BYTES, limits.soft_bytes if limits else 0)
        node.set(NodeStorageFigure.USED_BYTES, decision.used_bytes)
        node.set(NodeStorageFigure.UNOWNED_BYTES, self._unowned_bytes)
        node.set(NodeStorageFigure.IS_OVER, int(decision.is_over))
        node.set(NodeStorageFigure.CLAIMS, self._evictions.number)
        node.set(NodeStorageFigure.CLAIMS_EXPIRED, self._evictions.expired)
        node.set(NodeStorageFigure.QUOTAS_BYTES, sum(decision.quotas.values()) if limits else 0)


class _Share:
    """One child's words, and what was measured of it while it could not speak."""

    def __init__(self, quota: RowWriter, row: LiveRow, beat: LiveRow) -> None:
        self.row = row
        self.beat = beat
        """The row with the time of the child's last look at its words."""
        self.used_seen_bytes = 0
        """The used bytes that the child reported last."""
        self.measured_bytes = 0
        self.is_measured = False
        """Whether the child's directories were measured since its last process ended."""
        self.steps: _Steps | None = None
        self._quota = quota

    @property
    def quota_bytes(self) -> int:
        return self._quota.get(QuotaFigure.QUOTA_BYTES)

    @property
    def claim_number(self) -> int:
        return self._quota.get(QuotaFigure.CLAIM)

    @property
    def known_bytes(self) -> int:
        return max(self.used_seen_bytes, self.measured_bytes)

    def set_quota(self, size_bytes: int) -> None:
        if size_bytes != self.quota_bytes:
            self._quota.set(QuotaFigure.QUOTA_BYTES, size_bytes)

    def note_change(self) -> None:
        """The child is to look at its words."""
        if WEAKLY_ORDERED:
            fence()
        self._quota.add(QuotaFigure.CHANGE, 1)

    def drop(self, region: RegionWriter) -> None:
        """Free the row of the quota."""
        region.drop(self._quota)

    def claim(self, claim: Claim | None) -> None:
        number = claim.number if claim is not None else 0
        if number == self.claim_number:
            return
        self._quota.set(QuotaFigure.CLAIM, 0)
        if claim is None:
            return
        if WEAKLY_ORDERED:
            fence()
        self._quota.set(QuotaFigure.CLAIM_CLASS, claim.eviction_class)
        self._quota.set(QuotaFigure.CLAIM_THROUGH_UNIX_NS, claim.through_unix_ns)
        self._quota.set(QuotaFigure.CLAIM_BYTES, claim.size_bytes)
        self._quota.set(QuotaFigure.CLAIM_EXPIRES_NS, claim.expires_ns)
        if WEAKLY_ORDERED:
            fence()
        self._quota.set(QuotaFigure.CLAIM, number)

    def measure_on(self, begin: Callable[[], _Steps]) -> None:
        """Measure a few hundred entries more; the result replaces what the child said."""
        try:
            if self.steps is None:
                self.steps = begin()
            next(self.steps)
        except StopIteration as done:
            self.measured_bytes, self.used_seen_bytes, self.steps = int(done.value), 0, None
            self.is_measured = True
        except OSError:
            # What is known stands; the next turn begins again.
            self.steps = None

    def forget_measure(self) -> None:
        """Forget the measurement: the child has a process again, which may write."""
        self.steps = None
        self.is_measured = False


def _share_of(child: Child, page: CountersPage, own: RegionWriter, topic: str) -> _Share:
    region, name = region_of(child.spec.index), child.spec.name
    beat = LiveRow(page, region, STORAGE_ROW, name)
    if not topic:
        return _Share(own.row(QUOTA_ROW, name), beat, beat)
    quota = own.row(TOPIC_QUOTA_ROW, f"{name}/{topic}")
    return _Share(quota, LiveRow(page, region, TOPIC_STORAGE_ROW, topic), beat)


def _reported(index: int, words: Sequence[int], beat_ns: int, now_ns: int, *, is_stopped: bool) -> Holding:
    return Holding(
        index=index,
        used_bytes=words[StorageFigure.USED_BYTES],
        seen_bytes=words[StorageFigure.QUOTA_SEEN_BYTES],
        wanted_bytes=words[StorageFigure.WANTED_BYTES],
        waiting_since_ns=words[StorageFigure.WAITING_SINCE_NS],
        step_bytes=words[StorageFigure.STEP_BYTES],
        is_responsive=not is_stopped and now_ns - beat_ns < RESPONSIVE_NS,
        beat_ns=beat_ns,
        is_silent=now_ns - beat_ns > SILENT_NS,
        evictable_class=words[StorageFigure.EVICTABLE_CLASS],
        evictable_oldest_unix_ns=words[StorageFigure.EVICTABLE_OLDEST_UNIX_NS],
        evictable_bytes=words[StorageFigure.EVICTABLE_BYTES],
        doomed_bytes=words[StorageFigure.DOOMED_BYTES],
        claim_done=words[StorageFigure.CLAIM_DONE],
    )
