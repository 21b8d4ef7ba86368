"""What a worker has and wants under one limit, the quota that it lives within, and the eviction claims that it carries out. A worker has
one account for the node's cap, and one for each topic that may have only a part of it.

Owner: the loop thread. Speaks with the supervisor's coordinator through words of the counters page only; while nobody writes there the
worker goes on within the last quota. Nothing of this is in the way of a push: engines ask for leave when they make a log file.

The order of the words matters (supervisor.figures.StorageFigure): what is used is published before the quota that it was used under.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.evictions import Candidates, carry_out
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.usage_totals import Usage
from quiver_actors.shm.counters import RowWriter
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.words import WEAKLY_ORDERED, fence
from quiver_actors.store.engine import Engine
from quiver_actors.store.retention.choice import Candidate, choose
from quiver_actors.supervisor.coordinator import NEAR
from quiver_actors.supervisor.figures import NO_LIMIT, NodeStorageFigure, QuotaFigure, StorageFigure

AHEAD_STEPS = 4
"""Number of logs for which more space is requested ahead of need: a supervisor short of processor time then stops no worker."""
OFFER_INTERVAL_NS = 250 * MILLISECOND_NS
"""Interval at which a worker publishes what it would evict first, while its use is near the soft limit and not over it."""
_SETTLING_READS = 8


class Account:
    """One limit, as one worker keeps to it.

    Attributes:
        row: the worker's own words.
        hosts: those that the limit is for.
        refused: hosts that wait for room that this limit has refused.
        is_over: what may go, goes, and hosts make do with less.
        has_news: words of `row` have changed. The caller resets it.
    """

    def __init__(
        self,
        row: RowWriter,
        quota: LiveRow | None,
        sums: LiveRow | None,
        hosts: Mapping[str, EngineHost],
        wake_supervisor: Callable[[], None],
        used: Callable[[], int] | None = None,
    ) -> None:
        """
        Args:
            quota: the supervisor's words for this worker; None: there is no limit.
            sums: its words for all workers.
            hosts: may change.
            used: says how many bytes they have on disk now; None: they are added up.
        """
        self.row = row
        self._quota = quota
        self._sums = sums
        self.hosts = hosts
        self._used = used or self._added_up
        self._wake = wake_supervisor
        self._limit_bytes = 0 if quota is not None else NO_LIMIT
        self._left_bytes = 0
        """Room within the quota at the last turn."""
        self._refused_engines: set[Engine] = set()
        self.refused: set[EngineHost] = set()
        self._is_wanting = False
        self._claim = 0
        self._offered_ns = 0
        self._was_near = self.is_over = False
        self._candidates = Candidates(hosts)
        self._offered: Sequence[Candidate] = ()
        self._heard = 0
        self.has_news = False

    def serve(self, hosts: Mapping[str, EngineHost]) -> None:
        """Be for these hosts from now on."""
        if hosts != self.hosts:
            self.hosts, self._candidates = hosts, Candidates(hosts)

    def _added_up(self) -> int:
        return sum(host.engine.storage.disk_bytes for host in self.hosts.values())

    # --- leave ---------------------------------------------------------------------------------------------------------

    def admits(self, engine: Engine, more_bytes: int) -> bool:
        """Whether an engine may take so many bytes more of the disk."""
        if self._quota is not None and self._quota.load(QuotaFigure.QUOTA_BYTES) != self._limit_bytes:
            self._adopt()
        is_admitted = self._limit_bytes == NO_LIMIT or self._used() + more_bytes <= self._limit_bytes
        if is_admitted:
            self._refused_engines.discard(engine)
        else:
            self._refused_engines.add(engine)
        return is_admitted

    def _adopt(self) -> None:
        """Apply the present quota; the bytes used under the former quota are published first."""
        assert self._quota is not None
        for _ in range(_SETTLING_READS):
            quota_bytes = self._quota.load(QuotaFigure.QUOTA_BYTES)
            self.say(StorageFigure.USED_BYTES, self._used())
            if WEAKLY_ORDERED:
                fence()
            self.say(StorageFigure.QUOTA_SEEN_BYTES, quota_bytes)
            if WEAKLY_ORDERED:
                fence()
            self._limit_bytes = quota_bytes
            if self._quota.load(QuotaFigure.QUOTA_BYTES) == quota_bytes:
                return

    def say(self, figure: StorageFigure, value: int) -> None:
        """Publish a figure."""
        if self.row.get(figure) != value:
            self.row.set(figure, value)
            self.has_news = True

    # --- turns ---------------------------------------------------------------------------------------------------------

    def sum_of(self, figure: NodeStorageFigure) -> int:
        """Return a figure over all workers, as the supervisor published it; 0: it has published none."""
        return self._sums.load(figure) if self._sums is not None else 0

    @property
    def is_busy(self) -> bool:
        """Whether the words have to be looked at again soon."""
        return self._is_wanting or self._claim > self.row.get(StorageFigure.CLAIM_DONE)

    @property
    def is_calm(self) -> bool:
        """Whether nothing is to be done before something happens to a host, or the supervisor has something new to say."""
        return not (self.is_busy or self.is_over or self._was_near or self._refused_engines)

    def hears(self) -> bool:
        """Whether the supervisor has changed its words since the last turn."""
        return self._quota is not None and self._quota.load(QuotaFigure.CHANGE) != self._heard

    def turn(self, now_ns: int, moved: Collection[EngineHost], usage: Usage) -> None:
        """Look at the words and answer them.

        Args:
            moved: hosts that something has happened to since the last turn.
            usage: of the hosts, as it is now.
        """
        self._candidates.note(moved)
        if self._quota is not None:
            heard, self._heard = self._heard, self._quota.load(QuotaFigure.CHANGE)
            self._adopt()
            left, self._left_bytes = self._left_bytes, self._limit_bytes - usage.used_bytes
            self._retry(is_hopeful=self._left_bytes > left or self._heard != heard)
        self.is_over = bool(self.sum_of(NodeStorageFigure.IS_OVER))
        self._publish_wants(usage)
        self._take_claim(now_ns, usage.doomed_bytes)
        if not self.row.get(StorageFigure.REPORTED):
            if WEAKLY_ORDERED:
                fence()
            self.say(StorageFigure.REPORTED, 1)

    def _retry(self, *, is_hopeful: bool) -> None:
        """Forget the refusals that nobody minds any more; let the others be asked for again where there may be room now."""
        if not self._refused_engines:
            self.refused = set()
            return
        engines = self._refused_engines
        self.refused = {
            host for host in self.hosts.values() if host.engine in engines and host.engine.storage.wanted_bytes
        }
        self._refused_engines = {host.engine for host in self.refused}
        for host in self.refused if is_hopeful else ():
            host.touch()

    def _publish_wants(self, usage: Usage) -> None:
        used_bytes, step_bytes, wanted_bytes = usage.used_bytes, usage.step_bytes, usage.wanted_bytes
        is_short = wanted_bytes > 0
        if self._limit_bytes < NO_LIMIT and not is_short and usage.is_taking:
            # Ahead of need: the next logs are asked for before they are.
            wanted_bytes = AHEAD_STEPS * step_bytes
            is_short = used_bytes + step_bytes > self._limit_bytes
        elif usage.waited_bytes and not self._leaves(wanted_bytes):
            # Who waits gets all that is asked for, or nothing: what nobody waits for is left out where it would be too much.
            wanted_bytes = usage.waited_bytes
        was_wanting, self._is_wanting = self._is_wanting, is_short
        is_new = self.row.get(StorageFigure.WAITING_SINCE_NS) != usage.waiting_since_ns or was_wanting != is_short
        self.say(StorageFigure.USED_BYTES, used_bytes)
        self.say(StorageFigure.STEP_BYTES, step_bytes)
        self.say(StorageFigure.WAITING_SINCE_NS, usage.waiting_since_ns)
        self.say(StorageFigure.WANTED_BYTES, wanted_bytes)
        if is_new and self._limit_bytes < NO_LIMIT:
            self._wake()

    def _leaves(self, more_bytes: int) -> bool:
        """Whether so many bytes more of all workers together keep to the limit."""
        used_bytes = self.sum_of(NodeStorageFigure.USED_BYTES)
        return used_bytes + more_bytes <= self.sum_of(NodeStorageFigure.CAP_BYTES)

    # --- claims --------------------------------------------------------------------------------------------------------

    def _take_claim(self, now_ns: int, doomed_bytes: int) -> None:
        self.say(StorageFigure.DOOMED_BYTES, doomed_bytes)
        candidates: Sequence[Candidate] = ()
        is_near, was_near = self._is_near(), self._was_near
        self._was_near = is_near
        if self.is_over or is_near != was_near or now_ns >= self._offered_ns + OFFER_INTERVAL_NS:
            if self.is_over or is_near:
                candidates = self._candidates.look(now_ns)
            else:
                self._candidates.look_no_more()
            self._offer(candidates, now_ns)
        if self._claim > self.row.get(StorageFigure.CLAIM_DONE) and not doomed_bytes:
            self.say(StorageFigure.CLAIM_DONE, self._claim)
            self._wake()
        claim = self._read_claim()
        if claim and claim[QuotaFigure.CLAIM] > self._claim and now_ns < claim[QuotaFigure.CLAIM_EXPIRES_NS]:
            self._claim = claim[QuotaFigure.CLAIM]
            self._carry_out(candidates, claim)

    def _is_near(self) -> bool:
        soft_bytes = self.sum_of(NodeStorageFigure.SOFT_BYTES)
        return soft_bytes > 0 and self.sum_of(NodeStorageFigure.USED_BYTES) > NEAR * soft_bytes

    def _offer(self, candidates: Sequence[Candidate], now_ns: int) -> None:
        """Say what would go first."""
        self._offered_ns = now_ns
        if candidates is self._offered:
            return
        self._offered = candidates
        first = self._candidates.first if candidates else None
        same = [each for each in candidates if first is not None and each.eviction_class == first.eviction_class]
        self.say(StorageFigure.EVICTABLE_BYTES, sum(each.size_bytes for each in same))
        self.say(StorageFigure.EVICTABLE_OLDEST_UNIX_NS, first.unix_ns if first is not None else 0)
        self.say(StorageFigure.EVICTABLE_CLASS, first.eviction_class if first is not None else 0)

    def _read_claim(self) -> list[int] | None:
        """The words of the claim that stands, None if there is none or it is just changing."""
        if self._quota is None:
            return None
        words = self._quota.load_all()
        number = words[QuotaFigure.CLAIM]
        return words if number and self._quota.load(QuotaFigure.CLAIM) == number else None

    def _carry_out(self, candidates: Sequence[Candidate], claim: list[int]) -> None:
        chosen = choose(
            candidates,
            claim[QuotaFigure.CLAIM_CLASS],
            claim[QuotaFigure.CLAIM_THROUGH_UNIX_NS],
            claim[QuotaFigure.CLAIM_BYTES],
        )
        carry_out(self.hosts, chosen)
        self._candidates.hurry()
