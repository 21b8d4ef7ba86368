"""Measures the pressure on a worker every 100 ms, and keeps the measures that follow from it where its hosts read them.

Owner: the loop thread. What each step does is in `store.retention.pressure`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from quiver_actors.node.worker.host import EngineHost
from quiver_actors.store.retention.pressure import Pressure, Signals

CAP_EASY = 0.5
CAP_SHARE_MAX = 0.95
"""A full cap alone refuses nobody: what happens to pushes then is the topic's policy."""
_FILE_BYTES_MAX = 1 << 14
_QUIET_SAMPLES = 10
"""While nothing happens the memory is looked at in one of so many samples."""


class Load:
    """Measures how hard pressed a worker is."""

    def __init__(self, pressure: Pressure) -> None:
        """
        Args:
            pressure: shared with the hosts, which read it.
        """
        self.pressure = pressure
        self._lagging: set[EngineHost] = set()
        self._memory = 0.0
        self._samples = 0
        self._defers = pressure.defers

    def sample(
        self,
        hosts: Iterable[EngineHost],
        recent: set[EngineHost],
        *,
        arena_bytes: int,
        arena_used_bytes: int,
        cap_fraction: float,
    ) -> None:
        """Take a new look; `recent`: those that something has happened to since the last one."""
        looked_at = self._lagging | recent
        self._lagging = {host for host in looked_at if host.engine.storage.sealing_lag and not host.is_given_up}
        lag = max((host.engine.storage.sealing_lag for host in self._lagging), default=0.0)
        full = arena_used_bytes / arena_bytes if arena_bytes else 0.0
        cap = max(0.0, cap_fraction - CAP_EASY) / (1 - CAP_EASY) * CAP_SHARE_MAX
        if looked_at or self._samples % _QUIET_SAMPLES == 0:
            self._memory = memory_taken()
        self._samples += 1
        signals = Signals(
            backlog=max(lag, full),
            cap=min(CAP_SHARE_MAX, cap),
            memory=self._memory,
            sync_ns=max((host.engine.storage.sync_ns for host in looked_at), default=0),
        )
        self.pressure.sample(signals)
        for host in hosts if self._defers != self.pressure.defers else recent:
            if host.engine.storage.defers_upkeep != self.pressure.defers and not host.is_given_up:
                host.engine.storage.defers_upkeep = self.pressure.defers
                host.touch()
        self._defers = self.pressure.defers


def memory_taken() -> float:
    """Part of the machine's memory, or of the container's where that has a limit, that nobody can get; 0 where nothing says."""
    return max(_machine_taken(), _container_taken())


def _machine_taken() -> float:
    figures = {}
    for line in _read("/proc/meminfo").splitlines()[:3]:
        name, _, rest = line.partition(b":")
        figures[name] = int(rest.split()[0])
    total = figures.get(b"MemTotal", 0)
    return 1 - figures.get(b"MemAvailable", total) / total if total else 0.0


def _container_taken() -> float:
    """Return the share of the container's memory in use; what the kernel could give back, mostly file pages, counts as free."""
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if not limit.isdigit() or not int(limit):
        return 0.0
    current = _read("/sys/fs/cgroup/memory.current").strip()
    lines = _read("/sys/fs/cgroup/memory.stat").splitlines()
    inactive = next((int(line.split()[1]) for line in lines if line.startswith(b"inactive_file ")), 0)
    return max(0, int(current or 0) - inactive) / int(limit)


def _read(path: str) -> bytes:
    """A file of the kernel's, made at that moment; empty where there is none. Asked for ten times a second: no Path, no decoding."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(file, _FILE_BYTES_MAX)
    except OSError:
        return b""
    finally:
        os.close(file)
