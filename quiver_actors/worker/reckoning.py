"""What the engines of a worker have on disk and what they want of it, added up as it changes.

Owner: the loop thread. A worker may have hundreds of topics: only those that something has happened to are looked at again (`Agenda`), so
that a turn costs what has moved, not what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quiver_actors.worker.agenda import Agenda
from quiver_actors.worker.host import EngineHost


@dataclass(frozen=True, slots=True)
class _Standing:
    """What was found of one host when it was looked at last."""

    used_bytes: int
    step_bytes: int
    wanted_bytes: int
    doomed_bytes: int


class Reckoning:
    """See the module.

    Attributes:
        doomed_bytes: what is being deleted, and is still in `used_bytes`.
        taking: hosts with something in their logs.
        short: hosts where something that was pushed waits for room.
        comings: how often a host has come or gone.
    """

    def __init__(self, hosts: Mapping[str, EngineHost], agenda: Agenda) -> None:
        """
        Args:
            hosts: may change.
            agenda: of the worker's loop: says what has moved.
        """
        self._hosts = hosts
        self._agenda = agenda
        self._known: dict[EngineHost, _Standing] = {}
        self._steps: Counter[int] = Counter()
        self._used_bytes = 0
        self._wanted_bytes = 0
        self.doomed_bytes = 0
        self.taking: set[EngineHost] = set()
        self.short: set[EngineHost] = set()
        self.comings = 0

    @property
    def used_bytes(self) -> int:
        """As it is now, also in the middle of a host's turn."""
        known, moved = self._known, [host for host in self._agenda.moved if not host.is_given_up]
        return self._used_bytes + sum(
            host.engine.disk_bytes - (known[host].used_bytes if host in known else 0) for host in moved
        )

    @property
    def step_bytes(self) -> int:
        """The largest piece in which one of them allocates."""
        return max(self._steps, default=0)

    def wanted_bytes(self, without: Collection[EngineHost] = ()) -> int:
        """What they were refused leave for, but for those `without`."""
        return self._wanted_bytes - sum(self._known[host].wanted_bytes for host in without if host in self._known)

    def look(self) -> set[EngineHost]:
        """Look again at what has moved since the last call, and say what that was. Not in the middle of a host's turn: what it goes on to
        take would be missed."""
        moved = {host for host in self._agenda.moved if not host.is_given_up}
        self._agenda.moved.clear()
        for host in moved:
            self._take(host)
        if len(self._known) != len(self._hosts):
            there = set(self._hosts.values())
            new = there - self._known.keys()
            for host in self._known.keys() - there:
                self._put(host, None)
            for host in new:
                self._take(host)
            moved = (moved & there) | new
        return moved

    def _take(self, host: EngineHost) -> None:
        engine = host.engine
        doomed_bytes = engine.retention.doomed_bytes
        self._put(host, _Standing(engine.disk_bytes, engine.step_bytes, engine.wanted_bytes, doomed_bytes))
        _note(self.taking, host, holds=engine.is_taking)
        _note(self.short, host, holds=engine.is_short)

    def _put(self, host: EngineHost, now: _Standing | None) -> None:
        """Count with that from now on; None: not at all."""
        before = self._known.pop(host, None)
        if now is not None:
            self._known[host] = now
        else:
            self.taking.discard(host)
            self.short.discard(host)
        if before is None or now is None:
            self.comings += 1
        for standing, sign in ((before, -1), (now, 1)):
            if standing is not None:
                self._used_bytes += sign * standing.used_bytes
                self._wanted_bytes += sign * standing.wanted_bytes
                self.doomed_bytes += sign * standing.doomed_bytes
                self._steps[standing.step_bytes] += sign
        if before is not None and not self._steps[before.step_bytes]:
            del self._steps[before.step_bytes]


def _note(hosts: set[EngineHost], host: EngineHost, *, holds: bool) -> None:
    if holds:
        hosts.add(host)
    else:
        hosts.discard(host)
