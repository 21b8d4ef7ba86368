"""Reads what the nodes of a cluster store, without Spark."""

from __future__ import annotations

import os
from typing import Any

import psutil

from quiver_actors.base.model import BundleId
from quiver_actors.client import connect
from quiver_actors.spark.testing import ClusterNode, StandaloneCluster


def rows(host: ClusterNode, topic: str) -> list[tuple[Any, ...]]:
    """The visible rows of one node."""
    found: list[tuple[Any, ...]] = []
    with connect(host.run_dir) as client:
        if not all(readable.is_complete for readable in client.readable(topic).values()):
            client.flush(topic)
        for core, readable in client.readable(topic).items():
            # One by one: between two there may be numbers that a killed worker has left out.
            for info in [*readable.sealed, *readable.unsealed]:
                first = BundleId(topic, core, info.segment_seq, 0)
                behind = BundleId(topic, core, info.segment_seq, info.bundle_count)
                for bundle in client.read(topic, core, first, behind):
                    found += zip(*(column.to_pylist() for column in bundle.batch.columns), strict=True)
    return found


def numbers(host: ClusterNode, topic: str) -> list[Any]:
    """The first column of the visible rows of one node."""
    return [row[0] for row in rows(host, topic)]


def everywhere(cluster: StandaloneCluster, topic: str) -> list[int]:
    return sorted(n for host in cluster.hosts for n in numbers(host, topic))


def staged(host: ClusterNode, topic: str) -> int:
    with connect(host.run_dir) as client:
        return sum(map(len, client.staged(topic).values()))


def memory_bytes(cluster: StandaloneCluster) -> dict[str, int]:
    """What every process of Quiver's, and every Python process of Spark's, has in memory: by what it is and its number."""
    found: dict[str, list[int]] = {"quiver": [], "serve": [], "task": []}
    for host in cluster.hosts:
        found["quiver"] += host.quiver_worker_pids()
        found["serve"] += [] if host.serve is None else [host.serve.pid]
        found["task"] += host.python_worker_pids()
    known = {pid for pids in found.values() for pid in pids}
    mine = psutil.Process(os.getpid()).children(recursive=True)
    found["driver"] = [each.pid for each in mine if each.pid not in known and _is_python_of_spark(each)]
    return {f"{kind} {pid}": psutil.Process(pid).memory_info().rss for kind, pids in found.items() for pid in pids}


def _is_python_of_spark(process: psutil.Process) -> bool:
    try:
        return "pyspark.daemon" in process.cmdline()
    except psutil.Error:
        return False
