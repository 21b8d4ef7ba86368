"""Whole nodes under a seeded scheduler: 300 seeds of 1,000 steps, in two processes of their own (time is replaced in them)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEEDS = int(os.environ.get("NODE_SEEDS", "300"))
STEPS = 1000
FIRST_SEED = int(os.environ.get("NODE_SEED_FIRST", "0"))
_PROCESSES = 2
HAPPENS = (
    "acknowledged",
    "at_topic_limits",
    "bits_flipped",
    "clean_stops",
    "clients_die_at_messages",
    "cores_changed",
    "delivered",
    "dies_at_effects",
    "drops_refused",
    "faults",
    "guest_requests",
    "hoarded",
    "live_bits_flipped",
    "memory_refused",
    "owner_pushes",
    "owner_resolutions",
    "owners_closed",
    "owners_die_at_effects",
    "power_losses",
    "resolved",
    "rivals_refused",
    "stages_dropped",
    "stages_dropped_unasked",
    "supervisor_dies_at_effects",
    "told_lost",
    "topics",
    "transactions_aborted",
    "transactions_committed",
    "wake_ups_lost",
    "workers_started",
)
"""Else nothing would have been looked at."""


def run_seeds(first: int, end: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sim.node", "--seeds", f"{first}:{end}", "--steps", str(STEPS)]
    # The order of sets is part of what a seed decides.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)
def test_no_order_of_events_breaks_a_promise() -> None:
    borders = [FIRST_SEED + SEEDS * part // _PROCESSES for part in range(_PROCESSES + 1)]
    with ThreadPoolExecutor(_PROCESSES) as pool:
        done = list(pool.map(run_seeds, borders, borders[1:]))
    for process in done:
        assert process.returncode == 0, process.stdout[-8000:] + process.stderr[-4000:]
    counted = [json.loads(process.stdout.splitlines()[-1]) for process in done]
    assert sum(each["seeds"] for each in counted) == SEEDS
    assert sum(each["steps"] for each in counted) == SEEDS * STEPS
    for what in HAPPENS if SEEDS >= 100 else ():
        assert sum(each.get(what, 0) for each in counted) > 0, f"{what}: never"


def test_one_seed_alone() -> None:
    """The command line that a failure names runs one seed."""
    command = [sys.executable, "-m", "tests.sim", "--seed", "3", "--steps", "100"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert (figures["seeds"], figures["steps"], figures["failures"]) == (1, 100, [])


def test_a_seed_is_a_seed() -> None:
    """The same seed does the same: else a failure could not be looked at again."""
    program = (
        "from tests.sim.node import simulated_time; time = simulated_time.install()\n"
        "from tests.sim.node.run import run_seed; print('\\n'.join(run_seed(time, 7, 500)))"
    )
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    logs = [
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert logs[0] == logs[1]
    assert logs[0].count("\n") > 20
