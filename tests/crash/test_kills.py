"""Killing, ending or stopping anything at any moment loses nothing that was acknowledged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.integration.node_process import ROOT

ROUNDS = 8


def tally_of(module: str, *arguments: object) -> dict[str, Any]:
    """What a campaign says at its end. In a process of its own: it forks."""
    ran = subprocess.run(
        [sys.executable, "-m", module, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.stdout, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-2])
    return found


@pytest.mark.crash
@pytest.mark.timeout(600)
def test_signals_to_supervisor_workers_producers_and_subscriber_lose_nothing_acknowledged() -> None:
    tally = tally_of("tests.crash.campaign", ROUNDS, 7)
    assert tally["failures"] == []
    assert tally["rounds"] == ROUNDS
    assert sum(tally["signals"].values()) >= ROUNDS / 2
    assert sum(tally["points"].values()) + tally["points_missed"] > 0
    assert tally["acknowledged"] > ROUNDS
    assert tally["durable"] > ROUNDS
