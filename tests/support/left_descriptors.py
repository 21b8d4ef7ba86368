"""Descriptors that the tests of a file leave open. `select` takes 1,024 in a process, and a process runs hundreds of files.

Tests may drop engines and disks as a kill does, without closing them. The collector comes late where a process holds much else, so it is
asked where many have come together; what is left after that is held by somebody.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections import Counter

LEFT_MAX = 32
"""Descriptors that one file may leave: libraries keep some from their first use on."""
COLLECTED_ABOVE = 256
"""Descriptors of a process from which on the collector is asked at the end of each file."""
PATIENCE_SECONDS = 10.0
"""Threads that nobody waits for close their own descriptors when they end."""


class LeftDescriptors:
    """Compares the descriptors of this process at the ends of two test files. Owner: the session."""

    def __init__(self, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._before = _open_count()

    def pass_over(self) -> None:
        """Take what is open now for what was open before the next file."""
        self._before = _open_count()

    def check(self, file: str) -> None:
        """Fail with an AssertionError that names kinds of descriptors if the tests of a file have left many."""
        before, most = self._before, self._before + LEFT_MAX
        if _open_count() > min(most, COLLECTED_ABOVE):
            gc.collect()
        deadline = time.monotonic() + self._patience_seconds
        while _open_count() > most and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        self._before = count = _open_count()
        assert count <= most, (
            f"the tests of {file} leave {count} descriptors, {before} were open before them; close in fixtures what tests open. "
            f"All that is open, and how often: {_kinds()}"
        )


def _open_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def _kinds() -> dict[str, int]:
    """Return what is open, without the numbers in it, the most frequent first."""
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", os.readlink(f"/proc/self/fd/{number}"))] += 1
        except FileNotFoundError:
            continue
    return dict(found.most_common(12))
