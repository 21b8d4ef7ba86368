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
from collections.abc import Callable, Mapping

from quiver_actors.engine import Engine
from quiver_actors.metrics.figures import RowKind, ShareFigure
from quiver_actors.retention.choice import Candidate, choose
from quiver_actors.shm.counters import CountersPage, RegionWriter
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.live_row import LiveRow
from quiver_actors.shm.words import fence
from quiver_actors.supervisor.coordinator import RESPONSIVE_NS
from quiver_actors.supervisor.figures import NO_LIMIT, SUPERVISOR_REGION, EvictionClass
from quiver_actors.supervisor.log import log_event
from quiver_actors.units import MILLISECOND_NS
from quiver_actors.worker.evictions import Candidates, carry_out
from quiver_actors.worker.host import EngineHost

_MISSING_RETRY_NS = 100 * MILLISECOND_NS
"""When a row is looked for again that was not there: that is a walk through a whole region."""
_WORDS = len(ShareFigure)
_NEAR = 0.9
"""From this part of its limit on each worker says what of the topic would go first."""


class _Peer:
    """What another worker says of a topic; while it says nothing, what it said last."""

    def __init__(self, page: CountersPage, region: int, topic: str) -> None:
        self._row = LiveRow(page, region, RowKind.SHARE, topic)
        self._look_at_ns = 0
        self.words = [0] * _WORDS

    def look(self, now_ns: int) -> None:
        if now_ns < self._look_at_ns:
            return
        words = self._row.load_all()
        if words[ShareFigure.BEAT_NS]:
            self.words = words
        else:
            self._look_at_ns = now_ns + _MISSING_RETRY_NS

    def search_again(self) -> None:
        """It may have begun to say something since the last look."""
        self._look_at_ns = 0

    def answers(self, now_ns: int) -> bool:
        return now_ns - self.words[ShareFigure.BEAT_NS] < RESPONSIVE_NS

    def oldest(self) -> tuple[int, int]:
        """(class, ingestion time) of what goes first."""
        return self.words[ShareFigure.EVICTABLE_CLASS], self.words[ShareFigure.EVICTABLE_OLDEST_UNIX_NS]


class TopicShare:
    """One topic of one worker."""

    def __init__(self, page: CountersPage, region: RegionWriter, topic: str) -> None:
        self._row = region.row(RowKind.SHARE, topic)
        others = [each for each in range(page.regions) if each not in (SUPERVISOR_REGION, region.region)]
        self._peers = {other: _Peer(page, other, topic) for other in others}
        self._region = region
        self.topic = topic
        self.limit_bytes = NO_LIMIT
        self.is_refused = False
        """The limit, not the worker's grant, is what was last in the way."""
        self.is_short = False
        """Somewhere pushes wait for room, or there is more than there may be."""
        self._candidates = Candidates()

    def end(self, hosts: Mapping[str, EngineHost], releases_spare: bool) -> None:
        """The topic is gone, or may have as much as there is."""
        self.is_short = self.is_refused = False
        self._ease(hosts, releases_spare)
        _touch_all(hosts)
        self._region.drop(self._row)

    def take(self, own_bytes: int, more_bytes: int, now_ns: int, worker_admits: Callable[[int], bool]) -> bool:
        """Whether the topic and the worker may have so many bytes more. Said to the others before it is true."""
        self._row.set(ShareFigure.USED_BYTES, own_bytes + more_bytes)
        self._row.set(ShareFigure.BEAT_NS, now_ns)
        fence()
        for peer in self._peers.values():
            peer.search_again()
        self.is_refused = own_bytes + more_bytes + self._others(ShareFigure.USED_BYTES, now_ns) > self.limit_bytes
        if self.is_refused or not worker_admits(more_bytes):
            self._row.set(ShareFigure.USED_BYTES, own_bytes)
            return False
        return True

    def turn(self, now_ns: int, hosts: Mapping[str, EngineHost], limit_bytes: int, releases_spare: bool) -> None:
        """Say how things stand, ask again if there is room now, and let go what is this worker's to let go."""
        self.limit_bytes = limit_bytes
        engines = [host.engine for host in hosts.values()]
        used = sum(engine.disk_bytes for engine in engines)
        wishes = [engine.wanted_bytes for engine in engines if engine.wanted_bytes]
        self.is_refused = self.is_refused and bool(wishes)
        waited_for = sum(wishes) if self.is_refused and any(engine.is_throttled for engine in engines) else 0
        doomed = sum(engine.retention.doomed_bytes for engine in engines)
        for figure, value in (
            (ShareFigure.LIMIT_BYTES, limit_bytes),
            (ShareFigure.USED_BYTES, used),
            (ShareFigure.WANTED_BYTES, waited_for),
            (ShareFigure.DOOMED_BYTES, doomed),
            (ShareFigure.BEAT_NS, now_ns),
        ):
            self._row.set(figure, value)
        taken = used + self._others(ShareFigure.USED_BYTES, now_ns)
        waiting = waited_for + self._others(ShareFigure.WANTED_BYTES, now_ns)
        going = doomed + self._others(ShareFigure.DOOMED_BYTES, now_ns)
        self.is_short = waiting > 0 or taken > limit_bytes
        if self.is_refused and taken + min(wishes) <= limit_bytes:
            _touch_all(hosts)
        self._ease(hosts, releases_spare)
        candidates = self._candidates.of(hosts, now_ns) if self.is_short or taken > _NEAR * limit_bytes else []
        self._offer(self._candidates.first if candidates else None)
        shortage = taken + waiting - going - limit_bytes
        if shortage > 0 and candidates and not doomed:
            last = EvictionClass.CLAIMED if waiting else EvictionClass.UNPROCESSED
            self._let_go(hosts, now_ns, candidates, last, shortage)

    def _others(self, figure: ShareFigure, now_ns: int) -> int:
        """What is on disk counts whoever is dead; what is asked for and being deleted only while somebody is at it."""
        for peer in self._peers.values():
            peer.look(now_ns)
        counted = [peer for peer in self._peers.values() if figure is ShareFigure.USED_BYTES or peer.answers(now_ns)]
        return sum(peer.words[figure] for peer in counted)

    def _ease(self, hosts: Mapping[str, EngineHost], releases_spare: bool) -> None:
        """As near the node's cap: nothing is kept ready that nobody uses, and what is open is sealed where pushes wait."""
        for host in hosts.values():
            engine = host.engine
            if engine.releases_spare != (self.is_short or releases_spare):
                engine.releases_spare = self.is_short or releases_spare
                host.touch()
            if self.is_refused and engine.is_throttled and engine.seals_early and engine.has_open_bundles:
                engine.seal_now()
                host.touch()

    def _offer(self, first: Candidate | None) -> None:
        """Say what would go first, before it has to: everybody is to know whose is the oldest."""
        self._row.set(ShareFigure.EVICTABLE_OLDEST_UNIX_NS, first.unix_ns if first is not None else 0)
        self._row.set(ShareFigure.EVICTABLE_CLASS, first.eviction_class if first is not None else 0)

    def _let_go(
        self, hosts: Mapping[str, EngineHost], now_ns: int, candidates: list[Candidate], last: int, shortage: int
    ) -> None:
        first = self._candidates.first
        assert first is not None
        rivals = sorted(
            (peer.oldest(), region)
            for region, peer in self._peers.items()
            if peer.answers(now_ns) and peer.words[ShareFigure.EVICTABLE_CLASS]
        )
        if first.eviction_class <= last and (not rivals or self._is_before(first, *rivals[0])):
            same = [oldest for (kind, oldest), _ in rivals if kind == first.eviction_class]
            carry_out(hosts, choose(candidates, first.eviction_class, min(same, default=NO_LIMIT), shortage))
            self._candidates.forget()

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
        self._cap_bytes = cap_bytes
        self._shares: dict[str, TopicShare] = {}
        self._unlimited: set[str] = set()

    def admits(self, engine: Engine, more_bytes: int, now_ns: int, worker_admits: Callable[[int], bool]) -> bool:
        """Whether an engine may take so many bytes more of the disk, as far as its topic and its worker go."""
        share = self._share_of(engine)
        if share is None:
            return worker_admits(more_bytes)
        own_bytes = sum(each.disk_bytes for each in {engine, *self._engines(engine.topic)})
        return share.take(own_bytes, more_bytes, now_ns, worker_admits)

    def is_refused(self, topic: str) -> bool:
        """What the topic's engines want is not the worker's to ask for: their topic has what it may have."""
        share = self._shares.get(topic)
        return share is not None and share.is_refused

    @property
    def has_any(self) -> bool:
        """Some topic has a limit of its own."""
        return bool(self._shares)

    def is_limited(self, topic: str) -> bool:
        """That one has."""
        return topic in self._shares

    @property
    def is_short(self) -> bool:
        """Some topic is at its limit: look again soon."""
        return any(share.is_short or share.is_refused for share in self._shares.values())

    def turn(self, now_ns: int, *, releases_spare: bool) -> None:
        """
        Args:
            releases_spare: whether engines give up their spare logs for the node's sake.
        """
        cap_bytes = self._cap_bytes()
        limited: dict[str, dict[str, EngineHost]] = {}
        for name, host in self._hosts.items() if cap_bytes else ():
            if host.engine.retention.settings.cap_share < 1:
                limited.setdefault(host.engine.topic, {})[name] = host
        for topic in self._shares.keys() - limited.keys():
            left = {name: host for name, host in self._hosts.items() if host.engine.topic == topic}
            self._shares.pop(topic).end(left, releases_spare)
        for hosts in limited.values():
            engine = next(iter(hosts.values())).engine
            share = self._share_of(engine)
            if share is not None:
                share.turn(now_ns, hosts, limit_of(engine, cap_bytes), releases_spare)

    def _share_of(self, engine: Engine) -> TopicShare | None:
        cap_bytes = self._cap_bytes()
        if self._page is None or not cap_bytes or engine.retention.settings.cap_share >= 1:
            return None
        share = self._shares.get(engine.topic)
        if share is None:
            try:
                share = self._shares[engine.topic] = TopicShare(self._page, self._region, engine.topic)
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


def _touch_all(hosts: Mapping[str, EngineHost]) -> None:
    for host in hosts.values():
        host.touch()
