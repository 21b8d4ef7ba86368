"""The fixtures, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = """
import pyarrow as pa

batch = pa.record_batch({"delay": [1]})

def test_store(quiver_store):
    quiver_store.push(batch)
    assert len(list(quiver_store.read("default", 0))) == 1

def test_another_store_is_empty(quiver_store):
    assert list(quiver_store.read("default", 0)) == []

def test_node(quiver_node):
    with quiver_node.connect() as client:
        assert client.push(batch).bundle_id.core == 0
"""


def test_each_test_has_a_store_and_a_node_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "quiver_actors.cli.pytest_plugin", "-c", "/dev/null"]
    # An installed package has registered the plugin by its entry point.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
