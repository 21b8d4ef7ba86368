"""A bound on what Arrow may allocate in a process: it holds, nothing else notices, and where it cannot hold that is said."""

from __future__ import annotations

import os
import subprocess
import sys

BOUNDED = """
import os
from quiver_actors.flight.arrow_memory import bound_arrow_memory
before = dict(os.environ)
assert bound_arrow_memory(64 << 20)
assert dict(os.environ) == before
import pyarrow as pa
held = [pa.allocate_buffer(1 << 20) for _ in range(16)]
for size_bytes in (65 << 20, 4 << 30):
    try:
        pa.allocate_buffer(size_bytes)
    except MemoryError:
        continue
    raise SystemExit(f"{size_bytes} bytes were allocated")
del held
pa.record_batch({"n": list(range(100_000))}).validate(full=True)
"""
TOO_LATE = """
import pyarrow
from quiver_actors.flight.arrow_memory import bound_arrow_memory
assert not bound_arrow_memory(64 << 20)
"""


def run(program: str, **environment: str) -> str:
    found = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return found.stderr


def test_the_bound_holds_whatever_the_environment_says() -> None:
    run(BOUNDED, ARROW_DEFAULT_MEMORY_POOL="system")


def test_a_process_that_has_loaded_arrow_before_says_that_there_is_no_bound() -> None:
    assert "serve.memory_unbounded" in run(TOO_LATE)
