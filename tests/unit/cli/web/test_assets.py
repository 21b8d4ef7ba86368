"""The dashboard and the alert rules name metrics that exist."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

import pytest

from quiver_actors.cli.web.collector import families
from quiver_actors.cli.web.history import Sample
from quiver_actors.cli.web.place_history import SubscriberSample, TopicSample
from quiver_actors.cli.web.reference import table
from tests.unit.cli.web.documents import document

ROOT = Path(__file__).parents[4]

_NAME = re.compile(r"\bquiver_[a-z_]+")


def exported() -> set[str]:
    names = set()
    for family in families(document()):
        name = family.name + ("_total" if family.type == "counter" else "")
        names |= {name, f"{name}_bucket", f"{name}_sum", f"{name}_count"} if family.type == "histogram" else {name}
    return names


def test_the_dashboard_shows_metrics_that_exist() -> None:
    board = json.loads(files("quiver_actors.cli.web").joinpath("dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    assert len(used) > 10
    assert used - exported() == set()
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(places) == len(set(places))


def test_the_alerts_watch_metrics_that_exist() -> None:
    text = files("quiver_actors.cli.web").joinpath("alerts.yaml").read_text()
    rules = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", "action:", "summary:")))
    used = set(_NAME.findall(rules))
    assert len(used) > 5
    assert used - exported() == set()


def test_every_alert_says_what_to_do() -> None:
    text = files("quiver_actors.cli.web").joinpath("alerts.yaml").read_text()
    assert text.count("- alert:") == text.count("action:") == text.count("summary:") > 5


def test_the_reference_is_complete_and_printed_as_it_is() -> None:
    documented = (ROOT / "docs" / "metrics.md").read_text()
    assert documented.endswith(table()), (
        "run python -m quiver_actors.cli.web.reference and put its table into docs/metrics.md"
    )
    named = set(re.findall(r"^\| `(quiver_\w+)`", documented, re.MULTILINE))
    assert named == {re.sub("_(bucket|sum|count)$", "", name) if "latency" in name else name for name in exported()}


@pytest.mark.parametrize(
    ("plots", "fields"),
    [
        ("NODE", set(Sample.__struct_fields__) - {"unix_ns", "running", "topics", "subscribers"}),
        ("TOPIC", set(TopicSample.__struct_fields__)),
        ("SUBSCRIBER", set(SubscriberSample.__struct_fields__)),
    ],
)
def test_the_page_plots_figures_that_there_are(plots: str, fields: set[str]) -> None:
    text = files("quiver_actors.cli.web").joinpath("page", "draw.js").read_text()
    drawn = text.partition(f"export const {plots}_PLOTS = [")[2].partition("];")[0]
    assert set(re.findall(r'\["[^"]+", "(\w+)"', drawn)) == fields


def test_no_function_of_the_page_hides_another() -> None:
    text = files("quiver_actors.cli.web").joinpath("page", "draw.js").read_text()
    functions = re.findall(r"^(?:export )?function (\w+)", text, re.MULTILINE)
    assert len(functions) == len(set(functions)), "the later one of two would hold"
