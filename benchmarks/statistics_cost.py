"""What do the statistics of segments cost a worker, beside what it does to take the data in?

A real node with one worker, which takes in bundles of 64 KiB (integers, times, floats and texts) by `push_many` of 240, into a topic whose
`segment.statistics` is auto and into one where it is off, in turn. The figure is the CPU time of the worker for each GB pushed.

    steady   pushes without a pause; counted for `--seconds` after the first 12 s, from when on there are segments of the age that
             statistics wait for (10 s). A worker rests after each segment for 49 times as long as its statistics took, so most of
             such a stream has none. Aim: 1.03.
    all      one segment of 30 MiB to each of 16 topics, and a wait until every segment has statistics, with as long a wait without
             them: what statistics of all that is stored cost. One topic would take far longer for as many segments.

    python -m benchmarks.statistics_cost [--quick] [--json] [--rounds N] [--dir D]
"""

from __future__ import annotations

import argparse
import itertools
import time
from functools import partial

from benchmarks.harness import (
    Measurements,
    begun,
    cpu_seconds,
    parser,
    read_options,
    run_interleaved,
    running_node,
    worker_of,
)
from benchmarks.ingest import make_batches
from quiver_actors.client import Client, connect
from quiver_actors.client.slots import Bundle

BUNDLE_BYTES = 64 << 10
PER_CALL, CALLS = 240, 2
TOPICS, TOPICS_QUICK = 16, 2
WARM_SECONDS = 12.0
DEADLINE_SECONDS = 900.0
CONFIG = '[segment]\ncompaction = "off"\n'


def group_of(count: int) -> list[Bundle]:
    """Return so many bundles, some of them more than once."""
    return list(itertools.islice(itertools.cycle(make_batches(BUNDLE_BYTES)), count))


def ingest(client: Client, topic: str, mode: str) -> None:
    """Push one segment to a new topic, and seal."""
    client.create_topic(topic, {"segment.statistics": mode})
    group = group_of(PER_CALL)
    for _ in range(CALLS):
        client.push_many(group, topic=topic, timeout=120)
    client.flush(topic)


def have_statistics(client: Client, topic: str) -> bool:
    """Whether every sealed segment of a topic has them."""
    sealed = {(core, info.segment_seq) for core, infos in client.segments(topic).items() for info in infos}
    known = {
        (core, number)
        for core, each in client.statistics(topic).items()
        for number, found in each.items()
        if all(stream.columns is not None for stream in found.streams)
    }
    return sealed == known


def wait(client: Client, topics: list[str], seconds: float | None) -> float:
    """Return once all segments have statistics, or after so many seconds; asks as often either way. Returns how long that took.

    Raises:
        TimeoutError: some have none after `DEADLINE_SECONDS`.
    """
    started = time.monotonic()
    while (waited := time.monotonic() - started) < DEADLINE_SECONDS:
        known = [have_statistics(client, topic) for topic in topics]
        if all(known) if seconds is None else waited > seconds:
            return waited
        time.sleep(4.0)
    raise TimeoutError(f"a segment had no statistics after {DEADLINE_SECONDS:.0f} s")


def push_for(client: Client, topic: str, group: list[Bundle], seconds: float) -> int:
    """Push without a pause; returns how many bytes."""
    started, pushed = time.monotonic(), 0
    while time.monotonic() - started < seconds:
        client.push_many(group, topic=topic, timeout=120)
        pushed += len(group) * BUNDLE_BYTES
    return pushed


class Cost:
    """One worker, its client, and topics that are made for each measurement."""

    def __init__(self, client: Client, run_dir: str, options: argparse.Namespace) -> None:
        self._client = client
        self._worker = worker_of(run_dir)
        self._numbers = itertools.count()
        self._waits: list[float] = []
        self._seconds = 2.0 if options.quick else options.seconds
        self._topic_count = TOPICS_QUICK if options.quick else TOPICS

    def steady(self, mode: str) -> Measurements:
        """CPU for each GB of a stream."""
        topic, group = f"topic{next(self._numbers)}", group_of(PER_CALL)
        self._client.create_topic(topic, {"segment.statistics": mode})
        push_for(self._client, topic, group, WARM_SECONDS)
        before = cpu_seconds(self._worker)
        pushed = push_for(self._client, topic, group, self._seconds)
        spent = cpu_seconds(self._worker) - before
        self._client.delete_topic(topic)
        return {"worker": spent / (pushed / 1e9)}

    def all(self, mode: str) -> Measurements:
        """CPU for each GB of what has statistics at the end."""
        topics = [f"topic{next(self._numbers)}" for _ in range(self._topic_count)]
        before = cpu_seconds(self._worker)
        for topic in topics:
            ingest(self._client, topic, mode)
        self._waits.append(wait(self._client, topics, None if mode == "auto" else self._waits[-1]))
        spent = cpu_seconds(self._worker) - before
        for topic in topics:
            self._client.delete_topic(topic)
        return {"worker": spent / (self._topic_count * CALLS * PER_CALL * BUNDLE_BYTES / 1e9)}


def main() -> None:
    """Measure and print."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--seconds", type=float, default=20.0, help="of a stream that are counted (20)")
    options_parser.add_argument("--only", choices=("steady", "all"), help="one of the two")
    options = read_options(options_parser)
    with begun(options) as (report, directory), running_node(directory, CONFIG) as run_dir, connect(run_dir) as client:
        cost = Cost(client, run_dir, options)
        for name, measure in (("steady", cost.steady), ("all", cost.all)):
            if options.only in (None, name):
                found = run_interleaved({mode: partial(measure, mode) for mode in ("auto", "off")}, options.rounds)
                off = ("off", found["off"])
                report.show_rounds(f"statistics/{name}/off", found["off"], "worker", "CPU s/GB", "synced")
                report.show_rounds(
                    f"statistics/{name}/auto", found["auto"], "worker", "CPU s/GB", "synced", against=off
                )


if __name__ == "__main__":
    main()
