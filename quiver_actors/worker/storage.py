"""A worker's share of the node's disk: what it says about itself, the grant that it lives within, the claims that it carries out.

Owner: the loop thread. Speaks with the supervisor's coordinator through words of the counters page only; while nobody writes there the
worker goes on within the last grant. Nothing of this is in the way of a push: engines ask for leave when they make a log file.

The order of the words matters (supervisor.figures.StorageFigure): what is used is published before the grant that it was used under.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic_ns

from quiver_actors.engine import Engine
from quiver_actors.retention.choice import Candidate, choose
from quiver_actors.retention.pressure import Pressure
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.words import WEAKLY_ORDERED, fence
from quiver_actors.supervisor.coordinator import NEAR
from quiver_actors.supervisor.figures import (
    GRANT_ROW,
    NO_LIMIT,
    NODE_STORAGE_LABEL,
    NODE_STORAGE_ROW,
    STORAGE_ROW,
    SUPERVISOR_REGION,
    GrantFigure,
    NodeStorageFigure,
    StorageFigure,
)
from quiver_actors.units import MILLISECOND_NS
from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.evictions import Candidates, carry_out
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.reckoning import Reckoning
from quiver_actors.worker.topic_shares import TopicShares

CALM_INTERVAL_NS = 50 * MILLISECOND_NS
UNCAPPED_INTERVAL_NS = 100 * MILLISECOND_NS
"""The same while there is no cap: then nobody waits for what a worker finds there."""
BUSY_INTERVAL_NS = 5 * MILLISECOND_NS
"""How often the words are looked at while something is wanted or being deleted."""
AHEAD_STEPS = 4
"""So many logs ahead of need more is asked for: a supervisor that gets no processor for a while stops nobody."""
OFFER_INTERVAL_NS = 250 * MILLISECOND_NS
"""How often a worker says what of its own would go first, while the node is near its soft limit and not over it."""
_EARLY_PART = 10
"""A turn of the loop that comes by so small a part of the interval too early does: one wake-up serves several."""
_SETTLING_READS = 8


class StorageShare:
    """See the module. Without a page (None) there is no limit.

    Attributes:
        early_ns, deadline_ns: when `turn` may be called again, and when it must.
    """

    def __init__(
        self,
        page: CountersPage | None,
        region: RegionWriter,
        name: str,
        hosts: Mapping[str, EngineHost],
        agenda: Agenda,
        wake_supervisor: Callable[[], None],
    ) -> None:
        """
        Args:
            name: of the worker, `core_<n>`.
            hosts: by topic; may change.
            agenda: of the worker's loop: says what has moved.
        """
        self._hosts = hosts
        self._wake = wake_supervisor
        self._row = region.row(STORAGE_ROW, name)
        self._grant = LiveRow(page, SUPERVISOR_REGION, GRANT_ROW, name) if page is not None else None
        self._node = (
            LiveRow(page, SUPERVISOR_REGION, NODE_STORAGE_ROW, NODE_STORAGE_LABEL) if page is not None else None
        )
        self._limit_bytes = 0 if page is not None else NO_LIMIT
        self._is_refused = False
        self._is_wanting = False
        self._claim = 0
        self.deadline_ns = self.early_ns = 0
        self._reckoning = Reckoning(hosts, agenda)
        self._was_over = False
        self._offered_ns = 0
        self._was_near = False
        self._candidates = Candidates(hosts)
        self._offered: Sequence[Candidate] = ()
        self.topics = TopicShares(page, region, hosts, lambda: self._node_word(NodeStorageFigure.CAP_BYTES))
        """Those of topics that may have only a part of the cap."""

    # --- leave ---------------------------------------------------------------------------------------------------------

    def admits(self, more_bytes: int) -> bool:
        """Whether the worker may take so many bytes more of the disk."""
        if self._grant is not None and self._grant.load(GrantFigure.GRANT_BYTES) != self._limit_bytes:
            self._adopt()
        is_admitted = self._limit_bytes == NO_LIMIT or self.used_bytes + more_bytes <= self._limit_bytes
        if not is_admitted:
            self._is_refused = True
            self.deadline_ns = self.early_ns = 0
        return is_admitted

    def admits_for(self, engine: Engine, more_bytes: int) -> bool:
        """The same, of one engine: its topic may have less than there is."""
        is_admitted = self.topics.admits(engine, more_bytes, monotonic_ns(), self.admits)
        if not is_admitted:
            self.deadline_ns = self.early_ns = 0
        return is_admitted

    @property
    def used_bytes(self) -> int:
        """Of all topics, as it is now."""
        return self._reckoning.used_bytes

    def _adopt(self) -> None:
        """Live within the grant as it is now; what was used under the one before is published first."""
        assert self._grant is not None
        for _ in range(_SETTLING_READS):
            granted = self._grant.load(GrantFigure.GRANT_BYTES)
            self._row.set(StorageFigure.USED_BYTES, self.used_bytes)
            if WEAKLY_ORDERED:
                fence()
            self._row.set(StorageFigure.GRANT_SEEN_BYTES, granted)
            if WEAKLY_ORDERED:
                fence()
            self._limit_bytes = granted
            if self._grant.load(GrantFigure.GRANT_BYTES) == granted:
                return

    def show_pressure(self, pressure: Pressure) -> None:
        """Beside what is on disk: how hard pressed the worker is, and what it does about it."""
        self._row.set(StorageFigure.PRESSURE_PERMILLE, pressure.permille)
        self._row.set(StorageFigure.PRESSURE_STEPS, int(pressure.steps))

    # --- turns ---------------------------------------------------------------------------------------------------------

    @property
    def cap_fraction(self) -> float:
        """How much of the cap the node uses; 0 without a cap."""
        cap_bytes = self._node_word(NodeStorageFigure.CAP_BYTES)
        return self._node_word(NodeStorageFigure.USED_BYTES) / cap_bytes if cap_bytes else 0.0

    def turn(self, now_ns: int) -> None:
        """Look at the words and answer them. To be called from `early_ns` on."""
        before_bytes = self._limit_bytes
        moved = self._reckoning.look()
        self._candidates.note(moved)
        if self._grant is not None:
            self._adopt()
        if self._limit_bytes > before_bytes and self._is_refused:
            self._is_refused = False
            for host in self._hosts.values():
                if host.engine.wanted_bytes:
                    host.touch()
        is_over = bool(self._node_word(NodeStorageFigure.IS_OVER))
        self._ease(is_over, moved)
        self.topics.turn(now_ns, moved, self._reckoning.comings, releases_spare=is_over)
        self._publish_wants(now_ns)
        self._take_claim(now_ns, is_over)
        self._row.set(StorageFigure.BEAT_NS, now_ns)
        self._row.set(StorageFigure.REPORTED, 1)
        is_busy = self._is_wanting or self.topics.is_short or self._claim > self._row.get(StorageFigure.CLAIM_DONE)
        calm_ns = CALM_INTERVAL_NS if self._node_word(NodeStorageFigure.CAP_BYTES) else UNCAPPED_INTERVAL_NS
        interval_ns = BUSY_INTERVAL_NS if is_busy else calm_ns
        self.deadline_ns = now_ns + interval_ns
        self.early_ns = self.deadline_ns - interval_ns // _EARLY_PART

    def _node_word(self, figure: NodeStorageFigure) -> int:
        return self._node.load(figure) if self._node is not None else 0

    def _ease(self, is_over: bool, moved: Collection[EngineHost]) -> None:
        """Near the cap nothing is kept ready that nobody uses, and what is open is sealed where pushes wait."""
        is_new, self._was_over = is_over != self._was_over, is_over
        if not is_over and not is_new:
            return
        for host in self._hosts.values():
            if host not in moved and not is_new:
                continue
            engine = host.engine
            if engine.releases_spare != is_over:
                engine.releases_spare = is_over
                host.touch()
            if is_over and engine.is_throttled and engine.seals_early and engine.has_open_bundles:
                engine.seal_now()
                host.touch()

    def _publish_wants(self, now_ns: int) -> None:
        reckoning, refused = self._reckoning, self.topics.refused_hosts()
        used_bytes, step_bytes = reckoning.used_bytes, reckoning.step_bytes
        # What a topic's own limit refuses is no wish of the worker.
        wanted_bytes = reckoning.wanted_bytes(without=refused)
        is_short = wanted_bytes > 0
        if self._limit_bytes < NO_LIMIT and not is_short and reckoning.taking - refused:
            # Ahead of need: the next logs are asked for before they are.
            wanted_bytes = AHEAD_STEPS * step_bytes
            is_short = used_bytes + step_bytes > self._limit_bytes
        waiting = [host.waiting_since_ns for host in reckoning.short - refused]
        since_ns = min((at for at in waiting if at), default=0)
        was_wanting, self._is_wanting = self._is_wanting, is_short
        row = self._row
        row.set(StorageFigure.USED_BYTES, used_bytes)
        row.set(StorageFigure.STEP_BYTES, step_bytes)
        is_new = row.get(StorageFigure.WAITING_SINCE_NS) != since_ns or was_wanting != self._is_wanting
        row.set(StorageFigure.WAITING_SINCE_NS, since_ns)
        row.set(StorageFigure.WANTED_BYTES, wanted_bytes)
        if is_new and self._limit_bytes < NO_LIMIT:
            self._wake()

    # --- claims --------------------------------------------------------------------------------------------------------

    def _take_claim(self, now_ns: int, is_over: bool) -> None:
        row, doomed_bytes = self._row, self._reckoning.doomed_bytes
        row.set(StorageFigure.DOOMED_BYTES, doomed_bytes)
        candidates: Sequence[Candidate] = ()
        is_near, was_near = self._is_near(), self._was_near
        self._was_near = is_near
        if is_over or is_near != was_near or now_ns >= self._offered_ns + OFFER_INTERVAL_NS:
            if is_over or is_near:
                candidates = self._candidates.look(now_ns)
            else:
                self._candidates.look_no_more()
            self._offer(candidates, now_ns)
        if self._claim > row.get(StorageFigure.CLAIM_DONE) and not doomed_bytes:
            row.set(StorageFigure.CLAIM_DONE, self._claim)
            self._wake()
        claim = self._read_claim()
        if claim and claim[GrantFigure.CLAIM] > self._claim and now_ns < claim[GrantFigure.CLAIM_EXPIRES_NS]:
            self._claim = claim[GrantFigure.CLAIM]
            self._carry_out(candidates, claim)

    def _is_near(self) -> bool:
        soft_bytes = self._node_word(NodeStorageFigure.SOFT_BYTES)
        return soft_bytes > 0 and self._node_word(NodeStorageFigure.USED_BYTES) > NEAR * soft_bytes

    def _offer(self, candidates: Sequence[Candidate], now_ns: int) -> None:
        """Say what would go first."""
        self._offered_ns = now_ns
        if candidates is self._offered:
            return
        self._offered = candidates
        row, first = self._row, self._candidates.first if candidates else None
        same = [each for each in candidates if first is not None and each.eviction_class == first.eviction_class]
        row.set(StorageFigure.EVICTABLE_BYTES, sum(each.size_bytes for each in same))
        row.set(StorageFigure.EVICTABLE_OLDEST_UNIX_NS, first.unix_ns if first is not None else 0)
        row.set(StorageFigure.EVICTABLE_CLASS, first.eviction_class if first is not None else 0)

    def _read_claim(self) -> list[int] | None:
        """The words of the claim that stands, None if there is none or it is just changing."""
        if self._grant is None:
            return None
        words = self._grant.load_all()
        number = words[GrantFigure.CLAIM]
        return words if number and self._grant.load(GrantFigure.CLAIM) == number else None

    def _carry_out(self, candidates: Sequence[Candidate], claim: list[int]) -> None:
        chosen = choose(
            candidates,
            claim[GrantFigure.CLAIM_CLASS],
            claim[GrantFigure.CLAIM_THROUGH_UNIX_NS],
            claim[GrantFigure.CLAIM_BYTES],
        )
        carry_out(self._hosts, chosen)
        self._candidates.hurry()

    def started(self) -> None:
        """Before the worker is ready: what it has on disk is known from now on."""
        self.turn(monotonic_ns())
