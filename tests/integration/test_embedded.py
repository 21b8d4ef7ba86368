"""A store in a process of its own: killed, taken over by a node and back, opened twice, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import quiver_actors
from quiver_actors.base.core_dirs import find_core_dirs
from quiver_actors.errors import AlreadyRunning
from tests.integration.client_node import client_node
from tests.integration.node_process import ROOT, run_quiver
from tests.unit.embedded.batches import PATIENCE_SECONDS, delivered, numbered, stored, until

PROGRAM = """
import sys, quiver_actors
from tests.unit.embedded.batches import numbered
store = quiver_actors.open(sys.argv[1])
print("open", flush=True)
try:
    for number in range(int(sys.argv[2]), 1_000_000):
        store.push(numbered(number))
        print(number, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


class Program:
    """A process that pushes numbered bundles one by one, and says which were acknowledged."""

    def __init__(self, path: Path, first: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path), str(first)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        self.said: list[str] = []

    def read(self, lines: int) -> None:
        assert self.process.stdout is not None
        for _ in range(lines):
            line = self.process.stdout.readline()
            assert line, f"it ended with {self.process.wait()}"
            self.said.append(line.strip())

    def end(self, number: signal.Signals) -> list[int]:
        """Send a signal, and return what was acknowledged."""
        self.process.send_signal(number)
        # Not `communicate`, which leaves out what `readline` has read ahead. The last line may be cut off.
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        self.process.stdout.close()
        self.process.wait(PATIENCE_SECONDS)
        self.said += rest.split("\n")[:-1]
        return [int(line) for line in self.said if line.isdecimal()]


def test_what_was_acknowledged_survives_kills_and_is_there_once(tmp_path: Path) -> None:
    acknowledged: list[int] = []
    for first in (0, 10_000, 20_000):
        program = Program(tmp_path / "data", first)
        program.read(1 + 30)
        acknowledged += program.end(signal.SIGKILL)
    with quiver_actors.open(tmp_path / "data") as store:
        found = stored(store)
    assert set(found) >= set(acknowledged)
    assert len(set(found)) == len(found)
    assert len(found) <= len(acknowledged) + 3, "at most one push of each life was not acknowledged"


def test_an_interrupt_ends_a_program_in_good_order(tmp_path: Path) -> None:
    program = Program(tmp_path / "data")
    program.read(1 + 20)
    acknowledged = program.end(signal.SIGINT)
    assert "interrupted" in program.said
    assert program.process.returncode == 0
    with quiver_actors.open(tmp_path / "data") as store:
        assert set(stored(store)) >= set(acknowledged)


def test_two_owners_are_told_of_each_other(tmp_path: Path) -> None:
    program = Program(tmp_path / "data")
    program.read(1)
    pid = program.process.pid
    with pytest.raises(AlreadyRunning, match=f"process {pid}"):
        quiver_actors.open(tmp_path / "data")
    refused = run_quiver("up", "--data-dir", str(tmp_path / "data"), "--run-dir", str(tmp_path / "run"))
    assert f"process {pid}" in refused.stderr
    program.end(signal.SIGKILL)
    quiver_actors.open(tmp_path / "data").close()


def test_a_node_and_a_store_take_over_from_each_other_also_after_kills() -> None:
    with client_node(1) as node:
        path = node.directories.data
        with node.connect() as client:
            client.subscribe("s", start="earliest").close()
            client.push_many(map(numbered, range(10)))
            assert delivered(client, "s", 5) == list(range(5))
            with pytest.raises(AlreadyRunning, match=f"process {node.process.pid}"):
                quiver_actors.open(path)
        node.kill_supervisor()
        with quiver_actors.open(path) as store:
            assert set(store.topics()) == {"default", "travel", "other", "quick"}
            store.push_many(map(numbered, range(10, 20)))
            assert delivered(store, "s", 10) == list(range(5, 15))
        program = Program(path, 20)
        program.read(1 + 5)
        acknowledged = program.end(signal.SIGKILL)
        node.restart()
        with node.connect() as client:
            wanted = [*range(15, 20), *acknowledged]
            assert delivered(client, "s", len(wanted)) == wanted


def test_directories_of_other_cores_are_adopted_and_retired() -> None:
    with client_node(2) as node:
        with node.connect() as client:
            client.subscribe("s", start="earliest").close()
            by_core: dict[int, int] = {}
            for number in range(40):
                receipt = client.push(numbered(number), key=str(number))
                by_core[receipt.bundle_id.core] = by_core.get(receipt.bundle_id.core, 0) + 1
            assert set(by_core) == {0, 1}
        node.process.signal(signal.SIGTERM)
        node.process.end()
        with quiver_actors.open(node.directories.data) as store:
            assert store.push(numbered(40)).bundle_id.core == 0
            assert sorted(delivered(store, "s", 41)) == list(range(41))
            until(lambda: set(find_core_dirs(str(node.directories.data))) == {0}, "core 1 is retired")
            assert store.push(numbered(41)).bundle_id.core == 0
            assert os.path.isdir(node.directories.data / "default" / "retired" / "core_1")
