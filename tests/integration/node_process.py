"""Driving a node that runs in its own process: wait for its events, look at it, end it, and leave nothing behind."""

from __future__ import annotations

import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Self

import msgspec

from quiver_actors.node.leftovers import is_asked_for
from quiver_actors.shm.liveness import recorded_name, sweep_named_memory
from quiver_actors.supervisor import control
from quiver_actors.supervisor.spec import MILLISECOND_NS, SECOND_NS, Patience, RestartPolicy

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 90.0
"""Only what goes wrong takes so long; starts beside other work take a while too."""

QUICK = Patience(
    restart=RestartPolicy(backoff_first_ns=20 * MILLISECOND_NS, backoff_max_ns=100 * MILLISECOND_NS),
    heartbeat_timeout_ns=30 * SECOND_NS,
    abort_grace_ns=200 * MILLISECOND_NS,
    drain_timeout_ns=20 * SECOND_NS,
    observe_interval_ns=50 * MILLISECOND_NS,
)
"""Short where it only costs time, long where a busy machine could mistake slowness for a hang."""


def command_line(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", module, *arguments]


def run_quiver(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run one `quiver` command to its end."""
    return subprocess.run(
        command_line("quiver_actors.cli.main", *arguments),
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )


class Directories:
    """A data and a run directory with short paths (sockets have short addresses), removed with all that was left in them."""

    def __init__(self) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="qv-"))
        self.data = self.base / "data"
        self.run = self.base / "run"

    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.run / "node.json").read_bytes())
        return found

    def remove(self) -> None:
        sweep_named_memory(recorded_name(self.run / "node.json"), is_asked_for)
        shutil.rmtree(self.base)


class NodeProcess:
    """One node. As a context manager it is killed at the end if it still runs.

    Its log is read all the time: a node leaves lines out that nobody makes room for.
    """

    def __init__(self, command: Sequence[str], run_dir: Path, environment: dict[str, str] | None = None) -> None:
        self.run_dir = run_dir
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        """Lines that nobody has waited for yet; None behind the last one."""
        log, self._process.stderr = self._process.stderr, None
        assert log is not None
        self._reader = threading.Thread(target=self._read, args=[log], daemon=True)
        self._reader.start()

    def _read(self, log: IO[bytes]) -> None:
        with log:
            for line in log:
                self._arrived.put(line.decode().rstrip("\n"))
        self._arrived.put(None)

    @classmethod
    def small(
        cls,
        directories: Directories,
        worker: str = "serve",
        *,
        cores: int = 2,
        patience: Patience = QUICK,
        environment: dict[str, str] | None = None,
        run_dir: Path | None = None,
    ) -> Self:
        """A node of `small_node`."""
        run = run_dir or directories.run
        encoded = msgspec.json.encode(patience).decode()
        module = "tests.integration.small_node"
        return cls(command_line(module, str(directories.data), str(run), str(cores), worker, encoded), run, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for(self, event: str, *fields: str) -> str:
        """The next log line of that event with all these `key=value` fields; fails the test when it does not come."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            line = self._next_line(deadline)
            if line is None:
                break
            if f"event=quiver.{event} " in f"{line} " and all(f" {field}" in line for field in fields):
                return line
        raise AssertionError(f"no {event} {fields} in:\n" + "\n".join(self.lines))

    def comes_within(self, event: str, seconds: float) -> bool:
        """Whether such a line comes in that time: for what must not happen."""
        deadline = time.monotonic() + seconds
        while (line := self._next_line(deadline)) is not None:
            if f"event=quiver.{event} " in line:
                return True
        return False

    def _next_line(self, deadline: float) -> str | None:
        try:
            line = self._arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return None
        if line is None:
            self._arrived.put(None)
            return None
        self.lines.append(line)
        return line

    def wait_ready(self) -> Self:
        self.wait_for("node.ready")
        return self

    def status(self) -> control.NodeStatus:
        reply = control.request(str(self.run_dir / control.SOCKET_NAME), control.Status())
        assert isinstance(reply, control.NodeStatus)
        return reply

    def worker_pids(self) -> list[int]:
        return [child.pid for child in self.status().children]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Wait until it has ended by itself; its exit code and what it printed to stdout."""
        stdout, _ = self._process.communicate(timeout=DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)
        while self._next_line(0.0) is not None:
            pass
        return self._process.returncode, stdout.decode()

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.end()[0]

    def logged(self) -> str:
        return "\n".join(self.lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate(timeout=DEADLINE_SECONDS)
        self._reader.join(DEADLINE_SECONDS)


def wait_until_dead(pids: Sequence[int]) -> None:
    """Wait until none of the processes is there any more; fails the test when one stays."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([descriptor], [], [], DEADLINE_SECONDS)[0], f"process {pid} still lives"
        finally:
            os.close(descriptor)


def named_memory(name: str) -> Path:
    return Path("/dev/shm") / name.lstrip("/")
