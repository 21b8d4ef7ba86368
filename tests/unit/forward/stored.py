"""Bundles without a node: they note how they are resolved, and come again when they are deferred."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.client import Delivery
from quiver_actors.errors import NotClaimed


class Stored:
    """One delivery of one bundle."""

    def __init__(
        self,
        number: int,
        slots: Mapping[int, pa.RecordBatch] | None = None,
        *,
        core: int = 0,
        delivery_count: int = 1,
        incarnation: bytes | None = bytes(range(16)),
    ) -> None:
        self.bundle_id = BundleId("clicks", core, number // 100, number % 100)
        self.number = number
        self.slots = slots or {0: pa.record_batch({"n": [number]})}
        self.delivery_count = delivery_count
        self.incarnation = incarnation
        self.resolution = ""
        self.delay_seconds = 0.0
        self.claim_has_ended = False
        self.lease_until_ns: int | None = None

    @property
    def slot_ids(self) -> tuple[int, ...]:
        return tuple(self.slots)

    @property
    def batch(self) -> pa.RecordBatch:
        """The batch of the only slot."""
        (batch,) = self.slots.values()
        return batch

    def __getitem__(self, slot: str | int) -> pa.RecordBatch:
        return self.slots[slot if isinstance(slot, int) else NAMES[slot]]

    def __contains__(self, slot: str | int) -> bool:
        return NAMES.get(slot, slot) in self.slots

    def verify(self) -> None:
        """Do nothing: the bundle is in memory, out of reach of damage."""

    def ack(self) -> None:
        self._resolve("ack")

    def reject(self) -> None:
        self._resolve("reject")

    def defer(self, delay_seconds: float = 0) -> None:
        self.delay_seconds = delay_seconds
        self._resolve("defer")

    def _resolve(self, resolution: str) -> None:
        if self.resolution or self.claim_has_ended:
            raise NotClaimed("not claimed (any more)")
        self.resolution = resolution


NAMES: dict[object, int] = {"flights": 0, "weather": 1}


def as_delivery(stored: Stored) -> Delivery:
    return cast(Delivery, stored)


class SealedSegments:
    """A source of what it was given, in order; `flushed` says what was resolved when `flush` was called last."""

    def __init__(self, *stored: Stored) -> None:
        self.waiting = deque(stored)
        self.all = list(stored)
        self.flushed: list[str] = []
        self.error: Exception | None = None
        self.lease_ns = 0
        self.extended: list[int] = []
        """Number of deliveries that each call named."""

    def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> Sequence[Delivery]:
        held = list(deliveries)
        self.extended.append(len(held))
        for each in held:
            cast(Stored, each).lease_until_ns = time.monotonic_ns() + self.lease_ns
        return []

    def get(self, timeout: float | None = None) -> Delivery | None:
        if self.error is not None:
            raise self.error
        if not self.waiting:
            return None
        stored = self.waiting.popleft()
        stored.lease_until_ns = time.monotonic_ns() + self.lease_ns if self.lease_ns else None
        return as_delivery(stored)

    def flush(self, timeout: float = 10.0) -> None:
        self.flushed = self.resolutions()

    def resolutions(self) -> list[str]:
        return [stored.resolution for stored in self.all]
