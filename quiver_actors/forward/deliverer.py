"""What a forwarder asks of whoever delivers, and what it asks of a subscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from quiver_actors.client.delivery import Delivery


class Outcome(NamedTuple):
    """What became of one delivery that was offered. It is durable at its destination if `error` is None."""

    delivery: Delivery
    error: Exception | None = None


@runtime_checkable
class Deliverer(Protocol):
    """Takes deliveries and says later, in any order, what became of each. Called by one thread; never resolves a delivery itself."""

    def offer(self, delivery: Delivery) -> None:
        """Take one delivery on. An exception is its outcome."""

    def hurry(self) -> None:
        """No more will come before some of those offered have an outcome, or `finish_at_ns` has come: do not wait for more."""

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        """What has been decided since the last call; waits up to that long for the first one if nothing has been."""

    @property
    def finish_at_ns(self) -> int | None:
        """When `hurry` must be called at the latest (monotonic clock), None where nothing waits for it."""

    def close(self) -> None:
        """Forget what has no outcome yet and give resources back. Idempotent."""


class Source(Protocol):
    """The part of a `Subscription` that a forwarder uses."""

    def get(self, timeout: float | None = None) -> Delivery | None: ...

    def flush(self, timeout: float = 10.0) -> None: ...

    def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> Sequence[Delivery]: ...
