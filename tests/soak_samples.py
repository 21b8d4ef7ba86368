"""What the soak (`tests.soak`) sees of its processes, and how that changes over a run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

_WARM_SECONDS = 300.0


class Sample(NamedTuple):
    """Memory and descriptors of all processes of the node, and of this process, which holds the producer and the consumers."""

    node_rss_kib: int
    supervisor_rss_kib: int
    client_rss_kib: int
    node_descriptors: int
    supervisor_descriptors: int
    client_descriptors: int
    shared_kib: int
    shared_names: int
    node_anon_kib: int
    client_anon_kib: int


def take_sample(supervisor: int, workers: Sequence[int]) -> Sample:
    """The processes of the node, and this one."""
    node, own = [supervisor, *workers], os.getpid()
    return Sample(
        node_rss_kib=sum(status_kib(pid, "VmRSS") for pid in node),
        supervisor_rss_kib=status_kib(supervisor, "VmRSS"),
        client_rss_kib=status_kib(own, "VmRSS"),
        node_descriptors=sum(_descriptors(pid) for pid in node),
        supervisor_descriptors=_descriptors(supervisor),
        client_descriptors=_descriptors(own),
        shared_kib=sum(status_kib(pid, "RssShmem") for pid in (*node, own)),
        shared_names=len({name for pid in node for name in _shared_names(pid)}),
        node_anon_kib=sum(status_kib(pid, "RssAnon") for pid in node),
        client_anon_kib=status_kib(own, "RssAnon"),
    )


def drift_of(samples: Sequence[Sample], name: str) -> dict[str, int]:
    """Medians of a figure over the first and the last third, their difference, and the most."""
    values = [getattr(sample, name) for sample in samples]
    third = max(1, len(values) // 3)
    first, last = int(median(values[:third])), int(median(values[-third:]))
    return {"first": first, "last": last, "drift": last - first, "most": max(values)}


def after_warming_up(samples: Sequence[Sample], name: str, interval_seconds: float) -> tuple[int, int]:
    """Medians of a figure right after the first five minutes (the first quarter of a shorter run), and at the end."""
    values = [getattr(sample, name) for sample in samples]
    begun = min(round(_WARM_SECONDS / interval_seconds), len(values) // 4)
    tenth = max(1, len(values) // 10)
    return int(median(values[begun : begun + tenth])), int(median(values[-tenth:]))


def status_kib(pid: int, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return 0


def _shared_names(pid: int) -> list[str]:
    """Named shared memory that the process has mapped."""
    with contextlib.suppress(OSError):
        return [line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm/" in line]
    return []


def _descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0
