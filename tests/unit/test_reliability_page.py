"""docs/reliability.md says what the runs that are kept beside it have printed."""

from __future__ import annotations

from tests import reliability


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
