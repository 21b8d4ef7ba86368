"""The bytes that the engines of a worker use and want on disk, added up as they change.

Owner: the loop thread. A worker may have hundreds of topics: only those that something has happened to are looked at again (`RunQueue`), so
that a turn costs what has moved, not what there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from quiver_actors.node.worker.host import EngineHost
from quiver_actors.node.worker.run_queue import RunQueue


@dataclass(frozen=True, slots=True)
class Usage:
    """Figures of one host at the last look, or of several.

    Attributes:
        used_bytes: bytes on disk.
        step_bytes: the largest piece in which one of them allocates.
        wanted_bytes: bytes that they were refused.
        waited_bytes: what of `wanted_bytes` something that was pushed waits for.
        doomed_bytes: what is being deleted, and is still in `used_bytes`.
        is_taking: there is something in their logs.
        waiting_since_ns: monotonic time since which something that was pushed waits for room; 0: nothing does.
    """

    used_bytes: int
    step_bytes: int
    wanted_bytes: int
    waited_bytes: int
    doomed_bytes: int
    is_taking: bool = False
    waiting_since_ns: int = 0


class UsageTotals:
    """Disk usage and wishes of all engines of a worker, summed up.

    Attributes:
        taking: hosts with something in their logs.
        short: hosts where something that was pushed waits for room.
        comings: how often a host has come or gone.
    """

    def __init__(self, hosts: Mapping[str, EngineHost], run_queue: RunQueue[EngineHost]) -> None:
        """
        Args:
            hosts: may change.
            run queue: of the worker's loop: says what has moved.
        """
        self._hosts = hosts
        self._run_queue = run_queue
        self._known: dict[EngineHost, Usage] = {}
        self._steps: Counter[int] = Counter()
        self._used_bytes = 0
        self._wanted_bytes = 0
        self._waited_bytes = 0
        self._doomed_bytes = 0
        self.taking: set[EngineHost] = set()
        self.short: set[EngineHost] = set()
        self.comings = 0

    @property
    def used_bytes(self) -> int:
        """Bytes on disk of all engines, correct also in the middle of a host's turn."""
        known, moved = self._known, [host for host in self._run_queue.moved if not host.is_given_up]
        return self._used_bytes + sum(
            host.engine.storage.disk_bytes - (known[host].used_bytes if host in known else 0) for host in moved
        )

    def usage(self, without: Collection[EngineHost] = ()) -> Usage:
        """Return the sums over all hosts at the last look; nothing that hosts in `without` wish for is in them."""
        left_out = [self._known[host] for host in without if host in self._known]
        return Usage(
            self._used_bytes,
            max(self._steps, default=0),
            self._wanted_bytes - sum(each.wanted_bytes for each in left_out),
            self._waited_bytes - sum(each.waited_bytes for each in left_out),
            self._doomed_bytes,
            not self.taking <= {*without},
            _waiting_since_ns(host for host in self.short if host not in without),
        )

    def usage_of(self, hosts: Iterable[EngineHost]) -> Usage:
        """Return the sums over a few hosts at the last look."""
        known = {host: self._known[host] for host in hosts if host in self._known}
        return Usage(
            sum(each.used_bytes for each in known.values()),
            max((each.step_bytes for each in known.values()), default=0),
            sum(each.wanted_bytes for each in known.values()),
            sum(each.waited_bytes for each in known.values()),
            sum(each.doomed_bytes for each in known.values()),
            any(host in self.taking for host in known),
            _waiting_since_ns(host for host in known if host in self.short),
        )

    def look(self) -> set[EngineHost]:
        """Read again the usage of the hosts that moved since the last call, and return those hosts. Not for the middle of a host's turn:
        usage that the rest of the turn adds would be missed."""
        moved = {host for host in self._run_queue.moved if not host.is_given_up}
        self._run_queue.moved.clear()
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
        self._put(host, _usage_of(host))
        storage = host.engine.storage
        _note(self.taking, host, holds=storage.is_taking)
        _note(self.short, host, holds=storage.is_short)

    def _put(self, host: EngineHost, now: Usage | None) -> None:
        """Count with that from now on; None: not at all."""
        before = self._known.pop(host, None)
        if now is not None:
            self._known[host] = now
        else:
            self.taking.discard(host)
            self.short.discard(host)
        if before is None or now is None:
            self.comings += 1
        for usage, sign in ((before, -1), (now, 1)):
            if usage is not None:
                self._used_bytes += sign * usage.used_bytes
                self._wanted_bytes += sign * usage.wanted_bytes
                self._waited_bytes += sign * usage.waited_bytes
                self._doomed_bytes += sign * usage.doomed_bytes
                self._steps[usage.step_bytes] += sign
        if before is not None and not self._steps[before.step_bytes]:
            del self._steps[before.step_bytes]


def _usage_of(host: EngineHost) -> Usage:
    storage = host.engine.storage
    waited_bytes = storage.waited_bytes(
        by_pushes=host.ingest.waiting.count > 0, by_stages=host.staging.pushes.waiting_since_ns > 0
    )
    return Usage(
        storage.disk_bytes, storage.step_bytes, storage.wanted_bytes, waited_bytes, host.engine.retention.doomed_bytes
    )


def _waiting_since_ns(hosts: Iterable[EngineHost]) -> int:
    return min(filter(None, (host.waiting_since_ns for host in hosts)), default=0)


def _note(hosts: set[EngineHost], host: EngineHost, *, holds: bool) -> None:
    if holds:
        hosts.add(host)
    else:
        hosts.discard(host)
