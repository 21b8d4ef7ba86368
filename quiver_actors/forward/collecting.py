"""The common part of deliverers that collect bundles and finish them together: when they do so, and outcomes that are not fetched yet."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, Self, TypeVar

from quiver_actors.base.units import SECOND_NS
from quiver_actors.client.delivery import Delivery
from quiver_actors.errors import UsageError
from quiver_actors.forward.deliverer import Outcome

T = TypeVar("T")


class CollectingDeliverer(ABC, Generic[T]):
    """A deliverer whose bundles are finished when they are many enough, or when the oldest has waited long enough. One thread at a time.

    `T` is what is kept of a delivery until then.
    """

    def __init__(self, target_bytes: int, max_age: float) -> None:
        """
        Args:
            target_bytes: bundles are finished when so much has been collected, counted as Arrow has it.
            max_age: or when the oldest has waited so many seconds.

        Raises:
            UsageError: the numbers make no sense.
        """
        if target_bytes < 1 or max_age < 0:
            raise UsageError("target_bytes must be at least 1 and max_age not negative")
        self._target_bytes = target_bytes
        self._max_age_ns = round(max_age * SECOND_NS)
        self._taken: dict[int, T] = {}
        """The key is the `id` of the delivery."""
        self._taken_bytes = 0
        self._taken_since_ns = 0
        self._outcomes: list[Outcome] = []

    @abstractmethod
    def offer(self, delivery: Delivery) -> None:
        """Collect one bundle; it is finished with others."""

    def hurry(self) -> None:
        """Finish now what was collected, whatever its size and age."""
        if self._taken:
            self._finish_taken()

    def outcomes(self, timeout_seconds: float) -> Sequence[Outcome]:
        """Return the outcomes known so far, without waiting: `offer` and `hurry` decide all of them."""
        found, self._outcomes = self._outcomes, []
        return found

    @property
    def finish_at_ns(self) -> int | None:
        """Monotonic time at which the collected bundles are finished because of their age; None if there are none."""
        return self._taken_since_ns + self._max_age_ns if self._taken else None

    def close(self) -> None:
        """Forget what was not finished, without an outcome for its bundles. Idempotent."""
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _take(self, delivery: Delivery, kept: T, size_bytes: int) -> None:
        """Collect a bundle, and finish all of them if they are many enough."""
        if not self._taken:
            self._taken_since_ns = time.monotonic_ns()
        self._taken[id(delivery)] = kept
        self._taken_bytes += size_bytes
        if self._taken_bytes >= self._target_bytes:
            self._finish_taken()

    def _finish_taken(self) -> None:
        self._outcomes += self._finish()
        self._forget()

    @abstractmethod
    def _finish(self) -> Iterable[Outcome]:
        """Write what was collected, and return the outcome of each of its bundles."""

    def _forget(self) -> None:
        self._taken.clear()
        self._taken_bytes = 0
