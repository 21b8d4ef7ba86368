"""Which engines of a worker have something to do: those that were touched, and those whose deadline has come.

Owner: the loop thread. A worker may have hundreds of topics; those that nothing happens to cost nothing in a turn.

Each host has at most one alarm that is not later than its deadline; an alarm that rings too early is set anew.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quiver_actors.worker.host import EngineHost


class Agenda:
    """See the module."""

    def __init__(self) -> None:
        self._touched: dict[EngineHost, None] = {}
        self._lingering: dict[EngineHost, None] = {}
        """To be looked at whenever something happens, but not before."""
        self._alarms: list[tuple[int, int, EngineHost]] = []
        self._count = 0
        self._committed: list[EngineHost] = []
        self.moved: set[EngineHost] = set()
        """What they have on disk may have changed since the worker's share was reckoned up."""
        self._recent: set[EngineHost] = set()
        self._unswept: dict[EngineHost, None] = {}
        self._sweeps: list[tuple[int, int, EngineHost]] = []
        """As the alarms."""

    def note_activity(self, host: EngineHost) -> None:
        """Something happens to it: its figures, and what it has on disk, are to be looked at again."""
        self.moved.add(host)
        self._recent.add(host)
        self._unswept[host] = None

    def take_recent(self) -> set[EngineHost]:
        """The hosts that something has happened to since the last call."""
        recent, self._recent = self._recent, set()
        return recent

    def take_unswept(self, now_ns: int) -> list[EngineHost]:
        """The hosts that something has happened to since they were swept, and those that wanted to be swept again by now."""
        found, self._unswept = self._unswept, {}
        while self._sweeps and self._sweeps[0][0] <= now_ns:
            host = heapq.heappop(self._sweeps)[2]
            host.sweep_ns = None
            found[host] = None
        return [host for host in found if not host.is_given_up]

    def note_sweep(self, host: EngineHost, at_ns: int | None) -> None:
        """When a host wants to be swept again although nothing happens to it."""
        if at_ns is not None and (host.sweep_ns is None or at_ns < host.sweep_ns):
            host.sweep_ns = at_ns
            self._count += 1
            heapq.heappush(self._sweeps, (at_ns, self._count, host))

    def note_commit(self, host: EngineHost) -> None:
        """A commit has come back, and the next one can start, without a turn of its own."""
        self._committed.append(host)

    def take_committed(self) -> list[EngineHost]:
        """The hosts whose next commit can start."""
        committed, self._committed = self._committed, []
        return committed

    def touch(self, host: EngineHost) -> None:
        self._touched[host] = None
        self.moved.add(host)

    def next_ns(self, latest_ns: int) -> int:
        """When a turn is due: at once (0) where something was asked of a host, at its alarm, at the latest at `latest_ns`."""
        if self._touched:
            return 0
        return self._alarms[0][0] if self._alarms and self._alarms[0][0] < latest_ns else latest_ns

    def due(self, now_ns: int) -> list[EngineHost]:
        """The hosts whose turn it is, those of a higher priority first; they are taken off."""
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
            host.alarm_ns = None
            found[host] = None
        if len(found) == 1:
            return list(found)
        return sorted(found, key=_rank)

    def note(self, host: EngineHost) -> None:
        """After a turn of the host: when it wants the next one."""
        if host.is_given_up:
            return
        if host.handing_out.is_due:
            self._lingering[host] = None
        at = host.deadline_ns
        if at is not None and (host.alarm_ns is None or at < host.alarm_ns):
            host.alarm_ns = at
            self._count += 1
            heapq.heappush(self._alarms, (at, self._count, host))


def _rank(host: EngineHost) -> int:
    return -host.engine.settings.priority
