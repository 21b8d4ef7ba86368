"""Forwarding on a real node: what is in the files after forwarders and workers were killed, and what retries do."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from quiver_actors.client import Client, Delivery
from quiver_actors.forward import Backoff, Forwarder, PermanentFailure, TransientFailure
from tests.integration.client_node import ClientNode, first_id, node_fixture, numbers
from tests.integration.forwarder_process import SUBSCRIBER
from tests.integration.node_process import DEADLINE_SECONDS, ROOT, command_line

BUNDLES = 2000
ROWS = 3


node = node_fixture(cores=2, scope="function")


@contextmanager
def forwarder(node: ClientNode, directory: Path, end: str) -> Iterator[subprocess.Popen[bytes]]:
    """A forwarder process that has subscribed."""
    command = command_line("tests.integration.forwarder_process", str(node.directories.run), str(directory), end)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


def push(client: Client, first: int, count: int) -> None:
    """Distinct rows, over both cores."""
    for key in range(2):
        client.push_many([numbers(n * ROWS, ROWS) for n in range(first, first + count) if n % 2 == key], key=str(key))


def ids(directory: Path) -> list[int]:
    """Return the ids of all bundles that a reader of the data set finds, duplicates too."""
    found: list[int] = []
    for path in (directory / "numbers").glob("[!.]*.parquet"):
        found += pq.read_table(path).column("id").to_pylist()
    return sorted(found)


def wait_files(directory: Path, count: int) -> None:
    """Wait until there are so many finished files."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while len(list(directory.glob("numbers/[!.]*.parquet"))) < count:
        assert time.monotonic() < deadline, f"{count} files did not come"


def test_no_row_is_lost_or_doubled_whatever_is_killed(node: ClientNode, tmp_path: Path) -> None:
    draw = random.Random(7)
    with node.connect() as client:
        client.subscribe(SUBSCRIBER, start="earliest").close()
        for number in range(4):
            push(client, number * BUNDLES // 4, BUNDLES // 4)
            files = len(list(tmp_path.glob("numbers/*.parquet")))
            with forwarder(node, tmp_path, "killed") as process:
                wait_files(tmp_path, files + draw.randint(1, 5))
                if number == 2:
                    node.kill_worker(0)
                process.kill()
                process.wait(DEADLINE_SECONDS)
        with forwarder(node, tmp_path, "idle") as process:
            assert process.wait(DEADLINE_SECONDS) == 0
        assert ids(tmp_path) == list(range(BUNDLES * ROWS))
        with client.subscribe(SUBSCRIBER) as rest:
            assert rest.get(0.2) is None


def test_a_file_whose_acknowledgement_was_lost_is_not_written_twice(node: ClientNode, tmp_path: Path) -> None:
    with node.connect() as client:
        client.subscribe(SUBSCRIBER, start="earliest").close()
        push(client, 0, 1000)
        for _ in range(3):
            with forwarder(node, tmp_path, "after-file") as process:
                assert process.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        with forwarder(node, tmp_path, "idle") as process:
            assert process.wait(DEADLINE_SECONDS) == 0
    assert ids(tmp_path) == list(range(1000 * ROWS))


def test_two_forwarders_share_a_directory(node: ClientNode, tmp_path: Path) -> None:
    with node.connect() as client:
        client.subscribe(SUBSCRIBER, start="earliest").close()
        push(client, 0, BUNDLES)
        with forwarder(node, tmp_path, "idle") as one, forwarder(node, tmp_path, "idle") as other:
            wait_files(tmp_path, 3)
            one.kill()
            assert other.wait(DEADLINE_SECONDS) == 0
    assert ids(tmp_path) == list(range(BUNDLES * ROWS))


def test_a_stopped_forwarder_finishes_what_it_has_and_the_next_one_goes_on(node: ClientNode, tmp_path: Path) -> None:
    with node.connect() as client:
        client.subscribe(SUBSCRIBER, start="earliest").close()
        push(client, 0, 500)
        with forwarder(node, tmp_path, "killed") as process:
            wait_files(tmp_path, 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_SECONDS) == 0
        assert not list(tmp_path.glob("numbers/.writing*"))
        with forwarder(node, tmp_path, "idle") as process:
            assert process.wait(DEADLINE_SECONDS) == 0
    assert ids(tmp_path) == list(range(500 * ROWS))


def test_failures_are_retried_or_dropped_and_others_go_past_them(node: ClientNode) -> None:
    attempts: list[int] = []

    def deliver(delivery: Delivery) -> None:
        number = first_id(delivery)
        attempts.append(number)
        if number == 1 and attempts.count(1) < 4:
            raise TransientFailure("down")
        if number == 2:
            raise PermanentFailure("never")

    with node.connect() as client, client.subscribe("caller") as subscription:
        client.push_many([numbers(n) for n in range(20)], key="k")
        statistics = Forwarder(subscription, deliver, retry=Backoff(initial=0.02, jitter=0)).run(idle_timeout=5)
        assert (statistics.delivered, statistics.deferred, statistics.rejected) == (19, 3, 1)
        assert attempts[:20] == list(range(20))
        assert attempts[20:] == [1, 1, 1]
    with node.connect() as client, client.subscribe("caller") as subscription:
        assert subscription.get(0.2) is None


def test_leases_are_kept_while_a_delivery_is_under_way(node: ClientNode) -> None:
    arrived: Future[object] = Future()
    offered = threading.Event()

    def deliver(delivery: Delivery) -> Future[object]:
        offered.set()
        return arrived

    with node.connect() as client, client.subscribe("slow", lease=2.0) as subscription, ThreadPoolExecutor() as pool:
        forwarder = Forwarder(subscription, deliver)
        running = pool.submit(forwarder.run)
        try:
            client.push(numbers(1))
            assert offered.wait(DEADLINE_SECONDS)
            with client.subscribe("slow", lease=2.0) as other:
                assert other.get(4) is None, "the lease ran out"
            arrived.set_result(None)
        finally:
            assert forwarder.drain(10)
        statistics = running.result(DEADLINE_SECONDS)
        assert (statistics.delivered, statistics.lost) == (1, 0)
