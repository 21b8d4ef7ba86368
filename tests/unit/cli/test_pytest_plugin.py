"""The fixtures, in a pytest of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from quiver_actors.shm.liveness import holder_alive
from tests.unit.embedded.batches import until

ROOT = Path(__file__).parents[3]
TESTS = """
import os, pathlib, signal
import pyarrow as pa
import quiver_actors

batch = pa.record_batch({"delay": [1]})

def test_store(quiver_store):
    quiver_store.push(batch)
    assert len(list(quiver_store.read("default", 0))) == 1

def test_another_store_is_empty(quiver_store):
    assert list(quiver_store.read("default", 0)) == []

def test_node(quiver_node):
    with quiver_node.connect() as client, quiver_actors.connect() as found:
        assert client.push(batch).bundle_id.core == 0
        assert len(list(found.read("default", 0))) == 1

def test_that_kills_its_pytest(quiver_node):
    pathlib.Path("run_dir").write_text(quiver_node.run_dir)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_each_test_has_a_store_and_a_node_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    (tmp_path / "queue.py").write_text("raise ImportError('a module of the tests, not of Python')")
    command = [sys.executable, "-P", "-m", "pytest", "-v", "-p", "quiver_actors.cli.pytest_plugin", "-c", "/dev/null"]
    # An installed package has registered the plugin by its entry point.
    foreign = {"QUIVER_CORES": "none", "QUIVER_RUN_DIR": "/of/a/real/node", "PYTHONPATH": str(ROOT)}
    environment = os.environ | foreign | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "--import-mode=importlib", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.count("PASSED") == 3, done.stdout + done.stderr
    run_dir = Path((tmp_path / "run_dir").read_text())
    until(lambda: not holder_alive(str(run_dir / "supervisor.lock")), "the end of the node of a pytest that was killed")
    shutil.rmtree(run_dir.parent)
