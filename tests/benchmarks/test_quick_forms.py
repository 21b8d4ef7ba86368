"""The benchmarks of the push path run and say what they promise to say; how fast it was is not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KEYS = {"case", "value", "unit", "against", "ratio", "durability", "rounds"}
EXPECTED = {
    "push_cost": {"cost/1KiB/batch64/encode", "cost/1KiB/batch64/check", "cost/1KiB/batch256/complete"},
    "seal": {"seal/64KiB/16schemas/equal", "compact/64KiB/16schemas/equal"},
    "latency": {"latency/1KiB/200per_s/loaded/p99.9", "latency/1KiB/200per_s/loaded/loop_gap"},
    "handoff": {"handoff/1KiB", "handoff/8MiB"},
}


@pytest.mark.parametrize("module", EXPECTED)
def test_quick_form_prints_its_cases(module: str) -> None:
    # Not in pytest's own directory: the paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="qb-") as directory:
        command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--json", "--dir", directory]
        ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        assert not os.listdir(directory), "a benchmark removes its data"
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(figure.keys() == KEYS and figure["value"] >= 0 and figure["rounds"] == 1 for figure in figures)
    assert {figure["case"] for figure in figures} >= EXPECTED[module]
