"""Topics that may have only a part of the node's cap (`retention.cap_share`): the workers keep to it among themselves.

Owner: the loop thread. Nobody coordinates: a worker says on the counters page what it is about to take before it looks at what the others
have, so that of two who reach for the same room at least one sees the other and lets it be.

Guarantees
- What all workers say that they have of a topic passes its limit by no log and no part of a stage. (Tails of seals and small files come
  on top until they are measured, as with the node's cap.) A worker that is dead or starting counts with what it said last.
- For want of room the topic's own segments go, by the rules of `retention.rules`: the worker that has the oldest of the first class
  lets go, no further than the next worker's oldest. One that does not answer is passed over. Other topics lose nothing by it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from quiver_actors.engine import Engine
from quiver_actors.metrics.figures import RowKind, ShareFigure
from quiver_actors.retention.choice import Candidate, choose
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.words import fence
from quiver_actors.supervisor.figures import NO_LIMIT, EvictionClass
from quiver_actors.supervisor.log import log_event
from quiver_actors.worker.evictions import Candidates, carry_out
from quiver_actors.worker.host import EngineHost
from quiver_actors.worker.neighbours import Neighbours

_NEAR = 0.9
"""From this part of its limit on each worker says what of the topic would go first."""


class TopicShare:
    """One topic of one worker.

    Attributes:
        hosts: all of the topic that the worker has, by their keys, those of adopted cores too; `TopicShares` keeps them.
        is_refused: the limit, not the worker's grant, is what was last in the way.
        is_short: somewhere pushes wait for room, or there is more than there may be.
        is_near: what is evicted first has to be known.
    """

    def __init__(self, neighbours: Neighbours, region: RegionWriter, topic: str) -> None:
        """Raises ShmError: there is no row left in the region."""
        self.hosts: dict[str, EngineHost] = {}
        self.candidates = Candidates(self.hosts)
        self._row = region.row(RowKind.SHARE, topic)
        self._neighbours = neighbours
        self._region = region
        self.topic = topic
        self.limit_bytes = NO_LIMIT
        self.is_refused = self.is_short = self.is_near = False

    def end(self, releases_spare: bool) -> None:
        """The topic is gone, or may have as much as there is."""
        self.is_short = self.is_refused = False
        self._ease(releases_spare)
        self._touch_all()
        self._region.drop(self._row)
        self._neighbours.forget(self.topic)

    def take(self, own_bytes: int, more_bytes: int, now_ns: int, worker_admits: Callable[[int], bool]) -> bool:
        """Whether the topic and the worker may have so many bytes more. Said to the others before it is true."""
        self._say({ShareFigure.USED_BYTES: own_bytes + more_bytes}, now_ns)
        fence()
        for other in self._neighbours:
            other.ask(self.topic)
        self.is_refused = own_bytes + more_bytes + self._others(ShareFigure.USED_BYTES) > self.limit_bytes
        if self.is_refused or not worker_admits(more_bytes):
            self._say({ShareFigure.USED_BYTES: own_bytes}, now_ns)
            return False
        return True

    def turn(self, now_ns: int, limit_bytes: int, releases_spare: bool) -> None:
        """Say how things stand, ask again if there is room now, and let go what is this worker's to let go."""
        self.limit_bytes = limit_bytes
        engines = [host.engine for host in self.hosts.values()]
        used = sum(engine.disk_bytes for engine in engines)
        wishes = [engine.wanted_bytes for engine in engines if engine.wanted_bytes]
        self.is_refused = self.is_refused and bool(wishes)
        waited_for = sum(wishes) if self.is_refused and any(engine.is_throttled for engine in engines) else 0
        doomed = sum(engine.retention.doomed_bytes for engine in engines)
        said = {
            ShareFigure.LIMIT_BYTES: limit_bytes,
            ShareFigure.USED_BYTES: used,
            ShareFigure.WANTED_BYTES: waited_for,
            ShareFigure.DOOMED_BYTES: doomed,
        }
        taken = used + self._others(ShareFigure.USED_BYTES)
        waiting = waited_for + self._others(ShareFigure.WANTED_BYTES)
        going = doomed + self._others(ShareFigure.DOOMED_BYTES)
        self.is_short = waiting > 0 or taken > limit_bytes
        if self.is_refused and taken + min(wishes) <= limit_bytes:
            self._touch_all()
        self._ease(releases_spare)
        self.is_near = self.is_short or taken > _NEAR * limit_bytes
        candidates = self.candidates.look(now_ns) if self.is_near else ()
        self._say(said | _offer(self.candidates.first if candidates else None), now_ns)
        shortage = taken + waiting - going - limit_bytes
        if shortage > 0 and candidates and not doomed:
            last = EvictionClass.CLAIMED if waiting else EvictionClass.UNPROCESSED
            self._let_go(now_ns, candidates, last, shortage)

    def _say(self, words: Mapping[ShareFigure, int], now_ns: int) -> None:
        changed = [(figure, value) for figure, value in words.items() if self._row.get(figure) != value]
        if changed or not self._row.get(ShareFigure.BEAT_NS):
            for figure, value in changed:
                self._row.set(figure, value)
            self._row.set(ShareFigure.BEAT_NS, now_ns)
            self._neighbours.tell(now_ns)

    def _others(self, figure: ShareFigure) -> int:
        """What is on disk counts whoever is dead; what is asked for and being deleted only while somebody is at it."""
        counted = (other for other in self._neighbours if figure is ShareFigure.USED_BYTES or other.answers)
        return sum(other.said(self.topic, figure) for other in counted)

    def _ease(self, releases_spare: bool) -> None:
        """As near the node's cap: nothing is kept ready that nobody uses, and what is open is sealed where pushes wait."""
        for host in self.hosts.values():
            engine = host.engine
            if engine.releases_spare != (self.is_short or releases_spare):
                engine.releases_spare = self.is_short or releases_spare
                host.touch()
            if self.is_refused and engine.is_throttled and engine.seals_early and engine.has_open_bundles:
                engine.seal_now()
                host.touch()

    def _let_go(self, now_ns: int, candidates: Sequence[Candidate], last: int, shortage: int) -> None:
        first = self.candidates.first
        assert first is not None
        rivals = sorted(
            (other.oldest(self.topic), other.region)
            for other in self._neighbours
            if other.answers and other.said(self.topic, ShareFigure.EVICTABLE_CLASS)
        )
        if first.eviction_class <= last and (not rivals or self._is_before(first, *rivals[0])):
            same = [oldest for (kind, oldest), _ in rivals if kind == first.eviction_class]
            carry_out(self.hosts, choose(candidates, first.eviction_class, min(same, default=NO_LIMIT), shortage))
            self.candidates.hurry()

    def _touch_all(self) -> None:
        for host in self.hosts.values():
            host.touch()

    def _is_before(self, first: Candidate, oldest: tuple[int, int], region: int) -> bool:
        return ((first.eviction_class, first.unix_ns), self._region.region) < (oldest, region)


class TopicShares:
    """See the module. Without a page, or a cap, nothing is limited."""

    def __init__(
        self,
        page: CountersPage | None,
        region: RegionWriter,
        hosts: Mapping[str, EngineHost],
        cap_bytes: Callable[[], int],
    ) -> None:
        """
        Args:
            region: of this worker.
            hosts: the worker's, those of adopted cores too; may change.
            cap_bytes: the node's, as it is now; 0 = none.
        """
        self._page = page
        self._region = region
        self._hosts = hosts
        self._cap_of_node = cap_bytes
        self._cap_bytes = 0
        """As it was in the last turn."""
        self._comings = -1
        self._releases_spare = False
        self._neighbours: Neighbours | None = None
        self._shares: dict[str, TopicShare] = {}
        self._limited: dict[EngineHost, TopicShare | None] = {}
        """Hosts of topics with a limit; None: there is no row to keep to it with."""
        self._active: set[str] = set()
        """Topics at their limit, or near it: these have a turn also when nothing is heard of them."""
        self._unlimited: set[str] = set()

    def admits(self, engine: Engine, more_bytes: int, now_ns: int, worker_admits: Callable[[int], bool]) -> bool:
        """Whether an engine may take so many bytes more of the disk, as far as its topic and its worker go."""
        share = self._share_of(engine)
        if share is None:
            return worker_admits(more_bytes)
        own_bytes = sum(each.disk_bytes for each in {engine, *self._engines(engine.topic)})
        return share.take(own_bytes, more_bytes, now_ns, worker_admits)

    def refused_hosts(self) -> set[EngineHost]:
        """What these want is not the worker's to ask for: their topic has what it may have."""
        refused = (self._shares[topic] for topic in self._active if self._shares[topic].is_refused)
        return {host for share in refused for host in share.hosts.values()}

    @property
    def is_short(self) -> bool:
        """Some topic is at its limit: look again soon."""
        return any(self._shares[topic].is_short or self._shares[topic].is_refused for topic in self._active)

    def turn(self, now_ns: int, moved: Collection[EngineHost], comings: int, *, releases_spare: bool) -> None:
        """
        Args:
            moved: the hosts that something has happened to since the last turn.
            comings: changes whenever a host has come or gone.
            releases_spare: whether engines give up their spare logs for the node's sake.
        """
        cap_bytes, heard = self._cap_of_node(), self._neighbours.listen(now_ns) if self._neighbours else set()
        if (cap_bytes, comings) != (self._cap_bytes, self._comings) or any(self._is_news(host) for host in moved):
            self._cap_bytes, self._comings = cap_bytes, comings
            self._follow(cap_bytes, releases_spare)
            due = set(self._shares)
        elif releases_spare != self._releases_spare:
            due = set(self._shares)
        else:
            due = self._active | heard & self._shares.keys()
            due.update(host.engine.topic for host in moved if self._limited.get(host) is not None)
        self._releases_spare = releases_spare
        for share in [self._shares[topic] for topic in sorted(due)]:
            share.candidates.note(moved)
            engine = next(iter(share.hosts.values())).engine
            share.turn(now_ns, limit_of(engine, cap_bytes), releases_spare)
            if share.is_near or share.is_refused:
                self._active.add(share.topic)
            else:
                self._active.discard(share.topic)
        if self._neighbours is not None:
            self._neighbours.beat(now_ns)

    def _is_news(self, host: EngineHost) -> bool:
        """Its topic has a limit since the last turn, or has none any more."""
        return (self._cap_bytes > 0 and host.engine.retention.settings.cap_share < 1) != (host in self._limited)

    def _follow(self, cap_bytes: int, releases_spare: bool) -> None:
        """See which topics have a limit, and which hosts they have."""
        limited: dict[str, dict[str, EngineHost]] = {}
        for name, host in self._hosts.items() if cap_bytes else ():
            if host.engine.retention.settings.cap_share < 1:
                limited.setdefault(host.engine.topic, {})[name] = host
        for topic in self._shares.keys() - limited.keys():
            share = self._shares.pop(topic)
            self._active.discard(topic)
            _replace(share.hosts, {name: host for name, host in self._hosts.items() if host.engine.topic == topic})
            share.end(releases_spare)
        self._limited = {}
        for hosts in limited.values():
            found = self._share_of(next(iter(hosts.values())).engine)
            if found is not None:
                _replace(found.hosts, hosts)
            self._limited.update(dict.fromkeys(hosts.values(), found))

    def _share_of(self, engine: Engine) -> TopicShare | None:
        cap_bytes = self._cap_of_node()
        if self._page is None or not cap_bytes or engine.retention.settings.cap_share >= 1:
            return None
        share = self._shares.get(engine.topic)
        if share is None:
            try:
                self._neighbours = self._neighbours or Neighbours(self._page, self._region)
                share = self._shares[engine.topic] = TopicShare(self._neighbours, self._region, engine.topic)
            except ShmError as error:
                self._tell_unlimited(engine.topic, error)
                return None
        share.limit_bytes = limit_of(engine, cap_bytes)
        return share

    def _tell_unlimited(self, topic: str, error: ShmError) -> None:
        """The counters page has no row left to keep to it with: the node's cap holds all the same. Said once."""
        if topic not in self._unlimited:
            self._unlimited.add(topic)
            log_event("topic.share_not_kept", {"topic": topic, "reason": str(error)}, logging.WARNING)

    def _engines(self, topic: str) -> list[Engine]:
        return [host.engine for host in self._hosts.values() if host.engine.topic == topic]


def limit_of(engine: Engine, cap_bytes: int) -> int:
    """What the engine's topic may have on all cores together."""
    return int(engine.retention.settings.cap_share * cap_bytes)


def _offer(first: Candidate | None) -> dict[ShareFigure, int]:
    """What would go first, said before it has to: everybody is to know whose is the oldest."""
    return {
        ShareFigure.EVICTABLE_OLDEST_UNIX_NS: first.unix_ns if first is not None else 0,
        ShareFigure.EVICTABLE_CLASS: first.eviction_class if first is not None else 0,
    }


def _replace(hosts: dict[str, EngineHost], others: Mapping[str, EngineHost]) -> None:
    hosts.clear()
    hosts.update(others)
