"""The status document as Prometheus metric families. Reads shared memory at each scrape; asks no process of the node anything."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from quiver_actors.base.metrics.latency import BUCKET_LIMITS_NS
from quiver_actors.cli.web.metric_table import TABLES, Kind, Metric
from quiver_actors.errors import NotRunning
from quiver_actors.store.status.status_document import WORST_FIRST, LatencyView, StatusView
from quiver_actors.store.status.status_view import take_status

_SECONDS = 1e-9


class NodeCollector(Collector):
    """Metrics of the node in one run directory, taken anew at each `collect`. A node that is not there has `quiver_up 0` alone."""

    def __init__(self, run_dir: str) -> None:
        self._run_dir = run_dir

    def collect(self) -> Iterator[Any]:
        """Read the node's figures from shared memory and yield all metric families."""
        try:
            status = take_status(self._run_dir)
        except NotRunning:
            yield _gauge("quiver_up", "1 while the node's supervisor is alive", 0)
            return
        yield from families(status)


def families(status: StatusView) -> Iterator[Any]:
    """All metric families of one status document."""
    node = status.node
    yield _gauge("quiver_up", "1 while the node's supervisor is alive", node.running)
    yield _gauge("quiver_ready", "1 while the node takes bundles", node.ready)
    yield _gauge("quiver_healthy", "1 while nothing is wrong", node.healthy)
    yield _gauge("quiver_node_uptime_seconds", "Time since the supervisor started", (node.uptime_ns or 0) * _SECONDS)
    memory = status.shared_memory
    yield _gauge("quiver_shared_memory_bytes", "Size of the arenas and the counters page", memory.total_bytes)
    yield _states("quiver_worker_state", "1 for the present state of the worker", ("core",), status.workers)
    yield _states(
        "quiver_topic_state", "1 for the present state of a topic on a core", ("topic", "core"), status.engines
    )
    for views_name, _, labels, metrics in TABLES:
        views = getattr(status, views_name)
        yield from (_family(metric, labels, views) for metric in metrics)
    yield _errors(status)
    yield _latencies(status.latencies)


def _gauge(name: str, meaning: str, value: float) -> Any:
    return GaugeMetricFamily(name, meaning, value=float(value))


def _labels_of(view: object, labels: Sequence[str]) -> list[str]:
    return [str(getattr(view, label)) for label in labels]


def _family(metric: Metric, labels: Sequence[str], views: Iterable[object]) -> Any:
    kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=labels)
    for view in views:
        value = getattr(view, metric.field)
        if value is not None:
            family.add_metric(_labels_of(view, labels), value * metric.scale)
    return family


def _states(name: str, meaning: str, labels: Sequence[str], views: Iterable[Any]) -> Any:
    family = GaugeMetricFamily(name, meaning, labels=[*labels, "state"])
    for view in views:
        for state in WORST_FIRST:
            family.add_metric([*_labels_of(view, labels), state], float(view.state == state))
    return family


def _errors(status: StatusView) -> Any:
    family = CounterMetricFamily("quiver_worker_errors_total", "Errors that an operator should see", labels=["core"])
    for error in status.errors:
        family.add_metric([str(error.core)], error.count)
    return family


def _latencies(latencies: Sequence[LatencyView]) -> Any:
    labels = ("topic", "core", "of")
    family = HistogramMetricFamily(
        "quiver_latency_seconds", "How long a push, sync, seal or delivery took", labels=labels
    )
    for view in latencies:
        limits = [*(repr(limit_ns * _SECONDS) for limit_ns in BUCKET_LIMITS_NS), "+Inf"]
        totals = [sum(view.counts[: index + 1]) for index in range(len(view.counts))]
        family.add_metric(
            _labels_of(view, labels), list(zip(limits, totals, strict=True)), sum_value=view.sum_ns * _SECONDS
        )
    return family
