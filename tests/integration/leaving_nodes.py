"""Nodes that others reach through a directory of nodes, and that leave it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from tests.integration.node_process import ROOT, command_line
from tests.integration.spark_node import Node


@contextmanager
def served(name: str, nodes: Path) -> Iterator[Node]:
    """A node with a topic `moving` that others reach; it may have ended before."""
    node = Node(f"node = '{name}'\n[segment]\nmax_open_duration = '100ms'\n[topics.moving]\n")
    try:
        with serving(node, nodes):
            yield node
    finally:
        node.kill()
        node.directories.remove()


@contextmanager
def serving(node: Node, nodes: Path) -> Iterator[None]:
    """`quiver serve`, which ends as it should although its node may have ended."""
    serve = command_line("quiver_actors.cli.main", "serve", "--run-dir", str(node.run_dir), "--nodes", str(nodes))
    with subprocess.Popen([*serve, "--listen", "127.0.0.1:0"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("quiver serving")
            yield
        finally:
            process.terminate()
            assert process.wait(30) == 0


def push(node: Node, first: int, count: int) -> None:
    with node.client() as client:
        client.push(pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())}), topic="moving")
