"""The benchmarks run and say what they promise to say; how fast it was is not looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.stores import PEERS

ROOT = Path(__file__).parents[2]
KEYS = {"case", "value", "unit", "against", "ratio", "durability", "rounds", "low", "high"}
EXPECTED = {
    "push_cost": {"cost/1KiB/batch64/encode", "cost/1KiB/batch64/check", "cost/1KiB/4slots/batch64/complete"},
    "calls": {"calls/node/alone", "calls/node/live", "calls/embedded/alone", "calls/embedded/live"},
    "embedded": {
        "embedded/1KiB/back_to_back/above_disk",
        "embedded/1KiB/64outstanding/quiver",
        "embedded/1KiB/64threads/quiver",
    },
    "seal": {"seal/64KiB/16schemas/equal", "compact/64KiB/16schemas/equal"},
    "latency": {"latency/1KiB/200per_s/loaded/p99.9", "latency/1KiB/200per_s/loaded/stalls"},
    "archive --store directory": {"archive/upload", "archive/read", "archive/ingest", "archive/push/p50"},
    "store_away": {"store_away/push", "store_away/lag/segments", "store_away/catch_up", "store_away/missing"},
    "slow_cold --latency 0.5": {"slow_cold/push/p99", "slow_cold/get/p99", "slow_cold/moved/quick"},
    "trickle": {"trickle/5s/seals", "trickle/3600s/reserved_at_most"},
    "remote": {"remote/push/local", "remote/push/remote", "remote/subscribe/remote"},
    "handoff": {"handoff/1KiB", "handoff/8MiB"},
    "footprint": {"footprint/1KiB/64_a_call/worker_cpu_per_GB", "footprint/1KiB/64_a_call/switches"},
    "live --only latency": {
        "live/latency/back_to_back/get_above_push",
        "live/latency/200per_s/get_p99_above_fdatasync",
    },
    "live --only ingest catchup": {"live/ingest/50000per_s/lag", "live/catchup/open", "live/catchup/sealed"},
    "live --only subscribers": {"live/subscribers/1/push_p50", "live/subscribers/8_one_stopped/get_p50"},
    "scale --only claims": {"scale/claims/0/push", "scale/claims/1000/push", "scale/claims/1000/deliver"},
}


def lines_of(module: str, *options: str) -> list[dict[str, Any]]:
    """Return the lines that the quick form prints; it removes its data."""
    # Not in pytest's own directory: the paths of sockets are short.
    with tempfile.TemporaryDirectory(prefix="qb-") as directory:
        command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--json", "--dir", directory, *options]
        ended = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=110)
        assert ended.returncode == 0, ended.stderr
        assert not os.listdir(directory), "a benchmark removes its data"
    return [json.loads(line) for line in ended.stdout.splitlines()]


def figures_of(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures, between what the machine was before and after."""
    assert lines[0].keys() == lines[-1].keys() == {"machine"}
    assert lines[0]["machine"]["fdatasync_p99_us"] >= lines[0]["machine"]["fdatasync_p50_us"] > 0
    figures = [line for line in lines if "case" in line]
    assert all(figure.keys() == KEYS and figure["rounds"] == 1 for figure in figures)
    assert all(figure["low"] is None or figure["low"] <= figure["value"] <= figure["high"] for figure in figures)
    return figures


LONG = {
    "store_away",
    "slow_cold --latency 0.5",
    "trickle",
    "scale --only claims",
    "handoff",
    "live --only ingest catchup",
}
"""Forms of ten seconds and more, in `make test-long`."""


@pytest.mark.parametrize(
    "module", [pytest.param(module, marks=[pytest.mark.long] if module in LONG else []) for module in EXPECTED]
)
def test_quick_form_prints_its_cases(module: str) -> None:
    assert {figure["case"] for figure in figures_of(lines_of(*module.split()))} >= EXPECTED[module]


def test_every_peer_is_measured_or_named_as_skipped() -> None:
    lines = lines_of("peers")
    skipped = {line["skipped"]: line["why"] for line in lines if "skipped" in line}
    measured = {figure["against"] for figure in figures_of(lines) if figure["against"]}
    assert measured | set(skipped) == {peer.name for peer in PEERS}
    assert measured >= {"SQLite", "pyarrow stream"}, "these need no package"
    assert all("make bench-peers" in why for why in skipped.values())
