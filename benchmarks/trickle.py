"""What the age at which an open segment is sealed costs a node with many topics that get little: segments, syncs, compactions, bytes.

500 topics on one core get 10 bundles of 1 KiB a second in all, at random, for hours of simulated time on a simulated disk: the figures
do not depend on the machine. Topics know nothing of each other, so one in 25 is run, and sums are multiplied. A subscriber of each topic
acknowledges nothing, so that all is kept. `python -m benchmarks.trickle`
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from random import Random

import numpy as np
import pyarrow as pa

from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS, format_size
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.protocol import Disk
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, ManualClock, topic_settings

TOPICS, RATE, SHARE = 500, 10, 25
AGES_SECONDS = (5, 60, 600, 3600)


class CountingDisk(InterposedDisk):
    """A disk that counts its calls by kind, and the bytes that are written."""

    sees_reads = False

    def __init__(self, inner: Disk) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.written_bytes = 0

    def around(self, call: Call, proceed: Callable[[], Result]) -> Result:
        """Count the call."""
        self.calls[call.kind] += 1
        self.written_bytes += sum(map(len, call.buffers))
        return proceed()


def batch(number: int) -> pa.RecordBatch:
    """A bundle of 1 KiB."""
    return pa.record_batch({"number": np.full(100, number, np.int64)})


def measure(age_seconds: int, hours: float) -> dict[str, float]:
    """Trickle for so long, and count."""
    inner = SimDisk()
    disk, clock, random = CountingDisk(inner), ManualClock(), Random(1)
    drivers = [
        EngineDriver(
            disk,
            topic_settings(name=f"t{n}", segment_max_open_duration_ns=age_seconds * SECOND_NS),
            directory=f"t{n}/core_0",
            clock=clock,
        )
        for n in range(TOPICS // SHARE)
    ]
    for driver in drivers:
        driver.engine.registrations.register("s", "earliest")
    pushed, reserved, due = int(hours * 3600 * RATE / SHARE), [0], dict.fromkeys(range(len(drivers)), 0)
    for number in range(pushed):
        chosen = random.randrange(len(drivers))
        clock.advance(SECOND_NS * SHARE // RATE)
        drivers[chosen].push({0: batch(number)})
        for n in [chosen, *(n for n, at in due.items() if at <= clock.now_ns)]:
            drivers[n].settle()
            drivers[n].events.clear()
            due[n] = max(clock.now_ns + 10 * MILLISECOND_NS, drivers[n].engine.next_deadline_ns() or 1 << 62)
        if number % 20 == 19:
            reserved.append(sum(driver.engine.disk_account.disk_use().log_bytes for driver in drivers))
    figures = [driver.engine.figures() for driver in drivers]
    return {
        "seals an hour": SHARE * sum(f.seals for f in figures) / hours,
        "compactions an hour": SHARE * sum(f.compactions for f in figures) / hours,
        "syncs a bundle": (disk.calls["fsync"] + disk.calls["fdatasync"] + disk.calls["sync_directory"]) / pushed,
        "bytes written a bundle": disk.written_bytes / pushed,
        "bytes of segments a bundle": sum(f.segment_bytes for f in figures)
        / max(1, sum(f.bundles_in for f in figures)),
        "reserved for logs at most": SHARE * max(reserved),
    }


def main() -> None:
    """Print a row for each age."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.5, help="of simulated time")
    arguments = parser.parse_args()
    for age_seconds in AGES_SECONDS:
        found = measure(age_seconds, arguments.hours)
        print(
            f"{age_seconds:5} s  " + "; ".join(f"{name} {_text(name, value)}" for name, value in found.items()),
            flush=True,
        )


def _text(name: str, value: float) -> str:
    return format_size(int(value)) if name.startswith(("bytes", "reserved")) else f"{value:,.1f}"


if __name__ == "__main__":
    main()
