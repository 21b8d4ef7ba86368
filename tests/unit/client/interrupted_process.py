"""A process whose main thread is interrupted as it pushes, while two others push: `-m tests.unit.client.interrupted_process RUN_DIR`.

Prints how often it was interrupted, and how many bundles each of the others has got stored.
"""

from __future__ import annotations

import itertools
import signal
import sys

from quiver_actors.client import connect
from tests.unit.client.feeding import batch
from tests.unit.client.peer import Background

PUSHES = 300
"""Bundles that each of the other threads pushes at least."""
INTERRUPTS = 200
_DELAYS_US = range(20, 900, 7)


def main(run_dir: str) -> None:
    is_armed, interrupted = False, 0

    def interrupt(*_: object) -> None:
        nonlocal is_armed
        if is_armed:
            is_armed = False
            raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    with connect(run_dir) as client:

        def push_all() -> int:
            count = 0
            while count < PUSHES or interrupted < INTERRUPTS:
                client.push(batch(count))
                count += 1
            return count

        others = [Background(push_all) for _ in range(2)]
        delays_us = itertools.cycle(_DELAYS_US)
        while interrupted < INTERRUPTS and all(other.is_running for other in others):
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, next(delays_us) / 1e6)
                client.push(batch(0))
                is_armed = False
            except KeyboardInterrupt:
                interrupted += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        counts = [other.result() for other in others]
    print(interrupted, *counts)


if __name__ == "__main__":
    main(sys.argv[1])
