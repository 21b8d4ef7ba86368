"""What the age at which an open segment is sealed costs a node with many topics that get little: segments, syncs, compactions, bytes.

500 topics on one core get 10 bundles of 1 KiB a second in all, at random, for hours of simulated time on a simulated disk: the figures
do not depend on the machine. Topics know nothing of each other, so one in 25 is run, and sums are multiplied. A subscriber of each topic
acknowledges nothing, so that all is kept.

Start: the same topics on the real disk, each with the log that such an age leaves behind; how long `Engine.open` takes a topic after a
crash. `python -m benchmarks.trickle`
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random

import numpy as np
import pyarrow as pa

from benchmarks.harness import Figure, Measurements, begun, parser, read_options, run_interleaved
from quiver_actors.base.clock import SystemClock
from quiver_actors.base.config import TopicSettings
from quiver_actors.base.units import MILLISECOND_NS, SECOND_NS
from quiver_actors.store.disk.interposed import Call, InterposedDisk, Result
from quiver_actors.store.disk.posix import PosixDisk
from quiver_actors.store.disk.protocol import Disk
from quiver_actors.store.engine import Engine
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import EngineDriver, ManualClock, topic_settings

TOPICS, RATE, SHARE = 500, 10, 25
AGES_SECONDS = (5, 60, 600, 3600)
START_ROUNDS = 3


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


def measure(age_seconds: int, hours: float) -> dict[str, tuple[float, str]]:
    """Trickle for so long. Returns each figure and its unit."""
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
    syncs = disk.calls["fsync"] + disk.calls["fdatasync"] + disk.calls["sync_directory"]
    segment_bytes, bundles = sum(f.segment_bytes for f in figures), sum(f.bundles_in for f in figures)
    return {
        "seals": (SHARE * sum(f.seals for f in figures) / hours, "an hour"),
        "compactions": (SHARE * sum(f.compactions for f in figures) / hours, "an hour"),
        "syncs": (syncs / pushed, "a bundle"),
        "written": (disk.written_bytes / pushed, "B/bundle"),
        "stored": (segment_bytes / max(1, bundles), "B/bundle"),
        "reserved_at_most": (SHARE * max(reserved), "bytes"),
    }


def write_logs(root: str, age_seconds: int) -> None:
    """Write the log of each topic as it is at that age, synced and unsealed."""
    for n in range(TOPICS // SHARE):
        driver = EngineDriver(
            PosixDisk(root), topic_settings(segment_max_open_duration_ns=1 << 60), directory=f"t{n}/core_0"
        )
        for number in range(max(1, age_seconds * RATE // TOPICS)):
            driver.push({0: batch(number)})
            driver.commit()
        driver.engine.close()


def start(template: str) -> Measurements:
    """Open a copy of these topics, one after the other."""
    root = template + "-copy"
    shutil.copytree(template, root)
    try:
        began = time.perf_counter()
        for n in range(TOPICS // SHARE):
            Engine.open(PosixDisk(root), f"t{n}/core_0", TopicSettings(), 0, SystemClock()).close()
        return {"s": (time.perf_counter() - began) * SHARE / TOPICS}
    finally:
        shutil.rmtree(root)


def main() -> None:
    """Print the figures of each age."""
    known = parser(__doc__)
    known.add_argument("--hours", type=float, default=0.0, help="of simulated time (default 1.5, with --quick 0.02)")
    options = read_options(known, rounds=1)
    hours = options.hours or (0.02 if options.quick else 1.5)
    with begun(options) as (report, base):
        for age_seconds in AGES_SECONDS:
            for name, (value, unit) in measure(age_seconds, hours).items():
                report.show(Figure(f"trickle/{age_seconds}s/{name}", value, unit, "", None, "", 1))
        templates = {f"{age}s": tempfile.mkdtemp(prefix="trickle-", dir=base) for age in AGES_SECONDS}
        for age_seconds, template in zip(AGES_SECONDS, templates.values(), strict=True):
            write_logs(template, age_seconds)
        found = {name: partial(start, template) for name, template in templates.items()}
        for name, results in run_interleaved(found, 1 if options.quick else START_ROUNDS).items():
            report.show_rounds(f"trickle/{name}/start", results, "s", "s/topic", "synced")


if __name__ == "__main__":
    main()
