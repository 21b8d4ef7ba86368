"""Fixtures for the tests of programs that use Quiver; pytest finds them where the package is installed.

def test_my_writer(quiver_store):
    my_writer(quiver_store)
    assert len(list(quiver_store.read("default", 0))) == 3
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from quiver_actors.client import Client
    from quiver_actors.embedded import Store

_STOP_SECONDS = 60.0
_NODE_OF_TEST = """\
import ctypes, signal, sys
from quiver_actors.cli.main import main
ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: a pytest that is killed leaves no node behind
sys.exit(main())
"""


class QuiverNode(NamedTuple):
    """A node that runs for one test."""

    run_dir: str
    data_dir: str

    def connect(self, **options: Any) -> Client:
        """A new client; `options` are those of `quiver_actors.connect`."""
        import quiver_actors

        return quiver_actors.connect(self.run_dir, **options)


@pytest.fixture
def quiver_store(tmp_path: Path) -> Iterator[Store]:
    """An empty embedded store, which is closed after the test."""
    import quiver_actors

    with quiver_actors.open(tmp_path / "quiver_store") as store:
        yield store


@pytest.fixture
def quiver_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[QuiverNode]:
    """An empty node with one worker in processes of its own, which is stopped after the test. `quiver_actors.connect()` finds it.

    It takes no settings from the environment of the tests: these may be those of a real node.
    """
    # Not below tmp_path, whose paths may be too long for a socket's address.
    base = tempfile.mkdtemp(prefix="quiver-")
    node = QuiverNode(f"{base}/run", f"{base}/data")
    # -P: modules of the tests' directory are not taken for those of Python.
    command = [sys.executable, "-P", "-c", _NODE_OF_TEST, "up", "--cores", "1"]
    command += ["--data-dir", node.data_dir, "--run-dir", node.run_dir]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUIVER_")}
    monkeypatch.setenv("QUIVER_RUN_DIR", node.run_dir)
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                if not line.startswith("quiver ready"):
                    pytest.fail(f"the node did not start: exit code {process.wait()}; its log is on stderr")
                yield node
            finally:
                _stop(process)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
