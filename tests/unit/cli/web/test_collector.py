"""The status document as metric families."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from quiver_actors.base.metrics.latency import BUCKET_LIMITS_NS, BUCKETS
from quiver_actors.cli.web.collector import NodeCollector, families
from quiver_actors.cli.web.metric_table import TABLES
from quiver_actors.store.status.status_document import LatencyView, StatusView
from tests.unit.cli.web.documents import document


class _Of(Collector):
    def __init__(self, status: StatusView) -> None:
        self._status = status

    def collect(self) -> Any:
        return families(self._status)


def samples(status: StatusView) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What a Prometheus server would take from the text form."""
    registry = CollectorRegistry()
    registry.register(_Of(status))
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.mark.parametrize(("views", "view", "labels", "metrics"), TABLES, ids=lambda each: str(each)[:12])
def test_every_metric_names_a_number_of_its_view(views: str, view: Any, labels: Any, metrics: Any) -> None:
    types = {field.name: field.type for field in msgspec.structs.fields(view)}
    assert set(labels) <= set(types)
    for metric in metrics:
        assert types[metric.field] in (int, int | None, float, float | None), metric.name
        assert metric.name.endswith("_total") == (metric.kind.value == "counter"), metric.name
    assert hasattr(document(), views)


def test_every_number_of_a_view_is_exported_once() -> None:
    not_exported = {"core", "pid", "cpu", "started_unix_ns", "cpu_percent", "last_scrub_unix_ns", "oldest_unix_ns"}
    not_exported |= {"oldest_prepared_unix_ns"}
    not_exported |= {"detached_since_unix_ns", "in_since_unix_ns"}
    for _, view, _, metrics in TABLES:
        numbers = {
            field.name for field in msgspec.structs.fields(view) if field.type in (int, int | None, float, float | None)
        }
        exported = [metric.field for metric in metrics]
        assert len(exported) == len(set(exported))
        of_the_process = {"figures_age_ns"} if view.__name__ != "WorkerView" else set()
        assert numbers - not_exported - of_the_process == set(exported), view.__name__


def test_values_labels_and_units() -> None:
    status = document()
    found = samples(status)
    engine = status.engines[0]
    labels = (("core", "0"), ("topic", "default"))
    assert found["quiver_ingest_bundles_total", labels] == engine.bundles_in
    assert found["quiver_wal_sync_last_seconds", labels] == pytest.approx(engine.sync_ns_last * 1e-9)
    assert found["quiver_topic_state", (*labels[:1], ("state", "full"), *labels[1:])] == 1
    assert found["quiver_topic_state", (*labels[:1], ("state", "ready"), *labels[1:])] == 0
    of = (("core", "0"), ("subscriber", "exporter"), ("topic", "default"))
    assert found["quiver_subscriber_lag_bundles", of] == status.subscribers[0].lag_bundles
    assert found["quiver_up", ()] == 1


def test_an_unknown_age_is_left_out() -> None:
    status = document()
    status.subscribers[0].oldest_age_ns = None
    assert not [name for name, _ in samples(status) if name == "quiver_subscriber_oldest_age_seconds"]


def test_latencies_are_cumulative_histograms() -> None:
    counts = [0] * BUCKETS
    counts[0], counts[2], counts[-1] = 3, 4, 1
    view = LatencyView(topic="default", core=0, of="sync", counts=counts, sum_ns=2_000_000_000)
    found = samples(document(latencies=[view]))
    labels = (("core", "0"), ("of", "sync"), ("topic", "default"))

    def bucket(limit: str) -> float:
        return found["quiver_latency_seconds_bucket", tuple(sorted((*labels, ("le", limit))))]

    limit_of = {index: repr(limit_ns * 1e-9) for index, limit_ns in enumerate(BUCKET_LIMITS_NS)}
    assert [bucket(limit_of[0]), bucket(limit_of[1]), bucket(limit_of[2])] == [3, 3, 7]
    assert (bucket(limit_of[28]), bucket("+Inf")) == (7, 8)
    assert found["quiver_latency_seconds_count", labels] == 8
    assert found["quiver_latency_seconds_sum", labels] == 2


def test_a_node_that_is_not_there_is_down(tmp_path: Any) -> None:
    (family,) = NodeCollector(str(tmp_path)).collect()
    assert (family.name, family.samples[0].value) == ("quiver_up", 0)
