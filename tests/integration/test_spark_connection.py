"""The connection and arena of a Python worker of Spark's: kept from task to task, made anew once when dead, never a parent's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from quiver_actors import spark as qs
from tests.integration.node_process import ROOT
from tests.integration.spark_node import Node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

FORK = """
import json, os, sys
import pyarrow as pa
from quiver_actors.spark import node_client

def push(number):
    node_client(sys.argv[1]).push(pa.record_batch({"n": [number]}), topic="forked")

push(1)
parents = node_client(sys.argv[1])
child = os.fork()
if not child:
    push(2)
    os._exit(10 + (node_client(sys.argv[1]) is parents))
_, status = os.waitpid(child, 0)
push(3)
print(json.dumps([os.waitstatus_to_exitcode(status), node_client(sys.argv[1]) is parents]))
"""


def where_tasks_run(spark: SparkSession) -> tuple[int, list[str]]:
    """Process id of a task that has stored something, and the arenas that are mapped in it (a connection has its own)."""
    store = qs.tee("reused")

    def look(given: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        for _ in store(given):
            with open("/proc/self/maps") as lines:
                inodes = {line.split()[4] for line in lines if "memfd:quiver-arena" in line}
            yield pa.record_batch({"pid": [os.getpid()], "arenas": [sorted(inodes)]})

    (row,) = spark.range(0, 2, 1, 1).mapInArrow(look, "pid long, arenas array<string>").collect()
    return row.pid, row.arenas


def test_tasks_share_a_connection_and_its_arena_until_it_is_dead(spark: SparkSession, node: Node) -> None:
    before = [where_tasks_run(spark) for _ in range(4)]
    node.stop()
    node.start()
    after = [where_tasks_run(spark) for _ in range(4)]
    for found in (before, after):
        assert len({pid for pid, _ in found}) <= 2, "Python workers are reused"
        arenas_of = dict(found)
        assert all(len(arenas) == 1 and arenas == arenas_of[pid] for pid, arenas in found)
    survivors = {pid for pid, _ in before} & {pid for pid, _ in after}
    assert survivors
    assert all(dict(before)[pid] != dict(after)[pid] for pid in survivors)


def test_a_forked_child_has_a_client_of_its_own(node: Node) -> None:
    command = [sys.executable, "-c", FORK, str(node.run_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout) == [10, True]
    with node.client() as client:
        client.flush("forked")
        bundles = [bundle for core in client.segments("forked") for bundle in client.read("forked", core)]
    assert sorted(n for bundle in bundles for n in bundle.batch.column("n").to_pylist()) == [1, 2, 3]
