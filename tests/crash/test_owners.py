"""Owners of a store that are killed one after the other: a short form of `python -m tests.crash.owners`, without nodes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.crash.owners import OwnersTally

ROOT = Path(__file__).parents[2]
ROUNDS = 5


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_a_store_whose_owners_are_killed_keeps_the_promise() -> None:
    """The campaign runs in a process of its own, which forks and has one thread."""
    command = [sys.executable, "-m", "tests.crash.owners", str(ROUNDS), "1", "0"]
    ran = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    tally = msgspec.json.decode(ran.stdout.splitlines()[-2], type=OwnersTally)
    assert tally.failures == [], ran.stderr
    assert tally.rounds == ROUNDS
    assert tally.ends["store SIGKILL"] > 0
    assert tally.rivals_refused > 0
    assert tally.forks_refused > 0
    assert tally.acknowledged > ROUNDS
