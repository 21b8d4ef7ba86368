"""What a client needs of its own process."""

from __future__ import annotations

import subprocess
import sys

from tests.unit.client import interrupted_process
from tests.unit.client.peer import DEADLINE_SECONDS, Peer

_WITHOUT_DESCRIPTORS = """
import resource
from quiver_actors.client.exchange import Exchange
from quiver_actors.errors import WorkerUnavailable

resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    Exchange()
except WorkerUnavailable as error:
    print(error)
"""


def test_a_process_without_a_descriptor_left_is_told_so() -> None:
    ran = subprocess.run([sys.executable, "-c", _WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=True)
    assert "Too many open files" in ran.stdout
    assert "ulimit -n" in ran.stdout


def test_an_interrupt_costs_its_own_call_alone(peer: Peer) -> None:
    """Regression: an interrupt released another thread's lock, which then failed, or left nobody to read for the others, which hung."""
    command = [sys.executable, "-m", interrupted_process.__name__, str(peer.run_dir)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert ran.returncode == 0, ran.stderr
    interrupted, *stored = map(int, ran.stdout.split())
    assert interrupted == interrupted_process.INTERRUPTS
    assert min(stored) >= interrupted_process.PUSHES
    assert len(stored) == 2
