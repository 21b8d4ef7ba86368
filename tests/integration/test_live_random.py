"""Random calls of two subscribers of an open topic, with seals and rotations in between, against a model of what each of them is owed."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery
from quiver_actors.errors import AlreadyResolved, NotClaimed
from tests.integration.client_node import client_node, first_id
from tests.integration.live_node import ids_read

CONFIG = '[segment]\nmax_open_duration = "1h"\ntarget_size = "256KiB"\n'
STEPS = 250


class Modelled:
    """A subscriber, what it has resolved, and what it holds."""

    def __init__(
        self, client: Client, name: str, chance: random.Random, places: Sequence[BundleId], window: int | None
    ) -> None:
        """
        Args:
            places: of all bundles that were pushed, by number; it grows.
            window: in bytes.
        """
        self._client, self._name, self._chance, self._places, self._window = client, name, chance, places, window
        self.resolved: set[int] = set()
        self.held: dict[int, Delivery] = {}
        self._subscribe()

    def _subscribe(self) -> None:
        options = {"prefetch": 8, "lease": None, "start": "earliest", "max_in_flight_bytes": self._window}
        self.subscription = self._client.subscribe(self._name, **options)  # type: ignore[call-overload]

    def _took(self, delivery: Delivery) -> int:
        number = first_id(delivery)
        assert delivery.bundle_id == self._places[number]
        assert number not in self.resolved, "it comes after it was resolved"
        assert number not in self.held, "it comes while it is held"
        self.held[number] = delivery
        return number

    def get(self) -> None:
        for _ in range(self._chance.randrange(1, 12)):
            delivery = self.subscription.get(0.003)
            if delivery is not None:
                self._took(delivery)

    def resolve(self) -> None:
        for number in self._chance.sample(sorted(self.held), self._chance.randrange(len(self.held) + 1)):
            delivery, outcome = self.held.pop(number), self._chance.randrange(4)
            if outcome == 0:
                delivery.defer()
                continue
            (delivery.reject if outcome == 1 else delivery.ack)()
            self.resolved.add(number)

    def claim(self) -> None:
        number = self._chance.randrange(len(self._places))
        is_resolved, was_resolved = False, number in self.resolved
        with contextlib.suppress(NotClaimed):
            try:
                delivery = self.subscription.claim(self._places[number], timeout=60)
            except AlreadyResolved:
                is_resolved = True
            else:
                assert self._took(delivery) == number
        assert is_resolved == was_resolved

    def ack_through(self) -> None:
        self.subscription.flush(60)
        last = self._places[self._chance.randrange(len(self._places) // 2, len(self._places))]
        self.subscription.ack_through(last, 60)
        gone = {number for number, place in enumerate(self._places) if place <= last}
        self.resolved |= gone
        self.held = {number: delivery for number, delivery in self.held.items() if number not in gone}

    def reopen(self) -> None:
        self.subscription.flush(60)
        self.subscription.close()
        self.held.clear()
        self._subscribe()

    def check(self) -> None:
        assert self.subscription.flush(60) == []
        assert self.subscription.pending_count(60) == len(self._places) - len(self.resolved)

    def finish(self) -> None:
        """Everything that it is owed comes, and nothing else."""
        for number, delivery in self.held.items():
            delivery.ack()
            self.resolved.add(number)
        self.held.clear()
        while len(self.resolved) < len(self._places):
            delivery = self.subscription.get(60)
            assert delivery is not None, f"{set(range(len(self._places))) - self.resolved} are missing"
            number = self._took(delivery)
            self.held.pop(number).ack()
            self.resolved.add(number)
        self.check()
        assert self.subscription.all_drained(60)


def batch_of(number: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array([number] + [0] * rows, pa.int64())})


@pytest.mark.parametrize("seed", range(3))
def test_each_subscriber_gets_exactly_what_it_is_owed(seed: int) -> None:
    chance = random.Random(seed)
    places: list[BundleId] = []
    with client_node(config=CONFIG) as node, node.connect() as client:
        client.subscribe("keeper").close()
        models = [
            Modelled(client, name, chance, places, window) for name, window in (("plain", None), ("window", 60_000))
        ]

        def push() -> None:
            first, count = len(places), chance.choice([1, 1, 3, 20])
            batches = [batch_of(number, chance.choice([0, 10, 1000, 5000])) for number in range(first, first + count)]
            places.extend(receipt.bundle_id for receipt in client.push_many(batches))

        push()
        for step in range(STEPS):
            model = chance.choice(models)
            calls: dict[Callable[[], None], int] = {push: 30, client.flush: 5, model.get: 40, model.resolve: 35}
            calls |= {model.claim: 5, model.ack_through: 1, model.reopen: 2}
            (call,) = chance.choices(list(calls), list(calls.values()))
            call()
            if step % 20 == 0:
                for each in models:
                    each.check()
        for each in models:
            each.finish()
        assert ids_read(client) == list(range(len(places)))
