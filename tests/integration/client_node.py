"""A whole node for the client's end-to-end tests: `quiver up` with small segments, and what its log says about its workers."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.client import Client, Delivery, Subscription, connect
from tests.integration.node_process import Directories, NodeProcess, command_line, wait_until_dead

CONFIG = """
[segment]
target_size = "1MiB"
max_open_duration = "50ms"

[topics.travel]
slots = { flights = 3, weather = 7 }

[topics.other]

[topics.quick]
durability = "segment_only"
"""


@dataclass
class ClientNode:
    """A running node; `restart` gives it another process on the same directories."""

    directories: Directories
    cores: int
    process: NodeProcess
    pids: dict[int, int] = field(default_factory=dict)
    """The process of each worker, from the log."""

    def connect(self, timeout: float = 60.0) -> Client:
        return connect(self.directories.run, timeout=timeout)

    def wait_worker_ready(self, core: int) -> int:
        """The pid of a worker that becomes ready from now on."""
        line = self.process.wait_for("worker.ready", f"worker=core_{core}", "pid=")
        found = re.search(r" pid=(\d+)", line)
        assert found is not None
        self.pids[core] = int(found.group(1))
        return self.pids[core]

    def signal_worker(self, core: int, number: signal.Signals) -> None:
        os.kill(self.pids[core], number)

    def kill_pid(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        wait_until_dead([pid])

    def kill_worker(self, core: int) -> None:
        """SIGKILL, and wait until the worker that takes its place is ready."""
        os.kill(self.pids[core], signal.SIGKILL)
        self.wait_worker_ready(core)

    def kill_supervisor(self) -> None:
        """SIGKILL to all of it: its workers die with it."""
        self.process.signal(signal.SIGKILL)
        self.process.end()
        wait_until_dead(list(self.pids.values()))

    def restart(self, cores: int | None = None) -> None:
        self.cores = cores or self.cores
        self.process = _start(self.directories, self.cores)
        self._note_workers()

    def _note_workers(self) -> None:
        self.pids = {child.index: child.pid for child in self.process.wait_ready().status().children}


@contextmanager
def client_node(
    cores: int = 1, config: str = CONFIG, prepare: Callable[[Path], None] = lambda _: None
) -> Iterator[ClientNode]:
    """Start a node, and leave nothing of it behind. `prepare` may lay out its data directory."""
    directories = Directories()
    try:
        prepare(directories.data)
        (directories.base / "quiver.toml").write_text(config)
        node = ClientNode(directories, cores, _start(directories, cores))
        try:
            node._note_workers()
            yield node
        finally:
            node.process.__exit__()
    finally:
        directories.remove()


Scope = Literal["function", "module"]


def node_fixture(cores: int = 1, config: str = CONFIG, scope: Scope = "module") -> Any:
    """Make a fixture: a node for all tests of a module, or for each."""

    @pytest.fixture(scope=scope)
    def node() -> Iterator[ClientNode]:
        with client_node(cores, config) as started:
            yield started

    return node


def client_fixture(timeout: float = 60.0, scope: Scope = "module") -> Any:
    """Make a fixture: a client of the node that the fixture `node` has started."""

    @pytest.fixture(scope=scope)
    def client(node: ClientNode) -> Iterator[Client]:
        with node.connect(timeout) as connected:
            yield connected

    return client


def _start(directories: Directories, cores: int) -> NodeProcess:
    arguments = ["up", "--config", str(directories.base / "quiver.toml"), "--cores", str(cores)]
    arguments += ["--data-dir", str(directories.data), "--run-dir", str(directories.run)]
    return NodeProcess(command_line("quiver_actors.cli.main", *arguments), directories.run)


def numbers(first: int, rows: int = 3) -> pa.RecordBatch:
    """A batch whose first value tells it from others."""
    return pa.record_batch({"id": pa.array(np.arange(first, first + rows, dtype=np.int64))})


def first_id(delivery: Delivery) -> int:
    found: int = delivery.batch.column("id")[0].as_py()
    return found


def take(subscription: Subscription, count: int, *, timeout: float = 60.0) -> list[Delivery]:
    """The next deliveries; fails the test when they do not come."""
    found: list[Delivery] = []
    while len(found) < count:
        delivery = subscription.get(timeout)
        assert delivery is not None, f"{len(found)} of {count} bundles came within {timeout} s each"
        found.append(delivery)
    return found


def consume_until(subscription: Subscription, wanted: set[int]) -> list[int]:
    """Acknowledge deliveries until all wanted ids have come; all ids in their order, repeated ones too."""
    found: list[int] = []
    while not wanted.issubset(found):
        (delivery,) = take(subscription, 1)
        with delivery:
            found.append(first_id(delivery))
    return found
