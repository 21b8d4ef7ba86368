"""docs/operations.md knows every error, every alert and every state: what it means, and what to do."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

import quiver_actors.client.archived
import quiver_actors.forward
import quiver_actors.store.objects.errors  # noqa: F401 - their errors are errors, too
from quiver_actors.base.error_codes import error_classes
from quiver_actors.store.status.status_document import WORST_FIRST
from quiver_actors.supervisor.exitcodes import ExitCode
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
PUBLIC = (
    "quiver_actors.errors",
    "quiver_actors.forward.errors",
    "quiver_actors.store.objects.errors",
    "quiver_actors.client.archived",
    "quiver_actors.client.archiving",
)
ERRORS = {kind.__name__: kind for kind in error_classes().values() if kind.__module__ in PUBLIC}


def rows_of(word: str) -> list[list[str]]:
    return [row for row in ROWS if f"`{word}`" in re.split(", ", row[0])]


@pytest.mark.parametrize("name", sorted(set(ERRORS) - {"QuiverError"}))
def test_every_error_says_what_it_means_and_what_to_do(name: str) -> None:
    (row,) = rows_of(name)
    assert all(row[1:])
    if len(row) == 4:
        assert row[1] == ("yes" if ERRORS[name].retriable else "no")


def test_no_error_is_named_that_is_none() -> None:
    named = {row[0].strip("`") for row in ROWS if re.fullmatch(r"`[A-Z]\w+`", row[0])}
    assert named == set(ERRORS) - {"QuiverError"}


def test_every_alert_is_seen_in_a_failure() -> None:
    alerts = re.findall(r"- alert: (\w+)", files("quiver_actors.cli.web").joinpath("alerts.yaml").read_text())
    failures = PAGE.partition("## Failure by failure")[2].partition("## Every error")[0]
    assert alerts
    assert [alert for alert in alerts if f"`{alert}`" not in failures] == []
    assert set(re.findall(r"`(Quiver[A-Z]\w+)`", PAGE)) == set(alerts)


def test_every_failure_says_what_is_seen_and_what_to_do() -> None:
    failures = PAGE.partition("## Failure by failure")[2].partition("## Every error")[0].split("### ")[1:]
    assert len(failures) > 10
    assert [text.splitlines()[0] for text in failures if "You see:" not in text or "To do" not in text] == []


@pytest.mark.parametrize("state", WORST_FIRST)
def test_every_state_is_explained(state: str) -> None:
    (row,) = rows_of(state)
    assert all(row)


def test_every_exit_code_of_a_node_is_explained() -> None:
    codes = {row[0] for row in ROWS if row[0].isdigit()}
    assert codes == {str(code.value) for code in ExitCode}
