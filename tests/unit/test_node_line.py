"""The line that `quiver up` prints when it is ready."""

from __future__ import annotations

import sys

import pytest

from quiver_actors.node import print_line


def test_a_node_goes_on_where_its_standard_output_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended, with code 1."""
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
