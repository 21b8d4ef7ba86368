"""Twenty rounds of kills: each process of a write, at each step of the commit. Published rows = source, by key and content."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from quiver_actors.client import Client, connect
from quiver_actors.spark.testing import ClusterNode, StandaloneCluster
from tests.cluster.looking import rows, staged
from tests.integration.node_process import ROOT
from tests.integration.spark_node import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.cluster,
    pytest.mark.timeout(1500),
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

TOPIC = "rounds"
TTL_SECONDS = 60
ROWS = 2000
ANSWER_SECONDS = 300
VICTIMS = ("driver", "executor", "python worker", "quiver worker", "supervisor")
STEPS = ("begun", "prepared", "decided", "published")
ROUNDS = list(itertools.product(VICTIMS, STEPS))


class Driver:
    """The process that writes; started anew after it was killed."""

    def __init__(self, cluster: StandaloneCluster) -> None:
        self._cluster = cluster
        self.start()

    def start(self) -> None:
        settings = self._cluster.settings(spark__task__maxFailures="8")
        self.answers: queue.Queue[str] = queue.Queue()
        with self._cluster.log_of("driver").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.driver", json.dumps(settings)],
                cwd=ROOT,
                env={**os.environ, **self._cluster.driver_environment()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._read, args=(self._process, self.answers), daemon=True).start()
        assert self.answers.get(timeout=ANSWER_SECONDS) == "ready"

    def ask(self, job: dict[str, object]) -> None:
        if self._process.poll() is not None:
            self.start()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """The Python program and its JVM at once. What they have forked dies by itself, or finishes what it was at."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    @staticmethod
    def _read(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                answers.put(line.strip())
        answers.put("dead")


@pytest.fixture(scope="module")
def driver(cluster: StandaloneCluster) -> Iterator[Driver]:
    driver = Driver(cluster)
    yield driver
    driver.kill()


class Steps:
    """Progress of a write, seen from outside."""

    def __init__(self, cluster: StandaloneCluster, clients: list[Client], version: int) -> None:
        self._clients = clients
        self._txn_id = f"{TOPIC}.round-{version}"
        self._decisions = cluster.nodes / "_quiver_decisions"
        self._bundles_before = self._bundles()

    def has_reached(self, step: str) -> bool:
        if step == "begun":
            return bool(self._states())
        if step == "prepared":
            return "prepared" in self._states()
        if step == "decided":
            return any(self._decisions.glob(f"{self._txn_id}.*.json"))
        return self._bundles() > self._bundles_before

    def _states(self) -> list[str]:
        stages = [stage for client in self._clients for found in client.staged(TOPIC).values() for stage in found]
        return [stage.state for stage in stages if stage.txn_id == self._txn_id]

    def _bundles(self) -> int:
        segments = [info for client in self._clients for infos in client.segments(TOPIC).values() for info in infos]
        return sum(info.bundle_count for info in segments)


def kill(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def ending(victim: str, host: ClusterNode, driver: Driver) -> Callable[[], None]:
    quiver_workers = host.quiver_worker_pids()
    return {
        "driver": driver.kill,
        "executor": lambda: kill(host.executor_pids()),
        "python worker": lambda: kill(host.python_worker_pids()),
        "quiver worker": lambda: kill(quiver_workers),
        "supervisor": host.restart_node,
    }[victim]


def finish(driver: Driver, job: dict[str, object]) -> list[str]:
    """Wait for the answer; a driver that died or failed does the same write again, as whoever runs it would. What went wrong on the way."""
    troubles: list[str] = []
    for _ in range(4):
        answer = driver.answers.get(timeout=ANSWER_SECONDS)
        if answer == "done":
            return troubles
        troubles.append(answer)
        driver.ask(job)
    raise AssertionError(f"the write was never done: {troubles}")


def expected_rows(rounds: Iterable[int]) -> list[tuple[Any, ...]]:
    ids = [number * 10_000 + n for number in rounds for n in range(ROWS)]
    return [(n, hashlib.md5(str(n).encode()).hexdigest()) for n in ids]


def all_rows(cluster: StandaloneCluster) -> list[tuple[Any, ...]]:
    return [row for host in cluster.hosts for row in rows(host, TOPIC)]


@pytest.mark.parametrize("number", range(len(ROUNDS)), ids=[f"{victim}-{step}" for victim, step in ROUNDS])
def test_a_round(cluster: StandaloneCluster, driver: Driver, number: int) -> None:
    victim, step = ROUNDS[number]
    chance = random.Random(number)
    host = chance.choice(cluster.hosts)
    options = {"topic": TOPIC, "txnAppId": "round", "txnVersion": str(number), "stageTtl": f"{TTL_SECONDS}s"}
    job: dict[str, object] = {"first": number * 10_000, "count": ROWS, "options": {**options, "bundleBytes": "1KiB"}}
    try:
        with contextlib.ExitStack() as open_clients:
            clients = [open_clients.enter_context(connect(each.run_dir)) for each in cluster.hosts]
            steps = Steps(cluster, clients, number)
            end = ending(victim, host, driver)
            driver.ask(job)
            wait_until(lambda: steps.has_reached(step) or not driver.answers.empty(), step, ANSWER_SECONDS)
        threading.Event().wait(chance.choice((0.0, 0.05, 0.3)))
        end()
        troubles = finish(driver, job)
    except BaseException:
        # Its answer is not to be taken for that of the next round.
        driver.kill()
        raise
    found = sorted(row for row in all_rows(cluster) if row[0] // 10_000 == number)
    assert found == expected_rows([number]), f"{victim} on {host.name} when {step}: {troubles}"


def test_after_all_rounds_the_topic_is_the_source(cluster: StandaloneCluster) -> None:
    assert sorted(all_rows(cluster)) == expected_rows(range(len(ROUNDS)))


def test_orphans_are_gone_after_their_time(cluster: StandaloneCluster) -> None:
    wait_until(lambda: not any(staged(host, TOPIC) for host in cluster.hosts), "the end of orphans", 4 * TTL_SECONDS)
