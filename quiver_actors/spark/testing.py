"""A real Spark cluster on one machine for tests: a standalone master and workers on addresses of their own, each with a node.

Worker k runs on 127.0.0.(k+2) with `quiver up` and `quiver serve` beside it, and finds its node through its environment, as on a real host.
Nodes announce themselves in one directory; a driver in this process has no node of its own. Needs no root; about 3 GB of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from quiver_actors.spark.java import ensure_java
from quiver_actors.spark.session import session_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUIVER = [sys.executable, "-m", "quiver_actors.cli.main"]
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0
_LOOK_SECONDS = 0.1


class ClusterNode:
    """One host: an address, a node with its Flight server, and a Spark worker."""

    def __init__(self, cluster: StandaloneCluster, number: int) -> None:
        self.name = f"node-{number}"
        self.address = f"127.0.0.{number + 2}"
        self.data_dir = cluster.workspace / self.name / "data"
        self.run_dir = cluster.workspace / self.name / "run"
        self._cluster = cluster
        self.up: subprocess.Popen[bytes] | None = None
        self.serve: subprocess.Popen[bytes] | None = None
        self.worker: subprocess.Popen[bytes] | None = None

    def start_node(self, config: str) -> None:
        """`quiver up`, then `quiver serve`; returns when both are ready."""
        directory = self.run_dir.parent
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "quiver.toml").write_text(config)
        self._start_up()
        self.start_serve()

    def restart_node(self) -> None:
        """SIGKILL to `quiver up`, with which its workers die, then a new one. `quiver serve` goes on, as a service of its own."""
        workers = self.quiver_worker_pids()
        assert self.up is not None, "the node was started"
        self.up.kill()
        self.up.wait()
        _wait(lambda: not any(map(_is_alive, workers)), f"workers of {self.name} outlive their supervisor", self.serve)
        self._start_up()

    def _start_up(self) -> None:
        directory = self.run_dir.parent
        command = ["up", "--config", directory / "quiver.toml", "--data-dir", self.data_dir, "--run-dir", self.run_dir]
        self.up = self._cluster.spawn(
            f"{self.name}-up", [*_QUIVER, *command, "--cores", "1"], {"QUIVER_NODE": self.name}
        )
        _wait(self._is_ready, f"{self.name} did not become ready", self.up)

    def start_serve(self) -> None:
        """`quiver serve`, announced in the cluster's directory of nodes."""
        log = self._cluster.log_of(f"{self.name}-serve")
        size = log.stat().st_size if log.exists() else 0
        command = ["serve", "--run-dir", self.run_dir, "--listen", f"{self.address}:0", "--nodes", self._cluster.nodes]
        self.serve = self._cluster.spawn(f"{self.name}-serve", [*_QUIVER, *command], {})
        _wait(lambda: b"quiver serving" in log.read_bytes()[size:], f"{self.name} is not served", self.serve)

    def start_worker(self, master: str) -> None:
        """Start a Spark worker on the node's address, with the run directory of the node in its environment."""
        directory = self.run_dir.parent
        environment = {
            "SPARK_LOCAL_IP": self.address,
            "SPARK_WORKER_DIR": str(directory / "work"),
            "SPARK_LOCAL_DIRS": str(directory / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "QUIVER_RUN_DIR": str(self.run_dir),
            "QUIVER_NODES": str(self._cluster.nodes),
        }
        arguments = ["--host", self.address, "--cores", "1", "--memory", "700m", "--webui-port", "0", master]
        self.worker = self._cluster.spawn_spark(f"{self.name}-worker", "worker.Worker", arguments, environment)

    def quiver_worker_pids(self) -> list[int]:
        """Process ids of the node's workers, the processes that own cores."""
        status = [*_QUIVER, "status", "--run-dir", str(self.run_dir), "--json"]
        answer = subprocess.run(status, capture_output=True, check=True, timeout=_STOP_SECONDS)
        return [int(worker["pid"]) for worker in json.loads(answer.stdout)["workers"]]

    def executor_pids(self) -> list[int]:
        """The JVMs that run tasks on this host."""
        return [
            pid
            for pid, command in _processes()
            if "CoarseGrainedExecutorBackend" in command and f"--hostname {self.address} " in f"{command} "
        ]

    def python_worker_pids(self) -> list[int]:
        """Processes below the executors that run Python, the forking daemon left out."""
        daemons = {pid for pid, command in _processes() if "pyspark.daemon" in command and self._is_mine(pid)}
        return [pid for pid in daemons if _parent_of(pid) in daemons]

    def _is_mine(self, pid: int) -> bool:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        return f"QUIVER_RUN_DIR={self.run_dir}\0".encode() in environment

    def _is_ready(self) -> bool:
        command = [*_QUIVER, "status", "--run-dir", str(self.run_dir), "--check", "ready"]
        return subprocess.run(command, capture_output=True, check=False, timeout=_STOP_SECONDS).returncode == 0


class StandaloneCluster:
    """A standalone Spark cluster with Quiver nodes. A context manager: everything that it has started ends with it.

    Args:
        workers: how many hosts, each with one core for tasks.
        config: of every node, TOML.
        workspace: directory for logs and data, kept; None: a temporary one, removed at the end.
    """

    def __init__(self, workers: int = 2, *, config: str = "", workspace: Path | None = None) -> None:
        self._temporary = None if workspace else tempfile.TemporaryDirectory(prefix="qvc-", ignore_cleanup_errors=True)
        self.workspace = workspace or Path(self._temporary.name if self._temporary else "")
        self.nodes = self.workspace / "nodes"
        self.master = ""
        self._config = config
        self._processes: list[subprocess.Popen[bytes]] = []
        self._session: SparkSession | None = None
        self._environment: dict[str, str] = {}
        self.hosts = [ClusterNode(self, number) for number in range(workers)]

    def start(self) -> StandaloneCluster:
        """Start everything, and wait until all workers have joined the master.

        Raises:
            RuntimeError: something did not start; its log is named.
        """
        java = ensure_java()
        self._environment = {"PYSPARK_PYTHON": sys.executable, "QUIVER_NODES": str(self.nodes)}
        if java.parent.name == "bin" and "JAVA_HOME" in os.environ:
            self._environment["JAVA_HOME"] = os.environ["JAVA_HOME"]
        for host in self.hosts:
            host.start_node(self._config)
        port, web_port = _free_port(), _free_port()
        self.master = f"spark://127.0.0.1:{port}"
        arguments = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web_port)]
        local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
        master = self.spawn_spark("master", "master.Master", arguments, local)
        url = f"http://127.0.0.1:{web_port}/json/"
        _wait(lambda: _alive_workers(url) is not None, "the master did not start", master)
        for host in self.hosts:
            host.start_worker(self.master)
        _wait(lambda: _alive_workers(url) == len(self.hosts), "the Spark workers did not join", master)
        return self

    def session(self, **conf: str) -> SparkSession:
        """The session of a driver in this process, with one executor on each host. One at a time."""
        from pyspark.sql import SparkSession

        os.environ |= self.driver_environment()
        os.environ.pop("QUIVER_RUN_DIR", None)
        self._session = SparkSession.builder.config(map=self.settings(**conf)).getOrCreate()
        return self._session

    def driver_environment(self) -> dict[str, str]:
        """What a driver needs in its environment; it has no node of its own, so no `QUIVER_RUN_DIR`."""
        return {**self._environment, "SPARK_LOCAL_IP": "127.0.0.1"}

    def settings(self, **conf: str) -> dict[str, str]:
        """Settings of a session of this cluster, for a driver in another process. In `conf` two underscores stand for a dot."""
        return {
            "spark.master": self.master,
            **session_conf(),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(self.workspace / "warehouse"),
            "spark.local.dir": str(self.workspace / "driver-local"),
            # Nothing runs before every host has its executor; Spark knows how many there will be from the number of cores.
            "spark.cores.max": str(len(self.hosts)),
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
            **{key.replace("__", "."): value for key, value in conf.items()},
        }

    def spawn(self, name: str, command: list[Any], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process in a session of its own, its output in `<workspace>/<name>.log`."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("QUIVER_")}
        with self.log_of(name).open("ab") as log:
            process = subprocess.Popen(
                list(map(str, command)),
                env={**inherited, **self._environment_of_spark(), **environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def spawn_spark(
        self, name: str, kind: str, arguments: list[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a Spark daemon (`master.Master` or `worker.Worker`) as a child whose output goes to the log of `name`."""
        import pyspark

        launcher = Path(pyspark.__file__).parent / "bin" / "spark-class"
        return self.spawn(name, [launcher, f"org.apache.spark.deploy.{kind}", *arguments], environment)

    def log_of(self, name: str) -> Path:
        """Return the path of the log of a child process."""
        return self.workspace / f"{name}.log"

    def stop(self) -> None:
        """End the session and every process. Idempotent."""
        if self._session is not None:
            with contextlib.suppress(Exception):
                self._session.stop()
            self._session = None
        for process in reversed(self._processes):
            _end(process)
        self._processes.clear()
        if self._temporary is not None:
            self._temporary.cleanup()

    def _environment_of_spark(self) -> dict[str, str]:
        return {key: value for key, value in self._environment.items() if not key.startswith("QUIVER_")}

    def __enter__(self) -> StandaloneCluster:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _wait(condition: Callable[[], Any], otherwise: str, process: subprocess.Popen[bytes] | None) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if process is not None and process.poll() is not None:
            raise RuntimeError(
                f"{otherwise}: it ended with exit code {process.returncode}; see its log in the workspace"
            )
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} within {_START_SECONDS:.0f} s; see its log in the workspace")
        time.sleep(_LOOK_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM to its session, then KILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS if number == signal.SIGTERM else 10)
            if number == signal.SIGKILL:
                return


def _alive_workers(url: str) -> int | None:
    """Return the number of living workers; None: the master does not answer yet."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            workers: list[dict[str, str]] = json.load(answer)["workers"]
            return len([worker for worker in workers if worker["state"] == "ALIVE"])
    except (OSError, ValueError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _processes() -> list[tuple[int, str]]:
    """(process id, command line) of all that can be seen."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append((int(directory.name), command))
    return found


def _is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
