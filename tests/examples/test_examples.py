"""Every script of examples/ runs against a real node, twice where that says something, and ends with the line that it must."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from quiver_actors.flight.local import LocalNode
from quiver_actors.flight.server import NodeServer
from tests.integration.node_process import ROOT
from tests.integration.spark_node import Node, ResumedQuery

EXAMPLES = ROOT / "examples"
SCRIPT_SECONDS = 120
SPARK_SECONDS = 600
SPARK = "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.enabled=false pyspark-shell"
"""Spark settings that are usual on a small machine."""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    node = Node("")
    yield node
    node.remove()


class Scripts:
    """Scripts as a user runs them: in a directory of the user's own, on the node of the environment."""

    def __init__(self, node: Node, home: Path) -> None:
        self._home = home
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "QUIVER_RUN_DIR": str(node.run_dir),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": SPARK,
        }

    def run(self, name: str, *arguments: str, seconds: float = SCRIPT_SECONDS) -> str:
        """The closing line of a script."""
        done = self._run(name, arguments, seconds)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()[-1]

    def run_spark(self, name: str) -> str:
        """Run a script that uses Spark, and start it again where Spark has lost one of its Python processes (see `ResumedQuery`)."""
        for _ in range(ResumedQuery.STARTS_MAX - 1):
            done = self._run(name, (), SPARK_SECONDS)
            if done.returncode == 0:
                return done.stdout.splitlines()[-1]
            assert ResumedQuery.GIVEN_UP in done.stderr, done.stdout + done.stderr
        return self.run(name, seconds=SPARK_SECONDS)

    def _run(self, name: str, arguments: tuple[str, ...], seconds: float) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        return subprocess.run(
            command,
            cwd=self._home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )


@pytest.fixture
def scripts(node: Node, tmp_path: Path) -> Scripts:
    return Scripts(node, tmp_path)


def test_embedded_store(scripts: Scripts) -> None:
    """Run twice in one directory."""
    for _ in range(2):
        assert scripts.run("embedded_store.py") == "pushed 100 bundles, read 200 rows"


@pytest.mark.parametrize("time", ["first", "again"])
def test_push_and_subscribe(scripts: Scripts, time: str) -> None:
    assert scripts.run("push_and_subscribe.py") == "pushed 100 bundles, read 200 flights"


@pytest.mark.parametrize("time", ["first", "again"])
def test_work_sharing(scripts: Scripts, time: str) -> None:
    closing = re.fullmatch(r"did 59 of 60 jobs; one was set aside after (\d+) attempts", scripts.run("work_sharing.py"))
    assert closing is not None
    # A consumer that is stopped for longer than its lease has one attempt too many, and none too few.
    assert int(closing[1]) >= 3


def test_the_parquet_forwarder_goes_on_where_it_was(scripts: Scripts, tmp_path: Path) -> None:
    files = tmp_path / "files"
    assert scripts.run("parquet_forwarder.py", str(files)) == "forwarded 500 orders and 1500 lines"
    assert scripts.run("parquet_forwarder.py", str(files)) == "forwarded 1000 orders and 3000 lines"
    orders = ds.dataset(files / "orders").to_table()["id"].to_pylist()
    assert sorted(orders) == sorted([*range(500), *range(500)])


@pytest.mark.parametrize("time", ["first", "again"])
def test_asyncio(scripts: Scripts, time: str) -> None:
    assert scripts.run("with_asyncio.py") == "20 sensors pushed 200 readings, read 200"


@pytest.mark.parametrize("time", ["first", "again"])
def test_a_client_on_another_host(scripts: Scripts, node: Node, time: str) -> None:
    with (
        node.client() as client,
        NodeServer(LocalNode(client.node, lambda: client), "grpc://127.0.0.1:0") as server,
    ):
        closing = scripts.run("remote_client.py", f"grpc://127.0.0.1:{server.port}")
    assert closing == "pushed 100 bundles from afar, read 200 rows"


@pytest.mark.spark
@pytest.mark.timeout(ResumedQuery.STARTS_MAX * SPARK_SECONDS)
def test_spark_batch(scripts: Scripts) -> None:
    assert scripts.run_spark("spark_batch.py") == "wrote 10000 rows twice, stored 10000"


@pytest.mark.spark
@pytest.mark.timeout(ResumedQuery.STARTS_MAX * SPARK_SECONDS)
def test_spark_streaming(scripts: Scripts) -> None:
    assert scripts.run_spark("spark_streaming.py") == "wrote 5000 rows, read 5000, of them different 5000"
