"""A node that archives, is lost with its disk, and goes on at another host."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psutil

from quiver_actors.archive.manifest_store import read_head, read_state
from quiver_actors.archive.node_state import NodeState, decode_state
from quiver_actors.spark.testing import ClusterNode, StandaloneCluster
from quiver_actors.store.objects.opening import open_store
from tests.integration.spark_node import wait_until

CONFIG = """
[segment]
max_open_duration = "1h"
[archive]
url = "{url}"
enabled = true
max_delay = "0ms"
progress_interval = "200ms"
[topics.moved]
"""


class MovingNode:
    """A node beside the hosts of a cluster, under one name for ever. A context manager that ends it.

    Attributes:
        url: its archive.
        node: where it is now.
    """

    def __init__(self, cluster: StandaloneCluster, address: str) -> None:
        self.name = "moving"
        self.url = f"file://{cluster.workspace}/archive"
        self._cluster = cluster
        self._lives = 0
        self.node = self._place(address)

    def _place(self, address: str) -> ClusterNode:
        self._lives += 1
        node = ClusterNode(self._cluster, len(self._cluster.hosts))
        node.name, node.address = self.name, address
        node.data_dir = self._cluster.workspace / f"moving-{self._lives}" / "data"
        node.run_dir = node.data_dir.with_name("run")
        return node

    def start(self) -> None:
        self.node.start_node(CONFIG.format(url=self.url))

    def wait_for_state(self, says: Callable[[NodeState], bool]) -> None:
        """Wait until the state in the archive says it."""

        def does() -> bool:
            head = read_head(store, self.name)
            return head is not None and head.state is not None and says(decode_state(read_state(store, head.state)))

        with closing(open_store(self.url)) as store:
            wait_until(does, "the state in the archive", 60)

    def lose(self) -> None:
        """Kill every process of the node at once, and remove its directories."""
        heads = [psutil.Process(each.pid) for each in (self.node.up, self.node.serve) if each is not None]
        processes = [*heads, *(child for head in heads for child in head.children(recursive=True))]
        for process in processes:
            process.kill()
        _, alive = psutil.wait_procs(processes, timeout=60)
        assert not alive
        shutil.rmtree(self.node.data_dir)
        shutil.rmtree(self.node.run_dir)

    def restore(self, address: str) -> dict[str, Any]:
        """Go on at another host, in new directories. Returns what `quiver restore` says."""
        self.node = self._place(address)
        self.node.data_dir.parent.mkdir()
        command = [sys.executable, "-m", "quiver_actors.cli.main", "restore", "--archive", self.url]
        more = ["--node", self.name, "--data-dir", str(self.node.data_dir), "--yes", "--json"]
        done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        self.start()
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def __enter__(self) -> MovingNode:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.node.serve, self.node.up):
            if process is not None:
                process.terminate()
                process.wait(60)
        (self._cluster.nodes / f"{self.name}.json").unlink(missing_ok=True)
