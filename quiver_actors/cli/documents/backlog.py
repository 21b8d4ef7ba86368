"""The work that a node whose intake is stopped still has to do. Pure: from one look at its figures."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quiver_actors.base.units import format_duration
from quiver_actors.store.status.status_document import EngineView, StatusView, SubscriberView, WorkerView

SPARK_PREFIX = "spark-"
"""Prefix of subscribers of streaming queries that were given no name."""


class BehindView(msgspec.Struct, kw_only=True):
    """One subscriber that has not resolved everything; its cores are summed."""

    topic: str
    subscriber: str
    lag_bundles: int
    claimed: int
    connections: int
    oldest_age_ns: int | None
    blocked: int = 0
    """Bundles within `lag_bundles` that were delivered as often as allowed: an operator has to decide about them."""
    gaps: int = 0
    """Gap notices (bundles that will never come) that no consumer has taken yet."""
    detached_ns: int | None = None
    """Time since the last consumer left; None while one is connected."""


class UnsealedView(msgspec.Struct, kw_only=True):
    """A topic on one core whose log is not sealed yet."""

    topic: str
    core: int
    wal_bytes: int


class UncertainView(msgspec.Struct, kw_only=True):
    """A worker that has not said that it takes no more; nothing is known of what it has."""

    core: int
    state: str


class Backlog(msgspec.Struct, kw_only=True):
    """Work that a drain still waits for: workers without figures, logs that are not sealed, subscribers that are behind."""

    workers: list[UncertainView]
    unsealed: list[UnsealedView]
    behind: list[BehindView]
    """Subscribers that are behind, the largest backlog first."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to wait for."""
        return not (self.workers or self.unsealed or self.behind)

    def lines(self) -> list[str]:
        """One line of text for each entry."""
        lines = [f"worker core_{each.core} is {each.state}: nothing is known of it" for each in self.workers]
        lines += [
            f"topic {each.topic} on core_{each.core}: {each.wal_bytes:,} bytes are not sealed" for each in self.unsealed
        ]
        return lines + [_behind_line(each) for each in self.behind]

    def advice(self) -> list[str]:
        """Return what an operator can do about the subscribers that are behind."""
        if not self.behind:
            return []
        first = self.behind[0]
        advice = [
            "what they have not resolved stays on this node for them; one that nobody needs any more goes with "
            f"`quiver subscribers drop {first.subscriber} --topic {first.topic} --yes`"
        ]
        if any(each.subscriber.startswith(SPARK_PREFIX) for each in self.behind):
            advice.append(
                f"{SPARK_PREFIX}... are streaming queries: they resolve when they plan a micro-batch, on Spark 4.1 the one after it; are "
                "they running?"
            )
        return advice


def backlog_of(status: StatusView) -> Backlog:
    """Return what is not sealed or not resolved. Only figures that a worker wrote after it stopped its intake can show an empty backlog."""
    return Backlog(
        workers=[_uncertain(worker) for worker in status.workers if not worker.intake_stopped],
        unsealed=[_unsealed(engine) for engine in status.engines if engine.wal_bytes or engine.open_segment_bundles],
        behind=behind_of(status.subscribers),
    )


def behind_of(subscribers: list[SubscriberView]) -> list[BehindView]:
    """The subscribers that are owed bundles or notices, those with most to do first."""
    return [each for each in lags_of(subscribers) if each.lag_bundles or each.gaps]


def lags_of(subscribers: list[SubscriberView]) -> list[BehindView]:
    """All subscribers, one entry for all cores of each, those with most to do first."""
    grouped: dict[tuple[str, str], list[SubscriberView]] = {}
    for each in subscribers:
        grouped.setdefault((each.topic, each.subscriber), []).append(each)
    summed = [_summed(topic, subscriber, cores) for (topic, subscriber), cores in grouped.items()]
    return sorted(summed, key=lambda each: (-each.lag_bundles, each.topic, each.subscriber))


def _summed(topic: str, subscriber: str, cores: list[SubscriberView]) -> BehindView:
    return BehindView(
        topic=topic,
        subscriber=subscriber,
        lag_bundles=sum(each.lag_bundles for each in cores),
        claimed=sum(each.claimed for each in cores),
        # A consumer is connected to every core.
        connections=max(each.connections for each in cores),
        oldest_age_ns=_largest(each.oldest_age_ns for each in cores),
        blocked=sum(each.blocked for each in cores),
        gaps=sum(each.gaps for each in cores),
        detached_ns=_largest(each.detached_ns for each in cores),
    )


def _largest(ages: Iterable[int | None]) -> int | None:
    return max((age for age in ages if age is not None), default=None)


def _uncertain(worker: WorkerView) -> UncertainView:
    return UncertainView(core=worker.core, state=worker.state)


def _unsealed(engine: EngineView) -> UnsealedView:
    return UnsealedView(topic=engine.topic, core=engine.core, wal_bytes=engine.wal_bytes)


def _behind_line(each: BehindView) -> str:
    age = "" if each.oldest_age_ns is None else f", the oldest {format_duration(each.oldest_age_ns)} old"
    blocked = f", {each.blocked:,} blocked" if each.blocked else ""
    gaps = f", {each.gaps} gap notices not taken" if each.gaps else ""
    readers = f"{each.connections} connected" if each.connections else "nobody connected"
    who = f"subscriber {each.subscriber} of topic {each.topic}"
    return f"{who}: {each.lag_bundles:,} bundles behind{age}{blocked}{gaps}, {readers}"
