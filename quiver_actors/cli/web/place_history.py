"""The history of each topic and each subscriber, and the series that the plots of their pages draw. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from quiver_actors.store.status.status_document import EngineView, StatusView, SubscriberView

PLACES_MAX = 100
"""Topics, and subscribers, that one sample keeps: the busiest."""


class TopicSample(msgspec.Struct, frozen=True, array_like=True):
    """One topic at one moment, all its cores together; rates are per second since the sample before."""

    bundles_in_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    refused_per_second: float = 0.0
    stored_bundles: int = 0
    disk_bytes: int = 0


class SubscriberSample(msgspec.Struct, frozen=True, array_like=True):
    """One subscriber at one moment, all cores of its topic together; rates are per second since the sample before."""

    delivered_per_second: float = 0.0
    acked_per_second: float = 0.0
    lag_bundles: int = 0
    claimed: int = 0
    """Bundles that consumers hold."""
    oldest_seconds: float = 0.0
    """Age of the oldest bundle that it is owed; 0 if there is none."""


class PlaceSample(Protocol):
    """The part of a sample that this module reads."""

    @property
    def unix_ns(self) -> int:
        """Wall clock at which the sample was taken, UNIX nanoseconds."""

    @property
    def topics(self) -> Mapping[str, TopicSample]:
        """Samples of topics by name."""

    @property
    def subscribers(self) -> Mapping[str, SubscriberSample]:
        """Samples of subscribers by their key."""


def subscriber_key(topic: str, subscriber: str) -> str:
    """The key of a subscriber in a sample: no name has a slash."""
    return f"{topic}/{subscriber}"


def topic_samples(now: StatusView, before: StatusView | None) -> dict[str, TopicSample]:
    """The busiest topics of a status document, by name."""
    engines = _Rows(now.engines, before.engines if before else [], _elapsed(now, before), lambda each: each.topic)
    bundles, size, refused = (engines.rates(field) for field in ("bundles_in", "bytes_in", "refused"))
    stored, disk = (engines.sums(field) for field in ("stored_bundles", "disk_bytes"))
    found = {
        topic: TopicSample(bundles[topic], size[topic], refused[topic], stored[topic], disk[topic])
        for topic in engines.places
    }
    return _busiest(found, lambda each: (each.bytes_in_per_second, each.disk_bytes))


def subscriber_samples(now: StatusView, before: StatusView | None) -> dict[str, SubscriberSample]:
    """The busiest subscribers of a status document, by `subscriber_key`."""
    rows = _Rows(
        now.subscribers,
        before.subscribers if before else [],
        _elapsed(now, before),
        lambda each: subscriber_key(each.topic, each.subscriber),
    )
    delivered, acked, lag, claimed = (
        rows.rates("delivered"),
        rows.rates("acked"),
        rows.sums("lag_bundles"),
        rows.sums("claimed"),
    )
    oldest: dict[str, int] = {}
    for each in now.subscribers:
        key = subscriber_key(each.topic, each.subscriber)
        oldest[key] = max(oldest.get(key, 0), each.oldest_age_ns or 0)
    found = {
        key: SubscriberSample(delivered[key], acked[key], lag[key], claimed[key], round(oldest[key] * 1e-9, 3))
        for key in rows.places
    }
    return _busiest(found, lambda each: (each.lag_bundles, each.delivered_per_second))


def series(samples: Sequence[PlaceSample], topic: str, subscriber: str = "") -> list[dict[str, object]]:
    """The samples of one topic, or of one subscriber of it, oldest first; `running` is False where a sample has nothing of it."""
    found: list[dict[str, object]] = []
    for sample in samples:
        of: TopicSample | SubscriberSample | None = sample.topics.get(topic)
        nothing: TopicSample | SubscriberSample = TopicSample()
        if subscriber:
            of, nothing = sample.subscribers.get(subscriber_key(topic, subscriber)), SubscriberSample()
        found.append({"unix_ns": sample.unix_ns, "running": of is not None} | msgspec.structs.asdict(of or nothing))
    return found


_Row = TypeVar("_Row", EngineView, SubscriberView)
_Sample = TypeVar("_Sample", TopicSample, SubscriberSample)


class _Rows(Generic[_Row]):
    """Rows of two status documents, of which several are of one place."""

    def __init__(
        self, now: Iterable[_Row], before: Iterable[_Row], elapsed_seconds: float, place_of: Callable[[_Row], str]
    ) -> None:
        self._now: dict[tuple[str, int], _Row] = {(place_of(each), each.core): each for each in now}
        self._before: dict[tuple[str, int], _Row] = {(place_of(each), each.core): each for each in before}
        self._elapsed_seconds = elapsed_seconds

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(place for place, _ in self._now))

    def sums(self, field: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for (place, _), row in self._now.items():
            found[place] += getattr(row, field)
        return found

    def rates(self, field: str) -> dict[str, float]:
        """Per second, by place. A worker that began anew counts from 0; without a document before it there are none."""
        found = dict.fromkeys(self.places, 0.0)
        if self._before and self._elapsed_seconds > 0:
            for (place, core), row in self._now.items():
                former = self._before.get((place, core))
                grown = getattr(row, field) - (getattr(former, field) if former else 0)
                found[place] += max(0, grown) / self._elapsed_seconds
        return {place: round(rate, 3) for place, rate in found.items()}


def _elapsed(now: StatusView, before: StatusView | None) -> float:
    return (now.taken_unix_ns - before.taken_unix_ns) * 1e-9 if before else 0.0


def _busiest(found: dict[str, _Sample], busy: Callable[[_Sample], tuple[float, float]]) -> dict[str, _Sample]:
    chosen = sorted(found, key=lambda place: busy(found[place]), reverse=True)[:PLACES_MAX]
    return {place: found[place] for place in chosen}
