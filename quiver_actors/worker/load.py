"""How hard pressed a worker is: its signals are looked at every 100 ms, and what follows from them is kept where its hosts look.

Owner: the loop thread. What each step does is in `retention.pressure`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from quiver_actors.retention.pressure import Pressure, Signals
from quiver_actors.worker.host import EngineHost

CAP_EASY = 0.5
CAP_SHARE_MAX = 0.95
"""A full cap alone refuses nobody: what happens to pushes then is the topic's policy."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


class Load:
    """See the module."""

    def __init__(self, pressure: Pressure) -> None:
        """
        Args:
            pressure: shared with the hosts, which read it.
        """
        self.pressure = pressure
        self._lagging: set[EngineHost] = set()
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
        self._lagging = {host for host in looked_at if host.engine.sealing_lag and not host.is_given_up}
        lag = max((host.engine.sealing_lag for host in self._lagging), default=0.0)
        full = arena_used_bytes / arena_bytes if arena_bytes else 0.0
        cap = max(0.0, cap_fraction - CAP_EASY) / (1 - CAP_EASY) * CAP_SHARE_MAX
        signals = Signals(
            backlog=max(lag, full),
            cap=min(CAP_SHARE_MAX, cap),
            memory=memory_taken(),
            sync_ns=max((host.engine.sync_ns for host in looked_at), default=0),
        )
        self.pressure.sample(signals)
        for host in hosts if self._defers != self.pressure.defers else recent:
            if host.engine.defers_upkeep != self.pressure.defers and not host.is_given_up:
                host.engine.defers_upkeep = self.pressure.defers
                host.touch()
        self._defers = self.pressure.defers


def memory_taken() -> float:
    """Part of the machine's memory, or of the container's where that has a limit, that nobody can get; 0 where nothing says."""
    return max(_machine_taken(), _container_taken())


def _machine_taken() -> float:
    figures = {}
    for line in _MEMINFO.read_text().splitlines()[:3] if _MEMINFO.exists() else []:
        name, _, rest = line.partition(":")
        figures[name] = int(rest.split()[0])
    total = figures.get("MemTotal", 0)
    return 1 - figures.get("MemAvailable", total) / total if total else 0.0


def _container_taken() -> float:
    """What the kernel could give back, mostly pages of files, counts as free."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        if not limit.isdigit():
            return 0.0
        current = int((_CGROUP / "memory.current").read_text())
        lines = (_CGROUP / "memory.stat").read_text().splitlines()
    except OSError:
        return 0.0
    inactive = next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
    return max(0, current - inactive) / int(limit) if int(limit) else 0.0
