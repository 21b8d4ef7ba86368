"""The pressure on a worker, as one figure from 0 to 1, and the measures that it takes before it refuses pushes.

The figure is the highest of its signals, each 0 at its ease and 1 at its limit. It rises at once and falls by a fifth of the distance
a sample, so that one quiet moment does not end what is being done. Each step of the ladder begins at one figure and ends at a lower
one. Latency is what every step costs; no step drops, reorders or acknowledges anything differently.

    step       begins  ends    what it does
    coalesce   0.2     0.1     deliveries wait up to 20 ms for company
    widen      0.4     0.3     group commits wait 0.5 to 10 ms for company
    defer      0.8     0.6     scrub and compaction wait; deliveries of topics of negative priority wait up to half a second
    refuse     1.0     0.9     pushes that cannot be taken at once are refused with a retry-after
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from quiver_actors.base.units import MILLISECOND_NS

COALESCE_NS_MAX = 20 * MILLISECOND_NS
WINDOW_NS_MIN = MILLISECOND_NS // 2
WINDOW_NS_MAX = 10 * MILLISECOND_NS
RETRY_AFTER_NS_MIN = 50 * MILLISECOND_NS
RETRY_AFTER_NS_MAX = 2000 * MILLISECOND_NS
SYNC_NS_EASY = 20 * MILLISECOND_NS
SYNC_NS_LIMIT = 500 * MILLISECOND_NS
MEMORY_EASY = 0.80
MEMORY_LIMIT = 0.97
BACKLOG_EASY = 0.25
_FALL = 0.2
_SETTLED = 0.001


class Step(enum.IntFlag):
    """Measures of a worker against pressure; bits of one word."""

    COALESCE = 1
    WIDEN = 2
    DEFER = 4
    REFUSE = 8


LADDER = ((Step.COALESCE, 0.2, 0.1), (Step.WIDEN, 0.4, 0.3), (Step.DEFER, 0.8, 0.6), (Step.REFUSE, 1.0, 0.9))
"""Each step with the figures at or above which it begins and below which it ends."""


@dataclass(frozen=True, slots=True)
class Signals:
    """The measurements behind the figure, taken whenever the worker publishes its figures."""

    backlog: float = 0.0
    """How full the shared memory of producers, or the logs that wait for their seal, are: 0 to 1."""
    cap: float = 0.0
    """Where between half of the cap and its hard limit the node's disk is: 0 to 1."""
    memory: float = 0.0
    """Part of the machine's, or the container's, memory that is taken."""
    sync_ns: int = 0
    """Duration of the last sync."""


def pressure_of(signals: Signals) -> float:
    """The highest signal, 0 to 1."""
    return max(
        _between(signals.backlog, BACKLOG_EASY, 1.0),
        min(1.0, max(0.0, signals.cap)),
        _between(signals.memory, MEMORY_EASY, MEMORY_LIMIT),
        _between(signals.sync_ns, SYNC_NS_EASY, SYNC_NS_LIMIT),
    )


def _between(value: float, easy: float, limit: float) -> float:
    return min(1.0, max(0.0, (value - easy) / (limit - easy)))


class Pressure:
    """The figure and the steps that follow from it. Owner: a worker's loop."""

    def __init__(self) -> None:
        self.value = 0.0
        self.steps = Step(0)

    def sample(self, signals: Signals) -> None:
        """Bring the figure and the steps up to date with these signals."""
        now = pressure_of(signals)
        fallen = self.value + (now - self.value) * _FALL
        self.value = now if now >= self.value or fallen - now < _SETTLED else fallen
        for step, begins, ends in LADDER:
            if self.value >= begins:
                self.steps |= step
            elif self.value < ends:
                self.steps &= ~step

    @property
    def coalesce_ns(self) -> int:
        """How long a delivery may wait for company."""
        return self._grown(Step.COALESCE, 0, COALESCE_NS_MAX, 0.1)

    @property
    def window_ns(self) -> int:
        """How long a group commit waits for company."""
        return self._grown(Step.WIDEN, WINDOW_NS_MIN, WINDOW_NS_MAX, 0.3)

    @property
    def defers(self) -> bool:
        """Whether pushes wait for room."""
        return Step.DEFER in self.steps

    @property
    def refuses(self) -> bool:
        """Whether pushes are refused."""
        return Step.REFUSE in self.steps

    @property
    def retry_after_ns(self) -> int:
        """When somebody who was refused should come again: later the harder it is."""
        return RETRY_AFTER_NS_MIN + int((RETRY_AFTER_NS_MAX - RETRY_AFTER_NS_MIN) * self.value)

    @property
    def permille(self) -> int:
        """The pressure in thousandths, rounded."""
        return round(self.value * 1000)

    def _grown(self, step: Step, least: int, most: int, start: float) -> int:
        if step not in self.steps:
            return 0
        return least + int((most - least) * max(0.0, self.value - start) / (1 - start))
