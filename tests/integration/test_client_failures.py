"""What a client keeps when processes die under it. Nothing acknowledged is lost; what was under way comes at least once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

import pytest

from quiver_actors.base.model import Receipt
from quiver_actors.client import Client
from quiver_actors.errors import Draining, NotRunning, WorkerUnavailable
from tests.integration.client_node import client_node, consume_until, numbers, take

pytestmark = pytest.mark.crash


class Pusher:
    """Pushes numbered bundles in a thread until it is told to stop; `receipts` are those of the acknowledged ones."""

    def __init__(self, client: Client, *, bundles_at_once: int, first: int = 0) -> None:
        self.receipts: dict[int, Receipt] = {}
        self.error: BaseException | None = None
        self._client = client
        self._bundles = bundles_at_once
        self._next = first
        self._stop = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                ids = range(self._next, self._next + self._bundles)
                receipts = self._client.push_many(numbers(n) for n in ids)
                with self._progress:
                    self.receipts.update(zip(ids, receipts, strict=True))
                    self._progress.notify_all()
                self._next += self._bundles
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            with self._progress:
                self.error = error
                self._progress.notify_all()

    def wait_for_more(self, count: int) -> None:
        """Wait until so many bundles more are acknowledged."""
        wanted = len(self.receipts) + count
        with self._progress:
            assert self._progress.wait_for(lambda: self.error or len(self.receipts) >= wanted, 90), "no progress"

    def stop(self) -> set[int]:
        """The ids of everything that was acknowledged."""
        self._stop.set()
        self._thread.join(90)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        return set(self.receipts)


@pytest.mark.parametrize("bundles_at_once", [1, 500])
def test_killed_worker_loses_nothing_that_was_acknowledged(bundles_at_once: int) -> None:
    with client_node() as node, node.connect() as client, client.subscribe("exporter") as subscription:
        pusher = Pusher(client, bundles_at_once=bundles_at_once)
        for _ in range(3):
            pusher.wait_for_more(20)
            node.kill_worker(0)
        pusher.wait_for_more(20)
        acknowledged = pusher.stop()
        found = consume_until(subscription, acknowledged)
        assert set(found) == acknowledged
        # A bundle that is pushed again may stand in the log twice, but each place only once.
        places = [receipt.bundle_id for receipt in pusher.receipts.values()]
        assert len(set(places)) == len(places)


def test_a_range_goes_over_killed_workers() -> None:
    """A crash makes segment numbers jump, and nothing is missing where they do."""
    with client_node() as node, node.connect() as client:
        client.subscribe("keeper").close()
        receipts: list[Receipt] = []
        for round_number in range(3):
            receipts += client.push_many(numbers(n) for n in range(round_number * 10, round_number * 10 + 10))
            node.kill_worker(0)
        (receipt,) = client.push_many([numbers(30)])
        client.flush()
        core = receipt.bundle_id.core
        ids = [r.bundle_id for r in (*receipts, receipt) if r.bundle_id.core == core]
        assert len({bundle_id.segment_seq for bundle_id in ids}) > 1
        assert max(ids).segment_seq - min(ids).segment_seq >= len({bundle_id.segment_seq for bundle_id in ids})
        assert [bundle.bundle_id for bundle in client.read("default", core)] == ids
        assert [bundle.bundle_id for bundle in client.read("default", core, ids[3], ids[-1])] == ids[3:-1]


def test_consumer_goes_on_over_killed_workers() -> None:
    with (
        client_node(cores=2) as node,
        node.connect() as client,
        client.subscribe("exporter", prefetch=8) as subscription,
    ):
        expected = set(range(400))
        for n in sorted(expected):
            client.push(numbers(n), key=str(n))
        found = []
        for round_number in range(4):
            for delivery in take(subscription, 30):
                with delivery:
                    found.append(delivery.batch.column("id")[0].as_py())
            node.kill_worker(round_number % 2)
        found += consume_until(subscription, expected - set(found))
        assert set(found) == expected
        subscription.flush()


def test_a_flush_knows_what_a_killed_worker_had_not_made_durable() -> None:
    with client_node() as node, node.connect() as client, client.subscribe("exporter") as subscription:
        client.push_many([numbers(n) for n in range(2)])
        first, second = take(subscription, 2)
        first.ack().wait()
        node.signal_worker(0, signal.SIGSTOP)
        second.ack()
        node.kill_worker(0)
        with pytest.raises(WorkerUnavailable, match="1 bundles are delivered again"):
            subscription.flush()
        (again,) = take(subscription, 1)
        assert again.bundle_id == second.bundle_id
        again.ack()
        subscription.flush()
        assert subscription.all_drained()


def test_killed_supervisor_is_found_again_when_it_is_back() -> None:
    with client_node(cores=2) as node, node.connect() as client, client.subscribe("exporter") as subscription:
        pusher = Pusher(client, bundles_at_once=10)
        pusher.wait_for_more(50)
        node.kill_supervisor()
        node.restart()
        pusher.wait_for_more(50)
        acknowledged = pusher.stop()
        assert set(consume_until(subscription, acknowledged)) == acknowledged


def test_node_that_comes_back_with_more_workers_is_used_whole() -> None:
    with client_node(cores=1) as node, node.connect() as client, client.subscribe("exporter") as subscription:
        client.push(numbers(0))
        node.kill_supervisor()
        node.restart(cores=2)
        take(subscription, 1)[0].ack()
        cores = {client.push(numbers(n), key=str(n)).bundle_id.core for n in range(1, 20)}
        assert cores == {0, 1}
        assert set(consume_until(subscription, set(range(1, 20)))) >= set(range(1, 20))


def test_killed_producer_disturbs_nobody() -> None:
    with client_node() as node, node.connect() as client, client.subscribe("exporter") as subscription:
        acknowledged, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                for n in range(1_000_000):
                    client.push_many([numbers(10_000_000 + n), numbers(20_000_000 + n)])
                    os.write(tell, b".")
            finally:
                os._exit(1)
        pusher = Pusher(client, bundles_at_once=5)
        count = 0
        while count < 20:
            count += len(os.read(acknowledged, 20 - count))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        pusher.wait_for_more(20)
        wanted = pusher.stop() | {base + n for n in range(20) for base in (10_000_000, 20_000_000)}
        assert wanted <= set(consume_until(subscription, wanted))
        os.close(acknowledged)
        os.close(tell)


def test_stopped_node_says_that_it_stopped() -> None:
    with client_node() as node, node.connect(timeout=0.5) as client:
        client.push(numbers(1))
        assert node.process.stop() == 0
        with pytest.raises((WorkerUnavailable, Draining), match="quiver"):
            client.push(numbers(2), timeout=0.5)
        for call in _calls(client):
            with pytest.raises(WorkerUnavailable, match="no node is running"):
                call()
        with pytest.raises(NotRunning):
            node.connect()


def _calls(client: Client) -> list[Callable[[], object]]:
    return [client.flush, client.segments, lambda: client.read_segment(0, "default", 0)]


def test_push_outlasts_a_restart_of_the_node() -> None:
    with client_node() as node, node.connect() as client:
        client.push(numbers(1))
        node.process.stop()
        pusher = Pusher(client, bundles_at_once=1, first=2)
        node.restart()
        pusher.wait_for_more(3)
        acknowledged = pusher.stop()
        with client.subscribe("exporter", start="earliest") as subscription:
            consume_until(subscription, {1, *acknowledged})


def test_worker_killed_under_a_large_bundle_stores_it_whole() -> None:
    with client_node() as node, node.connect() as client, client.subscribe("exporter") as subscription:
        client.push(numbers(1))
        pusher = threading.Thread(target=lambda: client.push(numbers(2, 10_000_000)))
        pusher.start()
        node.kill_worker(0)
        pusher.join(60)
        assert not pusher.is_alive()
        rows = {}
        while 2 not in rows:
            (delivery,) = take(subscription, 1)
            with delivery:
                rows[delivery.batch.column("id")[0].as_py()] = delivery.row_count
        assert rows[2] == 10_000_000
