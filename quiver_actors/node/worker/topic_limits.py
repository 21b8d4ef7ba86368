"""The limits of topics that may have only a part of the node's cap (`retention.cap_share`), on one worker: an account for each.

Owner: the loop thread. The supervisor learns from the rows of the accounts which topics have a limit. A worker may have hundreds of such
topics: only those are looked at that something has happened to, that are near their limit, or that the supervisor has news for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from quiver_actors.node.worker.account import Account
from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.usage_totals import UsageTotals
from quiver_actors.shm.counters import CountersPage, RegionWriter, RowWriter
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.words import WEAKLY_ORDERED, fence
from quiver_actors.store.engine import Engine
from quiver_actors.store.retention.limits import Limit, NoRoom
from quiver_actors.supervisor.figures import (
    QUOTA_ROW,
    SUPERVISOR_REGION,
    TOPIC_QUOTA_ROW,
    TOPIC_STORAGE_ROW,
    TOPIC_SUM_ROW,
    NodeStorageFigure,
    QuotaFigure,
    StorageFigure,
)
from quiver_actors.supervisor.log import log_event


class TopicLimits:
    """The accounts of a worker's topics. Without a counters page, or a cap, nothing is limited.

    Attributes:
        over: topics that are over their soft limit.
        refused: hosts that wait for room that the limit of their topic has refused.
    """

    def __init__(
        self,
        page: CountersPage | None,
        region: RegionWriter,
        row: RowWriter,
        name: str,
        hosts: Mapping[str, EngineHost],
        sum_of: Callable[[NodeStorageFigure], int],
        wake_supervisor: Callable[[], None],
    ) -> None:
        """
        Args:
            region: of this worker.
            row: the worker's own words about its disk.
            name: of the worker, `core_<n>`.
            hosts: the worker's, those of adopted cores too; may change.
            sum_of: says a figure of the node's disk.
        """
        self._page = page
        self._region = region
        self._row = row
        self._name = name
        self._hosts = hosts
        self._sum_of = sum_of
        self._wake = wake_supervisor
        self._own = LiveRow(page, SUPERVISOR_REGION, QUOTA_ROW, name) if page is not None else None
        self._heard = 0
        self._has_dropped = False
        self._seen = (0, -1)
        """Size cap of the node, and comings of hosts, in the last turn."""
        self._accounts: dict[str, Account] = {}
        self._limited: set[EngineHost] = set()
        """Hosts of topics with a `cap_share`."""
        self._active: set[str] = set()
        """Topics that are looked at in each turn."""
        self._unkept: set[str] = set()
        """Topics without a row, and so without a limit."""
        self.over: set[str] = set()
        self.refused: set[EngineHost] = set()

    def admits(self, engine: Engine, more_bytes: int) -> bool:
        """Whether an engine may take so many bytes more of the disk, as far as its topic goes."""
        if engine.retention.settings.cap_share >= 1 or not self._sum_of(NodeStorageFigure.CAP_BYTES):
            return True
        account = self._accounts.get(engine.topic)
        if account is None:
            return engine.topic in self._unkept  # else the next turn makes the account
        if not account.sum_of(NodeStorageFigure.CAP_BYTES) and self._sum_of(NodeStorageFigure.HAS_UNKEPT_TOPICS):
            return True
        self._active.add(engine.topic)
        return account.admits(engine, more_bytes)

    def limit_met(self, engine: Engine) -> NoRoom:
        """The limit by which `admits` has just said no to an engine."""
        account = self._accounts.get(engine.topic)
        used_bytes = account.sum_of(NodeStorageFigure.USED_BYTES) if account is not None else 0
        return NoRoom(Limit.CAP_SHARE, self._limit_of(engine), used_bytes)

    def _limit_of(self, engine: Engine) -> int:
        return max(1, int(engine.retention.settings.cap_share * self._sum_of(NodeStorageFigure.CAP_BYTES)))

    @property
    def is_busy(self) -> bool:
        """Some words have to be looked at again soon."""
        return any(self._accounts[topic].is_busy for topic in self._active if topic in self._accounts)

    def turn(self, now_ns: int, moved: Collection[EngineHost], usage: UsageTotals) -> None:
        """
        Args:
            moved: the hosts that something has happened to since the last turn.
            usage: of all hosts.
        """
        seen = (self._sum_of(NodeStorageFigure.CAP_BYTES), usage.comings)
        due = self._active | {host.engine.topic for host in moved if host in self._limited}
        if seen != self._seen or any(self._is_news(host) for host in moved):
            self._seen = seen
            self._follow()
            due = set(self._accounts)
        heard = self._own.load(QuotaFigure.CHANGE) if self._own is not None else 0
        if heard != self._heard:
            self._heard = heard
            due.update(topic for topic, account in self._accounts.items() if account.hears())
        for topic in sorted(due & self._accounts.keys()):
            self._look(topic, now_ns, moved, usage)
        busy = self._active & self._accounts.keys()
        self.refused = {host for topic in busy for host in self._accounts[topic].refused}
        self.over = {topic for topic in busy if self._accounts[topic].is_over}
        self._tell(now_ns)

    def _look(self, topic: str, now_ns: int, moved: Collection[EngineHost], usage: UsageTotals) -> None:
        account = self._accounts[topic]
        hosts = account.hosts.values()
        account.say(StorageFigure.LIMIT_BYTES, self._limit_of(next(iter(hosts)).engine))
        account.turn(now_ns, moved, usage.usage_of(hosts))
        if account.is_calm:
            self._active.discard(topic)
        else:
            self._active.add(topic)

    def _tell(self, now_ns: int) -> None:
        """Tell the supervisor that rows have changed."""
        told = [account for account in self._accounts.values() if account.has_news]
        if not told and not self._has_dropped:
            return
        for account in told:
            account.has_news = False
        self._has_dropped = False
        if WEAKLY_ORDERED:
            fence()
        # Never the same twice, also not after a restart.
        self._row.set(StorageFigure.CHANGE, max(now_ns, self._row.get(StorageFigure.CHANGE) + 1))

    def _is_news(self, host: EngineHost) -> bool:
        """Its topic has a limit since the last turn, or has none any more."""
        return (self._seen[0] > 0 and host.engine.retention.settings.cap_share < 1) != (host in self._limited)

    def _follow(self) -> None:
        """See which topics have a limit, and which hosts they have."""
        found: dict[str, dict[str, EngineHost]] = {}
        for name, host in self._hosts.items() if self._seen[0] else ():
            if host.engine.retention.settings.cap_share < 1:
                found.setdefault(host.engine.topic, {})[name] = host
        self._limited = {host for hosts in found.values() for host in hosts.values()}
        for topic in self._accounts.keys() - found.keys():
            # The topic was deleted, or has no share any more.
            account = self._accounts.pop(topic)
            self._region.drop(account.row)
            self._has_dropped = True
            for host in account.hosts.values():
                host.touch()
        for topic, hosts in found.items():
            if own := self._accounts.get(topic) or self._begin(topic):
                own.serve(hosts)

    def _begin(self, topic: str) -> Account | None:
        try:
            row = self._region.row(TOPIC_STORAGE_ROW, topic)
        except ShmError as error:
            # The node's cap holds all the same. Said once.
            if topic not in self._unkept:
                log_event("topic.share_not_kept", {"topic": topic, "reason": str(error)}, logging.WARNING)
            self._unkept.add(topic)
            return None
        self._unkept.discard(topic)
        assert self._page is not None, "without a page there is no cap"
        quota = LiveRow(self._page, SUPERVISOR_REGION, TOPIC_QUOTA_ROW, f"{self._name}/{topic}")
        sums = LiveRow(self._page, SUPERVISOR_REGION, TOPIC_SUM_ROW, topic)
        account = self._accounts[topic] = Account(row, quota, sums, {}, self._wake)
        return account
