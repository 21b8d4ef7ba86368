"""docs/reliability.md says what the runs that are kept beside it have printed."""

from __future__ import annotations

import re
from pathlib import Path

from tests import reliability
from tests.mutation.edits import EDITS
from tests.sim.node.test_node import SEEDS, STEPS

_ACTOR = re.compile(r"^class (\w+(?:Actor|Guest))\b", re.MULTILINE)


def test_the_table_is_made_from_the_figures_that_are_kept() -> None:
    shown = reliability.PAGE.read_text(encoding="utf-8")
    assert reliability.page(shown) == shown
    assert all(f"`{command}`" in shown for command in reliability.read_runs())


def test_figures_are_written_for_people() -> None:
    runs = {
        "make it": {
            "day": "2026-01-02",
            "figures": {"kills": 12345, "missed": [], "drift": {"rss_kib": {"first": 1, "last": 3, "drift": 2}}},
        }
    }
    assert reliability.table(runs).splitlines()[-1] == (
        "| `make it` | 2026-01-02 | kills 12,345, missed none, drift (rss kib 1 to 3 (+2)) |"
    )


def test_the_page_names_every_actor_of_the_simulated_node() -> None:
    sources = Path(reliability.__file__).with_name("sim").joinpath("node").glob("*.py")
    actors = {name for source in sources for name in _ACTOR.findall(source.read_text(encoding="utf-8"))}
    shown = reliability.PAGE.read_text(encoding="utf-8")
    assert len(actors) > 8
    assert actors == set(re.findall(r"^\| `(\w+)` \| \d", shown, re.MULTILINE))


def test_the_page_counts_what_there_is() -> None:
    shown = reliability.PAGE.read_text(encoding="utf-8")
    assert f"| {len(EDITS)} known-bad edits" in shown
    assert f"`make test` has {SEEDS} runs of {STEPS:,} steps" in shown
