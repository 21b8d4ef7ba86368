"""The table of all metrics for docs/metrics.md: `python -m quiver_actors.cli.web.reference` prints it."""

from __future__ import annotations

from quiver_actors.cli.web.metric_table import TABLES

_OTHERS = (
    ("quiver_up", "gauge", "", "1 while the node's supervisor is alive"),
    ("quiver_ready", "gauge", "", "1 while the node takes bundles"),
    ("quiver_healthy", "gauge", "", "1 while nothing is wrong"),
    ("quiver_node_uptime_seconds", "gauge", "", "Time since the supervisor started"),
    ("quiver_shared_memory_bytes", "gauge", "", "Size of the arenas and the counters page"),
    ("quiver_worker_state", "gauge", "core, state", "1 for the present state of the worker"),
    ("quiver_topic_state", "gauge", "topic, core, state", "1 for the present state of a topic on a core"),
    ("quiver_worker_errors_total", "counter", "core", "Errors that an operator should see"),
    ("quiver_latency_seconds", "histogram", "topic, core, of", "How long a push, sync, seal or delivery took"),
)


def table() -> str:
    """Markdown, one row a metric."""
    rows = [*_OTHERS]
    for _, _, labels, metrics in TABLES:
        rows += [(metric.name, metric.kind.value, ", ".join(labels), metric.help) for metric in metrics]
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    return (
        "\n".join([*lines, *(f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows)]) + "\n"
    )


if __name__ == "__main__":
    print(table(), end="")
