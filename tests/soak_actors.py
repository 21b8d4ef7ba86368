"""What else goes on at a node in the soak (`tests.soak`): very small bundles, clients that come and go, topics, transactions.

Each actor is a thread that repeats one step until it is told to stop, and keeps a `Ledger` of a topic: every bundle that was acknowledged,
or committed, is delivered; nothing of an abandoned transaction is. A step that meets an error of the node is made again.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import pyarrow as pa

from quiver_actors.client import Client
from quiver_actors.errors import QuiverError

TOPICS = ("small", "churn", "transactions")
_SMALL_GROUP = 64
_STEPS_PER_SECOND = 10.0
"""Steps that each actor takes in a second."""
_LIVE_SECONDS = 20.0
"""Lifetime of a consumer; then another one comes."""


class GivenUp(Exception):
    """Ends a transaction that is to leave nothing."""


def small(number: int) -> pa.RecordBatch:
    return pa.record_batch({"number": pa.array([number], pa.int64())})


class Ledger:
    """Numbers that a topic owes its reader; those that have arrived are forgotten, so that it does not grow with the hours."""

    def __init__(self, failures: list[str], topic: str) -> None:
        self.topic = topic
        self.mutex = threading.Lock()
        self.owed: set[int] = set()
        self._early: set[int] = set()
        """Came before their push was answered."""
        self._failures = failures

    def promised(self, numbers: range) -> None:
        with self.mutex:
            for number in numbers:
                if number in self._early:
                    self._early.remove(number)
                else:
                    self.owed.add(number)

    def arrived(self, number: int) -> None:
        with self.mutex:
            if number < 0:
                self._failures.append(f"topic {self.topic} delivers {number}, of a transaction that was given up")
            elif number in self.owed:
                self.owed.remove(number)
            else:
                self._early.add(number)
                if len(self._early) > 10_000:
                    # Delivered again after a kill: nobody will promise these a second time.
                    self._early.clear()


class Actors:
    """All of them. `connect` gives a new client; `counts` is added to."""

    def __init__(
        self, connect: Callable[[], Client], is_over: threading.Event, counts: Counter[str], failures: list[str]
    ) -> None:
        self._connect = connect
        self._is_over = is_over
        self._is_drained = threading.Event()
        self._counts = counts
        self._ledgers = {topic: Ledger(failures, topic) for topic in TOPICS}
        self._numbers = dict.fromkeys(TOPICS, 0)
        self._random = Random(1)

    def targets(self) -> list[Callable[[], None]]:
        """What each thread runs."""
        steps = (self._push_small, self._come_and_go, self._change_topics, self._transact)
        readers = [self._reader(topic) for topic in TOPICS]
        return [*(self._repeated(step) for step in steps), *readers]

    @property
    def owed(self) -> int:
        return sum(len(ledger.owed) for ledger in self._ledgers.values())

    def drained(self) -> None:
        """Everything has come that will: the readers end."""
        self._is_drained.set()

    def _repeated(self, step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            while not self._is_over.wait(1 / _STEPS_PER_SECOND):
                with contextlib.suppress(QuiverError):
                    step()
                    self._counts[step.__name__.lstrip("_")] += 1

        return run

    def _take(self, topic: str, count: int) -> range:
        first = self._numbers[topic]
        self._numbers[topic] += count
        return range(first, first + count)

    def _push_small(self) -> None:
        with self._connect() as client:
            for _ in range(50):
                numbers = self._take("small", _SMALL_GROUP)
                client.push_many([small(number) for number in numbers], topic="small")
                self._ledgers["small"].promised(numbers)
                if self._is_over.wait(0.02):
                    return

    def _come_and_go(self) -> None:
        numbers, name = self._take("churn", 1), f"guest{self._numbers['churn'] % 50}"
        with self._connect() as client:
            with client.subscribe(name, topic="churn", start="latest") as subscription:
                client.push(small(numbers[0]), topic="churn")
                self._ledgers["churn"].promised(numbers)
                delivery = subscription.get(timeout=5.0)
                if delivery is not None:
                    delivery.ack()
            client.unsubscribe(name, topic="churn")

    def _change_topics(self) -> None:
        name = f"brief{self._counts['change_topics']}"
        with self._connect() as client:
            client.create_topic(name)
            try:
                client.push(small(1), topic=name)
                client.subscribe("s", topic=name, start="earliest").close()
            finally:
                client.delete_topic(name)
        self._is_over.wait(1.0)

    def _transact(self) -> None:
        numbers = self._take("transactions", 2)
        is_given_up = self._random.random() < 0.3
        signs = -1 if is_given_up else 1
        while not self._is_over.is_set():
            with contextlib.suppress(QuiverError, GivenUp), self._connect() as client:
                with client.transaction(f"soak-{time.time_ns()}-{numbers[0]}", timeout=60.0) as transaction:
                    for number in numbers:
                        transaction.push(small(signs * (number + 1) - (1 - signs) // 2), topic="transactions")
                    if is_given_up:
                        raise GivenUp
                self._ledgers["transactions"].promised(range(numbers[0] + 1, numbers[-1] + 2))
                return
            if is_given_up:
                return

    def _reader(self, topic: str) -> Callable[[], None]:
        ledger = self._ledgers[topic]

        def run() -> None:
            while not self._is_drained.is_set():
                with contextlib.suppress(QuiverError), self._connect() as client:
                    subscription = client.subscribe("reader", topic=topic, start="earliest")
                    until = time.monotonic() + _LIVE_SECONDS
                    while time.monotonic() < until and not self._is_drained.is_set():
                        for delivery in subscription.get_many(1024, timeout=0.5):
                            ledger.arrived(delivery.batch.column("number")[0].as_py())
                            delivery.ack()
                    subscription.close()

        return run
