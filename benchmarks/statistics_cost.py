"""What do the statistics of segments cost a worker, beside what it does to take the data in?

A real node with one worker, which takes in bundles of 64 KiB (integers, times, floats and texts) by `push_many` of 256. A round pushes the
same bytes to a topic whose `segment.statistics` is auto and to one where it is off, in turn, seals them, and waits until the worker has
the statistics of every segment; it begins ten seconds after a seal, and takes a fiftieth of the time for it at most. Without statistics the
round waits as long as the last one with them did. The figure is the CPU time of the worker from the first push to the end of the wait, for
each GB pushed. The ratio is auto / off within a round; the aim is 1.03.

    python -m benchmarks.statistics_cost [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import itertools
import time
from functools import partial

from benchmarks.harness import Measurements, arguments, begun, cpu_seconds, run_interleaved, running_node, worker_of
from benchmarks.ingest import make_batches
from quiver_actors.client import Client, connect

BUNDLE_BYTES = 64 << 10
PER_CALL = 256
PUSHED_BYTES, PUSHED_BYTES_QUICK = 256 << 20, 64 << 20
DEADLINE_SECONDS = 900.0
CONFIG = '[segment]\ncompaction = "off"\n'


def ingest(client: Client, topic: str, mode: str, calls: int) -> None:
    """Push to a new topic, and seal."""
    client.create_topic(topic, {"segment.statistics": mode})
    batches = make_batches(BUNDLE_BYTES)
    group = list(itertools.islice(itertools.cycle(batches), PER_CALL))
    for _ in range(calls):
        client.push_many(group, topic=topic, timeout=120)
    client.flush(topic)


def wait(client: Client, topic: str, seconds: float | None) -> float:
    """Return once every sealed segment has statistics, or after so many seconds; asks as often either way. Returns how long that took.

    Raises:
        TimeoutError: they have none after `DEADLINE_SECONDS`.
    """
    started = time.monotonic()
    while (waited := time.monotonic() - started) < DEADLINE_SECONDS:
        sealed = {(core, info.segment_seq) for core, infos in client.segments(topic).items() for info in infos}
        known = {
            (core, number)
            for core, each in client.statistics(topic).items()
            for number, found in each.items()
            if all(stream.columns is not None for stream in found.streams)
        }
        if sealed == known if seconds is None else waited > seconds:
            return waited
        time.sleep(2.0)
    raise TimeoutError(f"topic {topic!r} had no statistics of all its segments after {DEADLINE_SECONDS:.0f} s")


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__)
    pushed_bytes = PUSHED_BYTES_QUICK if options.quick else PUSHED_BYTES
    calls = pushed_bytes // (BUNDLE_BYTES * PER_CALL)
    numbers, waits = itertools.count(), list[float]()
    with begun(options) as (report, directory), running_node(directory, CONFIG) as run_dir, connect(run_dir) as client:
        worker = worker_of(run_dir)

        def measure(mode: str) -> Measurements:
            topic = f"topic{next(numbers)}"
            before = cpu_seconds(worker)
            ingest(client, topic, mode, calls)
            waits.append(wait(client, topic, None if mode == "auto" else waits[-1]))
            spent = cpu_seconds(worker) - before
            client.delete_topic(topic)
            return {"worker": spent / (pushed_bytes / 1e9)}

        found = run_interleaved({mode: partial(measure, mode) for mode in ("auto", "off")}, options.rounds)
        case = "statistics/64KiB/256_a_call"
        report.show_rounds(f"{case}/off", found["off"], "worker", "CPU s/GB", "synced")
        report.show_rounds(f"{case}/auto", found["auto"], "worker", "CPU s/GB", "synced", against=("off", found["off"]))


if __name__ == "__main__":
    main()
