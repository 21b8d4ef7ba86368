"""A worker as a real process: signals, exit codes, what survives its death."""

from __future__ import annotations

import contextlib
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from quiver_actors.base.config import NodeSettings
from quiver_actors.base.metrics.figures import WorkerState
from quiver_actors.base.protocol import messages as m
from quiver_actors.shm.counters import CountersPage
from quiver_actors.shm.errors import ShmError
from quiver_actors.shm.names import new_name
from quiver_actors.supervisor.exitcodes import ChildExit
from tests.unit.node.worker.harness import PATIENCE_SECONDS, WireClient, settings, table, topic, until

PROJECT = Path(__file__).parents[2]


class WorkerProcess:
    def __init__(self, root: Path, node: NodeSettings) -> None:
        self._path = str(root / "run/core_0.sock")
        self.page_name = new_name()
        for name in ("data", "run"):
            (root / name).mkdir(exist_ok=True)
        arguments = [str(root), self.page_name, msgspec.json.encode(node).decode()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.worker_process", *arguments],
            cwd=PROJECT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._clients: list[WireClient] = []

    def wait_for_state(self, state: WorkerState) -> None:
        """Wait as the supervisor does: for a byte in the pipe, then for the state in the region."""
        assert self.process.stdout is not None
        while self.state() != state:
            assert select.select([self.process.stdout], [], [], PATIENCE_SECONDS)[0], f"never {state.name}"
            assert self.process.stdout.read1(), f"ended before {state.name}: {self.log()}"  # type: ignore[attr-defined]

    def state(self) -> int:
        try:
            page = CountersPage.attach(self.page_name)
        except ShmError:  # not there yet
            return 0
        try:
            return page.read_region(1).state
        finally:
            page.close()

    def producer(self) -> WireClient:
        client = self.connect()
        client.attach_arena()
        client.declare(0, table().schema)
        return client

    def connect(self) -> WireClient:
        client = WireClient(self._path)
        self._clients.append(client)
        return client

    def wait(self) -> int:
        return self.process.wait(PATIENCE_SECONDS)

    def log(self) -> str:
        """Return what the worker has logged; ends the worker if it is alive."""
        self.process.kill()
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        for pipe in (self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()
        with contextlib.suppress(OSError):
            Path(f"/dev/shm{self.page_name}").unlink()


@contextlib.contextmanager
def process(root: Path, node: NodeSettings | None = None) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(root, node or settings())
    try:
        worker.wait_for_state(WorkerState.READY)
        yield worker
    finally:
        worker.close()


def stored_values(worker: WorkerProcess, count: int) -> list[int]:
    client = worker.connect()
    client.flush()
    client.register("reader", credit=1_000_000)
    return sorted(values[0] for _, _, values in client.values(count))


def test_term_drains_and_everything_acknowledged_is_there_afterwards(tmp_path: Path) -> None:
    with process(tmp_path) as worker:
        client = worker.producer()
        client.push_and_wait(*(table(value) for value in range(100)))
        worker.process.send_signal(signal.SIGTERM)
        assert worker.wait() == ChildExit.DRAINED
        assert "quiver.worker.end worker=core_0 exit_code=0" in worker.log()
    assert len(list((tmp_path / "data/default/core_0/segments").iterdir())) == 1
    # Which directories were open is the node's to forget.
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["opened"]
    with process(tmp_path) as worker:
        assert stored_values(worker, 100) == list(range(100))


def test_pushes_during_a_drain_are_acknowledged_or_refused(tmp_path: Path) -> None:
    with process(tmp_path) as worker:
        client = worker.producer()
        sent = {client.push(table(value)).tag: value for value in range(200)}
        worker.process.send_signal(signal.SIGTERM)
        acknowledged: list[int] = []
        refused: list[m.Refused] = []
        while (message := client.receive()) is not None:
            if isinstance(message, m.Acked):
                acknowledged += [sent.pop(run.tag) for run in message.runs]
            elif isinstance(message, m.Refused):
                refused.append(message)
                sent.pop(message.tag)
        assert {refusal.code for refusal in refused} <= {"draining"}
        assert all(refusal.retry_after_ns > 0 for refusal in refused)
        assert worker.wait() == ChildExit.DRAINED
    with process(tmp_path) as worker:
        assert set(stored_values(worker, len(acknowledged))) >= set(acknowledged)


def test_interrupt_is_the_supervisors_business(tmp_path: Path) -> None:
    with process(tmp_path) as worker:
        client = worker.producer()
        worker.process.send_signal(signal.SIGINT)
        client.push_and_wait(table(1))


@pytest.mark.crash
@pytest.mark.parametrize("round_number", range(3))
def test_killed_worker_loses_nothing_that_it_acknowledged(tmp_path: Path, round_number: int) -> None:
    node = settings(topic(segment__target_size_bytes=64 << 10))
    with process(tmp_path, node) as worker:
        client = worker.producer()
        sent = {client.push(table(value, *range(200))).tag: value for value in range(150)}
        acknowledged: list[int] = []
        while len(acknowledged) < 40 * (round_number + 1):
            acknowledged += [sent[run.tag] for run in client.expect(m.Acked).runs]
        worker.process.kill()
        worker.wait()
    with process(tmp_path, node) as worker:
        assert set(stored_values(worker, len(acknowledged))) >= set(acknowledged)


def test_engine_that_cannot_be_opened_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/default").write_bytes(b"not a directory")
    worker = WorkerProcess(tmp_path, settings())
    try:
        assert worker.wait() == ChildExit.CANNOT_OPEN
        assert "quiver.worker.cannot_open worker=core_0" in worker.log()
    finally:
        worker.close()


def test_second_worker_on_one_directory_is_refused(tmp_path: Path) -> None:
    with process(tmp_path):
        second = WorkerProcess(tmp_path, settings())
        try:
            assert second.wait() == ChildExit.CANNOT_OPEN
            assert "open in another process" in second.log()
        finally:
            second.close()


def test_heartbeat_goes_on_while_nothing_happens(tmp_path: Path) -> None:
    with process(tmp_path) as worker:
        page = CountersPage.attach(worker.page_name)
        first = page.read_region(1).heartbeat_ns
        until(lambda: page.read_region(1).heartbeat_ns > first, "the next heartbeat")
        page.close()
