"""The calls of a forwarder to a deliverer, and to a subscription."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from quiver_actors.client.delivery import Delivery


class Outcome(NamedTuple):
    """Outcome of one delivery that was offered. It is durable at its destination if `error` is None."""

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
        """Return the outcomes since the last call; without any, wait up to `timeout_seconds` for the first one."""

    @property
    def finish_at_ns(self) -> int | None:
        """When `hurry` must be called at the latest (monotonic clock), None where nothing waits for it."""

    def close(self) -> None:
        """Forget what has no outcome yet and give resources back. Idempotent."""


class Source(Protocol):
    """The part of a `Subscription` that a forwarder uses."""

    def get(self, timeout: float | None = None) -> Delivery | None:
        """Return the next delivery, or None if none came within `timeout` seconds (None: wait for ever)."""

    def flush(self, timeout: float = 10.0) -> object:
        """Return when everything resolved so far is durable; `timeout` in seconds."""

    def extend(self, deliveries: Iterable[Delivery], timeout: float = 10.0) -> Sequence[Delivery]:
        """Begin the leases of deliveries again, and return those that are not held any more."""
