"""A node of two workers as a child process, on temporary directories."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CORES = 2
TOPIC = "travel"
PLANES_TOPIC = "planes"
STREAM_TOPIC = "departures"
SLOTS = {0: "flights", 1: "weather"}
_CONFIG = f"""
# Small segments that are sealed soon: deliveries are seen as they come.
[segment]
target_size = "1MiB"
max_open_duration = "500ms"

[topics.{TOPIC}.slots]
{SLOTS[0]} = 0
{SLOTS[1]} = 1

[topics.{PLANES_TOPIC}]

[topics.{STREAM_TOPIC}]
"""
_QUIVER = [sys.executable, "-m", "quiver_actors.cli.main"]
_DEADLINE_SECONDS = 30.0


class Node:
    """`quiver up` with its directories in `workspace`; its log goes to `node.log` there."""

    def __init__(self, workspace: Path) -> None:
        self.run_dir = workspace / "run"
        config = workspace / "quiver.toml"
        config.write_text(_CONFIG)
        directories = ["--data-dir", str(workspace / "data"), "--run-dir", str(self.run_dir)]
        with (workspace / "node.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_QUIVER, "up", "--config", str(config), *directories, "--cores", str(CORES)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def wait_until_ready(self) -> str:
        """Wait for the line that `quiver up` prints when its workers are ready, and return it.

        Raises:
            RuntimeError: it ended before that.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"quiver up ended with exit code {self._process.wait()}")
        return line.strip()

    def status_text(self) -> str:
        """Return the output of `quiver status` for people."""
        return self._status()

    def status(self) -> dict[str, Any]:
        """Return the document of `quiver status --json`."""
        found: dict[str, Any] = json.loads(self._status("--json"))
        return found

    def lag(self, topic: str) -> int:
        """Bundles that some subscriber of the topic has not resolved, summed over subscribers and workers."""
        return sum(row["lag_bundles"] for row in self.status()["subscribers"] if row["topic"] == topic)

    def kill_worker(self, core: int) -> int:
        """SIGKILL a worker; returns the process id that it had."""
        pid = self.worker_pid(core)
        os.kill(pid, signal.SIGKILL)
        return pid

    def worker_pid(self, core: int) -> int:
        """Return the process id of the worker of a core."""
        return int(self._worker(core)["pid"])

    def wait_for_another_worker(self, core: int, than_pid: int) -> int:
        """Wait until a worker other than `than_pid` is ready on that core; returns its process id.

        Raises:
            RuntimeError: none came in time.
        """
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            worker = self._worker(core)
            if worker["state"] == "ready" and worker["pid"] != than_pid:
                return int(worker["pid"])
            time.sleep(0.05)
        raise RuntimeError(f"worker {core} did not come back within {_DEADLINE_SECONDS:.0f} s")

    def stop(self) -> int:
        """Let the node drain and end; returns its exit code."""
        if self._process.poll() is None:
            self._process.terminate()
        return self._process.wait(timeout=_DEADLINE_SECONDS)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _worker(self, core: int) -> dict[str, Any]:
        found: dict[str, Any] = self.status()["workers"][core]
        return found

    def _status(self, *arguments: str) -> str:
        command = [*_QUIVER, "status", "--run-dir", str(self.run_dir), *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
