"""What a client needs of its own process."""

from __future__ import annotations

import subprocess
import sys

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
