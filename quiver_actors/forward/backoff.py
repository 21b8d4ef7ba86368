"""The delay before a bundle is offered again."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from quiver_actors.errors import UsageError


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that grow from `initial` to `max` seconds, each shortened at random by up to the fraction `jitter`.

    Raises:
        UsageError: a value is out of range.
    """

    initial: float = 1.0
    max: float = 30.0
    multiplier: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.initial <= self.max or self.multiplier < 1 or not 0 <= self.jitter <= 1:
            raise UsageError(f"{self} is not possible: expected 0 <= initial <= max, multiplier >= 1, 0 <= jitter <= 1")

    def delay_seconds(self, attempts: int, draw: Callable[[], float] = random.random) -> float:
        """The delay after so many attempts (at least 1), all failed. `draw`: a number from 0 to 1."""
        # Compared before it is computed: the power of a large number of attempts overflows.
        delay = self.initial
        for _ in range(attempts - 1):
            if delay >= self.max or self.multiplier == 1:
                break
            delay *= self.multiplier
        return min(delay, self.max) * (1 - self.jitter * draw())
