"""The two sides of live delivery in benchmarks/live.py: pushes with their times, and consumers in processes of their own."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from typing import Any

import quiver_actors
from benchmarks.harness import Measurements, percentile

PREFETCH = 2048
WARM_CALLS = 5
"""Calls before the first one that counts: they make the first log, the connections and what both sides keep of a schema."""
DEADLINE_SECONDS = 300
_CONTEXT = multiprocessing.get_context("spawn")


@dataclass(slots=True)
class Pushes:
    """When each call began and when it had its receipt."""

    begins: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def took(self, ends: Sequence[int]) -> list[float]:
        """Microseconds from the begin of each push to each of these times, sorted."""
        counted = ends[-len(self.begins) :]
        return sorted((end - begin) / 1e3 for begin, end in zip(self.begins, counted, strict=True))

    def summary(self) -> Measurements:
        took = self.took(self.ends)
        return {"push_p50": percentile(took, 0.5), "push_p99": percentile(took, 0.99)}


def push_timed(push: Callable[[int], object], total: int, rate: int) -> Pushes:
    """Call `push` so often behind `WARM_CALLS`; so many times a second, or, with 0, back to back."""
    for number in range(WARM_CALLS):
        push(number)
    pushes, first_ns = Pushes(), time.perf_counter_ns() + 10_000_000
    for number in range(total):
        if rate:
            due_ns = first_ns + number * 10**9 // rate
            while (ahead_ns := due_ns - time.perf_counter_ns()) > 0:
                time.sleep(ahead_ns / 1e9)
        pushes.begins.append(time.perf_counter_ns())
        push(WARM_CALLS + number)
        pushes.ends.append(time.perf_counter_ns())
    return pushes


# --- consumers -----------------------------------------------------------------------------------------------------------


class Consumers:
    """Processes that begin together with this one, and put their results into one queue."""

    def __init__(self, target: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> None:
        self._barrier, self._results = _CONTEXT.Barrier(len(calls) + 1), _CONTEXT.Queue()
        self.processes = [
            _CONTEXT.Process(target=target, args=(*call, self._barrier, self._results), daemon=True) for call in calls
        ]
        for process in self.processes:
            process.start()

    def begin(self) -> None:
        self._barrier.wait(DEADLINE_SECONDS)

    def results(self) -> list[Any]:
        found = [self._results.get(timeout=DEADLINE_SECONDS) for _ in self.processes]
        for process in self.processes:
            process.join(DEADLINE_SECONDS)
        return found

    def end(self) -> None:
        """End those that have not ended."""
        for process in self.processes:
            process.kill()
            process.join()


@contextlib.contextmanager
def consumers(target: Callable[..., None], calls: Sequence[tuple[Any, ...]]) -> Iterator[Consumers]:
    """Started processes, which are ended behind the block."""
    found = Consumers(target, calls)
    try:
        yield found
    finally:
        found.end()


def ready(barrier: Barrier) -> None:
    """Wait for the others. What was imported is left out of the garbage collector: one full collection of it takes some 20 ms, which
    would be the 99th percentile of a few thousand bundles."""
    gc.collect()
    gc.freeze()
    barrier.wait(DEADLINE_SECONDS)


def gets(run_dir: str, total: int, barrier: Barrier, results: Any) -> None:
    """A consumer process: when it had each bundle as a batch, and when all acknowledgements were durable."""
    took = []
    with quiver_actors.connect(run_dir) as client, client.subscribe("live", prefetch=PREFETCH) as subscription:
        ready(barrier)
        for _ in range(total):
            delivery = subscription.get()
            assert delivery is not None
            assert delivery.batch.num_rows
            took.append(time.perf_counter_ns())
            delivery.ack()
        subscription.flush()
        results.put((took, time.perf_counter_ns()))


def gets_of_many(run_dir: str, names: Sequence[str], total: int, barrier: Barrier, results: Any) -> None:
    """A process of several subscribers, each with a thread and a connection: when each had each bundle, and which process it was."""
    waiting, found = threading.Barrier(len(names) + 1), dict[str, list[int]]()

    def consume(name: str) -> None:
        with quiver_actors.connect(run_dir) as client, client.subscribe(name) as subscription:
            waiting.wait(DEADLINE_SECONDS)
            took = found[name] = []
            for delivery in subscription:
                assert delivery.batch.num_rows
                took.append(time.perf_counter_ns())
                delivery.ack()
                if len(took) == total:
                    return

    threads = [threading.Thread(target=consume, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    waiting.wait(DEADLINE_SECONDS)
    barrier.wait(DEADLINE_SECONDS)
    for thread in threads:
        thread.join()
    results.put((os.getpid(), list(found.values())))
