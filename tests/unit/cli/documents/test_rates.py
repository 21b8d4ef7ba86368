"""Rates and plots of `quiver top`, from statuses that are made up."""

from __future__ import annotations

import msgspec

from quiver_actors.cli.documents.rates import Rates, sparkline
from quiver_actors.store.status.status_document import EngineView, StatusView, SubscriberView


def fields(kind: type[msgspec.Struct]) -> dict[str, object]:
    return {field.name: 0 for field in msgspec.structs.fields(kind) if field.required}


def engine(topic: str, core: int, bundles: int, size_bytes: int, state: str = "ready") -> EngineView:
    values = {**fields(EngineView), "topic": topic, "core": core, "state": state}
    return EngineView(**{**values, "bundles_in": bundles, "bytes_in": size_bytes})  # type: ignore[arg-type]


def subscriber(topic: str, name: str, core: int, lag: int, acked: int) -> SubscriberView:
    values = {**fields(SubscriberView), "topic": topic, "subscriber": name, "core": core}
    return SubscriberView(**{**values, "lag_bundles": lag, "acked": acked})  # type: ignore[arg-type]


def status(at_s: int, engines: list[EngineView], subscribers: list[SubscriberView] | None = None) -> StatusView:
    values = {**fields(StatusView), "taken_unix_ns": at_s * 10**9, "engines": engines, "subscribers": subscribers or []}
    return StatusView(**values)  # type: ignore[arg-type]


def test_rates_are_summed_over_cores_and_the_busiest_comes_first() -> None:
    rates = Rates()
    rates.take(status(10, [engine("a", 0, 0, 0), engine("a", 1, 5, 50), engine("b", 0, 7, 70)]))
    assert [each.bytes_per_s for each in rates.topics] == [0, 0]
    rates.take(status(12, [engine("a", 0, 10, 100), engine("a", 1, 15, 150), engine("b", 0, 107, 70_070)]))
    assert [(each.topic, each.bundles_per_s, each.bytes_per_s) for each in rates.topics] == [
        ("b", 50, 35_000),
        ("a", 10, 100),
    ]
    assert rates.topics[0].history.endswith("█")


def test_what_is_not_well_comes_first_and_a_restarted_worker_counts_from_nothing() -> None:
    rates = Rates()
    rates.take(status(10, [engine("a", 0, 1000, 1000), engine("b", 0, 0, 0)]))
    rates.take(status(11, [engine("a", 0, 4, 40), engine("b", 0, 0, 0, "full")]))
    assert [(each.topic, each.bytes_per_s) for each in rates.topics] == [("b", 0), ("a", 40)]


def test_subscribers_are_sorted_by_lag() -> None:
    rates = Rates()
    rates.take(
        status(
            10, [], [subscriber("a", "near", 0, 1, 0), subscriber("a", "far", 0, 5, 3), subscriber("a", "far", 1, 5, 3)]
        )
    )
    rates.take(
        status(
            11, [], [subscriber("a", "near", 0, 1, 0), subscriber("a", "far", 0, 4, 4), subscriber("a", "far", 1, 4, 5)]
        )
    )
    assert [(each.subscriber, each.lag_bundles, each.resolved_per_s) for each in rates.subscribers] == [
        ("far", 8, 3),
        ("near", 1, 0),
    ]


def test_a_sparkline_shows_the_newest_values_against_the_highest() -> None:
    assert sparkline([0.02, 0.5, 1.0], highest=1.0) == "▁▄█"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "  "
    assert sparkline([0, 1, 50, 100]) == " ▁▄█"
    assert sparkline(list(range(100)), width=3).endswith("█")
    assert len(sparkline(list(range(100)), width=3)) == 3
