"""Memory that was freed is given back to the system, also where threads had it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from quiver_actors.base.allocator import give_back_blocks

def anon_kib():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon"))

together = threading.Barrier(4)

def work(number):
    together.wait()
    return b"x" * 1_000_000

if sys.argv[1] == "gives":
    give_back_blocks(256 << 10)
before = anon_kib()
for _ in range(4):
    with ThreadPoolExecutor(4) as threads:
        held = list(threads.map(work, range(16)))
    del held
print(anon_kib() - before)
"""


@pytest.mark.skipif("glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="only glibc can be told")
def test_blocks_of_threads_are_given_back_when_they_are_freed() -> None:
    grown_kib = {
        how: int(subprocess.run([sys.executable, "-c", PROGRAM, how], check=True, capture_output=True).stdout)
        for how in ("gives", "keeps")
    }
    assert grown_kib["gives"] < 1024 < grown_kib["keeps"]
