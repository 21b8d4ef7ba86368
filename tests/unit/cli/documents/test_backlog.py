from __future__ import annotations

from quiver_actors.cli.documents.backlog import backlog_of, lags_of
from tests.unit.cli.commands.test_status_table import view


def test_nothing_is_known_of_a_worker_that_has_not_stopped_its_intake() -> None:
    status = view()
    status.engines, status.subscribers = [], []
    status.workers[0].intake_stopped = True
    backlog = backlog_of(status)
    assert not backlog.is_empty
    assert backlog.lines() == ["worker core_1 is ready: nothing is known of it"]
    status.workers[1].intake_stopped = True
    assert backlog_of(status).is_empty


def test_unsealed_and_unresolved_bundles_count() -> None:
    status = view(count=1)
    status.workers[0].intake_stopped = True
    status.engines[0].wal_bytes = 4096
    status.subscribers[0].lag_bundles = 1500
    status.subscribers[0].connections = status.subscribers[0].gaps = 0
    status.subscribers[0].blocked = 7
    status.subscribers[0].oldest_age_ns = 4_200_000_000
    assert backlog_of(status).lines() == [
        "topic default on core_0: 4,096 bytes are not sealed",
        "subscriber exporter of topic default: 1,500 bundles behind, the oldest 4.2s old, 7 blocked, nobody connected",
    ]
    status.engines[0].wal_bytes = status.engines[0].open_segment_bundles = status.subscribers[0].lag_bundles = 0
    assert backlog_of(status).is_empty
    status.subscribers[0].gaps = 2
    assert "2 gap notices not taken" in backlog_of(status).lines()[0]


def test_cores_of_a_subscriber_are_summed_and_the_furthest_behind_comes_first() -> None:
    subscribers = view(count=2).subscribers
    other = view(count=1).subscribers[0]
    other.subscriber, other.lag_bundles = "other", 99
    for each in subscribers:
        each.lag_bundles, each.connections, each.oldest_age_ns = 50, 3, None
    found = lags_of([*subscribers, other])
    assert [(each.subscriber, each.lag_bundles, each.connections) for each in found] == [
        ("exporter", 100, 3),
        ("other", 99, other.connections),
    ]
