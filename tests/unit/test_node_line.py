"""What `quiver up` says: the line when it is ready, and what it warns of."""

from __future__ import annotations

import sys

import pytest

from quiver_actors.node.composition import print_line, warn_of_shared_cpus


def test_a_node_goes_on_where_its_standard_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: the node ended with code 1."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        print_line("quiver ready")
        full.flush()
    assert "No space left" in caplog.text


def test_the_line_is_written_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    path = f"{tmp_path}/out"
    with open(path, "w", encoding="utf-8") as out:
        monkeypatch.setattr(sys, "stdout", out)
        print_line("quiver ready")
        with open(path, encoding="utf-8") as written:
            assert written.read() == "quiver ready\n"


def test_more_workers_than_cpus_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_shared_cpus(2, 2)
    assert not caplog.records
    warn_of_shared_cpus(99, 2)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "99 workers share 2 CPUs" in caplog.text
