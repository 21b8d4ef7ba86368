"""Rates between two looks at a node, and their short history as a sparkline. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from quiver_actors.store.status.status_document import EngineView, StatusView, worst

SAMPLES_KEPT = 60
_BARS = " ▁▂▃▄▅▆▇█"


class TopicRates(NamedTuple):
    """Rates of one topic between two status documents, summed over all cores; `history` is drawn as bars."""

    topic: str
    state: str
    bundles_per_s: float
    bytes_per_s: float
    segment_bundles: int
    disk_bytes: int
    history: str
    """Sparkline of bytes per second, the newest value at the end."""


class SubscriberRates(NamedTuple):
    """Rates of one subscriber between two status documents, summed over all cores; `history` is drawn as bars."""

    topic: str
    subscriber: str
    lag_bundles: int
    resolved_per_s: float
    oldest_age_ns: int | None
    connections: int
    history: str
    """Sparkline of the lag in bundles, the newest value at the end."""


class Rates:
    """Looks at status after status; keeps the one before and short histories."""

    def __init__(self) -> None:
        self.topics: list[TopicRates] = []
        """The busiest first, then those with most on disk; those that are not well before them."""
        self.subscribers: list[SubscriberRates] = []
        """The furthest behind first."""
        self._before: StatusView | None = None
        self._histories: dict[tuple[str, ...], deque[float]] = {}

    def take(self, status: StatusView) -> None:
        """Compute the rates since the last document. Topics that are not ready and the largest lags come first."""
        seconds = (status.taken_unix_ns - self._before.taken_unix_ns) / 1e9 if self._before is not None else 0.0
        self.topics = sorted(
            self._topics(status, seconds),
            key=lambda each: (each.state == "ready", -each.bytes_per_s, -each.disk_bytes, each.topic),
        )
        self.subscribers = sorted(
            self._subscribers(status, seconds), key=lambda each: (-each.lag_bundles, each.topic, each.subscriber)
        )
        self._before = status

    def _topics(self, status: StatusView, seconds: float) -> Iterable[TopicRates]:
        before = _by_topic(self._before.engines) if self._before is not None else {}
        for topic, engines in _by_topic(status.engines).items():
            former = {engine.core: engine for engine in before.get(topic, [])}
            bundles = sum(_rise(engine.bundles_in, former, engine.core, "bundles_in") for engine in engines)
            size_bytes = sum(_rise(engine.bytes_in, former, engine.core, "bytes_in") for engine in engines)
            per_s = size_bytes / seconds if seconds > 0 else 0.0
            yield TopicRates(
                topic,
                worst(engine.state for engine in engines),
                bundles / seconds if seconds > 0 else 0.0,
                per_s,
                sum(engine.segment_bundles for engine in engines),
                sum(engine.disk_bytes for engine in engines),
                self._history(("topic", topic), per_s),
            )

    def _subscribers(self, status: StatusView, seconds: float) -> Iterable[SubscriberRates]:
        before = {
            (each.topic, each.subscriber, each.core): each.acked + each.rejected
            for each in (self._before.subscribers if self._before is not None else [])
        }
        grouped: dict[tuple[str, str], list[int]] = {}
        for number, each in enumerate(status.subscribers):
            grouped.setdefault((each.topic, each.subscriber), []).append(number)
        for (topic, subscriber), numbers in grouped.items():
            found = [status.subscribers[number] for number in numbers]
            rises = [
                max(0, each.acked + each.rejected - before.get((topic, subscriber, each.core), 0)) for each in found
            ]
            lag = sum(each.lag_bundles for each in found)
            ages = [each.oldest_age_ns for each in found if each.oldest_age_ns is not None]
            yield SubscriberRates(
                topic,
                subscriber,
                lag,
                sum(rises) / seconds if seconds > 0 else 0.0,
                max(ages, default=None),
                max(each.connections for each in found),
                self._history(("subscriber", topic, subscriber), float(lag)),
            )

    def _history(self, key: tuple[str, ...], value: float) -> str:
        kept = self._histories.setdefault(key, deque(maxlen=SAMPLES_KEPT))
        kept.append(value)
        return sparkline(kept)


def sparkline(values: Sequence[float] | deque[float], width: int = 20, highest: float | None = None) -> str:
    """The last `width` values as bars; `highest`, or the highest of them, is a full one."""
    shown = list(values)[-width:]
    top = max(shown, default=0.0) if highest is None else highest
    if top <= 0:
        return _BARS[0] * len(shown)
    return "".join(_BARS[0 if value <= 0 else max(1, round(value / top * (len(_BARS) - 1)))] for value in shown)


def _by_topic(engines: Iterable[EngineView]) -> dict[str, list[EngineView]]:
    found: dict[str, list[EngineView]] = {}
    for engine in engines:
        found.setdefault(engine.topic, []).append(engine)
    return found


def _rise(value: int, former: Mapping[int, EngineView], core: int, field: str) -> int:
    """How much a counter has risen; a worker that was started again counts from 0."""
    before = getattr(former[core], field) if core in former else value
    return value - before if value >= before else value
