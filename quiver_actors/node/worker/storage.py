"""A worker's share of the node's disk: its account with the node's cap, and the limits of its topics.

Owner: the loop thread. An engine gets room where both its topic's limit and the worker's quota leave some.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from time import monotonic_ns

from quiver_actors.base.units import MILLISECOND_NS
from quiver_actors.node.worker.account import Account
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.run_queue import RunQueue
from quiver_actors.node.worker.topic_limits import TopicLimits
from quiver_actors.node.worker.usage_totals import UsageTotals
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.store.engine import Engine
from quiver_actors.store.retention.limits import Limit, NoRoom
from quiver_actors.store.retention.pressure import Pressure
from quiver_actors.supervisor.figures import (
    NODE_STORAGE_LABEL,
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    SUPERVISOR_REGION,
    NodeStorageFigure,
    StorageFigure,
)

CALM_INTERVAL_NS = 50 * MILLISECOND_NS
UNCAPPED_INTERVAL_NS = 100 * MILLISECOND_NS
"""Interval between looks while there is no cap: then nobody waits for what a worker finds there."""
BUSY_INTERVAL_NS = 5 * MILLISECOND_NS
"""Interval between looks at the words of the page while space is wanted or files are being deleted."""
_EARLY_PART = 10
"""A loop turn may come early by the interval divided by this number: one wake-up then serves several tasks."""


class StorageShare:
    """A worker's share of the node's disk space. Without a counters page (None) there is no limit.

    Attributes:
        early_ns, deadline_ns: when `turn` may be called again, and when it must.
    """

    def __init__(
        self,
        page: CountersPage | None,
        region: RegionWriter,
        name: str,
        hosts: Mapping[str, EngineHost],
        run_queue: RunQueue[EngineHost],
        wake_supervisor: Callable[[], None],
    ) -> None:
        """
        Args:
            name: of the worker, `core_<n>`.
            hosts: by topic; may change.
            run queue: of the worker's loop: says what has moved.
        """
        self._hosts = hosts
        self._usage = UsageTotals(hosts, run_queue)
        self._row = region.row(STORAGE_ROW, name)
        quota = sums = None
        if page is not None:
            quota = LiveRow(page, SUPERVISOR_REGION, QUOTA_ROW, name)
            sums = LiveRow(page, SUPERVISOR_REGION, NODE_STORAGE_ROW, NODE_STORAGE_LABEL)
        self._account = Account(self._row, quota, sums, hosts, wake_supervisor, lambda: self.used_bytes)
        self._topics = TopicLimits(page, region, self._row, name, hosts, self._account.sum_of, wake_supervisor)
        self._is_refused_by_topic = False
        """Which of the limits made the last refusal."""
        self._was_over: tuple[bool, frozenset[str]] = (False, frozenset())
        self.deadline_ns = self.early_ns = 0

    # --- leave ---------------------------------------------------------------------------------------------------------

    def admits_for(self, engine: Engine, more_bytes: int) -> bool:
        """Whether an engine may take so many bytes more of the disk."""
        self._is_refused_by_topic = not self._topics.admits(engine, more_bytes)
        is_admitted = not self._is_refused_by_topic and self._account.admits(engine, more_bytes)
        if not is_admitted:
            self.deadline_ns = self.early_ns = 0
        return is_admitted

    def limit_met(self, engine: Engine) -> NoRoom:
        """The limit by which `admits_for` has just said no to an engine."""
        if self._is_refused_by_topic:
            return self._topics.limit_met(engine)
        sum_of = self._account.sum_of
        return NoRoom(Limit.SIZE_CAP, sum_of(NodeStorageFigure.CAP_BYTES), sum_of(NodeStorageFigure.USED_BYTES))

    @property
    def used_bytes(self) -> int:
        """Bytes on disk of all topics of the worker, as they are now."""
        return self._usage.used_bytes

    def show_pressure(self, pressure: Pressure) -> None:
        """Publish how hard pressed the worker is, and its measures against it."""
        self._row.set(StorageFigure.PRESSURE_PERMILLE, pressure.permille)
        self._row.set(StorageFigure.PRESSURE_STEPS, int(pressure.steps))

    # --- turns ---------------------------------------------------------------------------------------------------------

    @property
    def cap_fraction(self) -> float:
        """Used part of the node's cap; 0 without a cap."""
        cap_bytes = self._account.sum_of(NodeStorageFigure.CAP_BYTES)
        return self._account.sum_of(NodeStorageFigure.USED_BYTES) / cap_bytes if cap_bytes else 0.0

    def turn(self, now_ns: int) -> None:
        """Look at the words and answer them. To be called from `early_ns` on."""
        moved, account, topics = self._usage.look(), self._account, self._topics
        # First, so that what they refuse is no wish of the worker, and that they are known where the worker has reported.
        topics.turn(now_ns, moved, self._usage)
        account.turn(now_ns, moved, self._usage.usage(topics.refused))
        self._ease(account.is_over, frozenset(topics.over), moved)
        self._row.set(StorageFigure.BEAT_NS, now_ns)
        calm_ns = CALM_INTERVAL_NS if account.sum_of(NodeStorageFigure.CAP_BYTES) else UNCAPPED_INTERVAL_NS
        is_busy = account.is_busy or topics.is_busy
        interval_ns = BUSY_INTERVAL_NS if is_busy else calm_ns
        self.deadline_ns = now_ns + interval_ns
        self.early_ns = self.deadline_ns - interval_ns // _EARLY_PART

    def _ease(self, is_over: bool, topics_over: frozenset[str], moved: Collection[EngineHost]) -> None:
        """Give up spare log files near a limit, and seal open segments where pushes wait."""
        over = (is_over, topics_over)
        is_new, self._was_over = over != self._was_over, over
        for host in self._hosts.values() if is_new else moved if is_over or topics_over else ():
            engine = host.engine
            is_pressed = is_over or engine.topic in topics_over
            if engine.storage.releases_spare != is_pressed:
                engine.storage.releases_spare = is_pressed
                host.touch()
            if (
                is_pressed
                and engine.storage.is_throttled
                and engine.storage.seals_early
                and engine.storage.has_open_bundles
            ):
                engine.seal_now()
                host.touch()

    def started(self) -> None:
        """Publish the worker's disk usage for the first time, before the worker is ready."""
        self.turn(monotonic_ns())
