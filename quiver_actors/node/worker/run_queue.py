"""The engines of a worker that have something to do: those that were touched, and those whose deadline has come.

Owner: the loop thread. A worker may have hundreds of topics; those that nothing happens to cost nothing in a turn.

Each host has at most one alarm that is not later than its deadline; an alarm that rings too early is set anew.
"""

from __future__ import annotations

import heapq
from typing import Generic, Protocol, TypeVar


class Scheduled(Protocol):
    """An engine's host as the run queue sees it."""

    is_given_up: bool
    deadline_ns: int | None
    """Monotonic time when the host wants a turn, whatever happens; None: never."""

    @property
    def is_lingering(self) -> bool:
        """Whether deliveries wait: the host then has a turn whenever anything happens in the worker."""

    @property
    def priority(self) -> int:
        """The topic's setting `priority`; a higher one is served first."""


H = TypeVar("H", bound=Scheduled)
Alarm = tuple[int, int, H]
"""(monotonic ns when the alarm rings, unique number, host)."""


class RunQueue(Generic[H]):
    """Keeps which engines of a worker have something to do now, and when the others are due."""

    def __init__(self) -> None:
        self._touched: dict[H, None] = {}
        self._lingering: dict[H, None] = {}
        """Hosts to look at at the next event of any kind, and not before it."""
        self._alarms: list[Alarm[H]] = []
        self._alarm_ns: dict[H, int] = {}
        """When the first alarm of each host rings, monotonic ns."""
        self._count = 0
        self._committed: list[H] = []
        self.moved: set[H] = set()
        """Hosts whose disk usage may have changed since usage was last summed."""
        self._recent: set[H] = set()
        self._unswept: dict[H, None] = {}
        self._sweeps: list[Alarm[H]] = []
        """Alarms for sweeps, ordered like `_alarms`."""
        self._sweep_ns: dict[H, int] = {}
        """When the first sweep of each host is due, monotonic ns."""

    def note_activity(self, host: H) -> None:
        """Note that something happens to the host: its figures and its disk usage are to be read again."""
        self.moved.add(host)
        self._recent.add(host)
        self._unswept[host] = None

    def take_recent(self) -> set[H]:
        """The hosts that something has happened to since the last call."""
        recent, self._recent = self._recent, set()
        return recent

    def take_unswept(self, now_ns: int) -> list[H]:
        """Take the hosts that something has happened to since their sweep, and the hosts whose next sweep is due."""
        found, self._unswept = self._unswept, {}
        while self._sweeps and self._sweeps[0][0] <= now_ns:
            host = heapq.heappop(self._sweeps)[2]
            self._sweep_ns.pop(host, None)
            found[host] = None
        return [host for host in found if not host.is_given_up]

    def note_sweep(self, host: H, at_ns: int | None) -> None:
        """When a host wants to be swept again although nothing happens to it."""
        if at_ns is not None and ((former := self._sweep_ns.get(host)) is None or at_ns < former):
            self._sweep_ns[host] = at_ns
            self._count += 1
            heapq.heappush(self._sweeps, (at_ns, self._count, host))

    def note_commit(self, host: H) -> None:
        """A commit has come back, and the next one can start, without a turn of its own."""
        self._committed.append(host)

    def take_committed(self) -> list[H]:
        """The hosts whose next commit can start."""
        committed, self._committed = self._committed, []
        return committed

    def touch(self, host: H) -> None:
        """Have the host looked at in this turn."""
        self._touched[host] = None
        self.moved.add(host)

    def next_ns(self, latest_ns: int) -> int:
        """When a turn is due: at once (0) where something was asked of a host, at its alarm, at the latest at `latest_ns`."""
        if self._touched:
            return 0
        return self._alarms[0][0] if self._alarms and self._alarms[0][0] < latest_ns else latest_ns

    def due(self, now_ns: int) -> list[H]:
        """Take the hosts whose turn has come, those of a higher priority first."""
        alarms = self._alarms
        if not (self._touched or self._lingering or (alarms and alarms[0][0] <= now_ns)):
            return []
        found = self._touched
        self._touched = {}
        if self._lingering:
            found |= self._lingering
            self._lingering = {}
        while alarms and alarms[0][0] <= now_ns:
            host = heapq.heappop(alarms)[2]
            self._alarm_ns.pop(host, None)
            found[host] = None
        if len(found) == 1:
            return list(found)
        return sorted(found, key=_rank)

    def note(self, host: H) -> None:
        """Note after a turn of the host when it wants the next one."""
        if host.is_given_up:
            return
        if host.is_lingering:
            self._lingering[host] = None
        at = host.deadline_ns
        if at is not None and ((former := self._alarm_ns.get(host)) is None or at < former):
            self._alarm_ns[host] = at
            self._count += 1
            heapq.heappush(self._alarms, (at, self._count, host))

    def turn_by(self, host: H, at_ns: int) -> None:
        """Give a host a turn at that time (monotonic ns) at the latest, in which it looks at everything."""
        if host.deadline_ns is None or host.deadline_ns > at_ns:
            host.deadline_ns = at_ns
            self.note(host)

    def forget(self, host: H) -> None:
        """Drop every reference to a host whose topic is deleted and which has nothing under way."""
        self._touched.pop(host, None)
        self._lingering.pop(host, None)
        self._unswept.pop(host, None)
        self._alarm_ns.pop(host, None)
        self._sweep_ns.pop(host, None)
        self.moved.discard(host)
        self._recent.discard(host)
        self._committed = [each for each in self._committed if each is not host]
        self._alarms = _without(self._alarms, host)
        self._sweeps = _without(self._sweeps, host)


def _without(alarms: list[Alarm[H]], host: H) -> list[Alarm[H]]:
    kept = [alarm for alarm in alarms if alarm[2] is not host]
    heapq.heapify(kept)
    return kept


def _rank(host: Scheduled) -> int:
    return -host.priority
