"""A node under load for hours: `python -m tests.soak [--hours 1] [--seed N] [--calm]`; ends with one line of JSON.

A node of two workers takes pushes at 70 % of what it was seen to take at the start; two subscribers read everything, each in a thread
that ends and comes back without a word now and then. Every 30 s a worker is killed; every fifth time there is a burst instead: every
worker killed three times in a row, a worker stopped for a while, the whole node killed and started again.

Checked all the time: what is delivered is what was pushed, every acknowledged bundle reaches both subscribers, nothing is announced as
lost. Once a minute a line is printed: processes' memory, descriptors and shared memory. The drift is the difference of the medians of the
last and the first third. Descriptors and names of shared memory must not grow; memory is judged by who reads the figures.

With `--calm` nobody is killed, and memory is judged: anonymous memory (`RssAnon`) of the node and of the clients at the end differs by at
most 5 % from what it was after the first five minutes (after the first quarter of a shorter run).

Beside the load go the actors of `tests.soak_actors`: very small bundles, clients that come and go, topics, transactions.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np
import pyarrow as pa

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery, GapNotice, connect
from quiver_actors.errors import QuiverError
from quiver_actors.supervisor import control
from tests.integration.node_process import ROOT, Directories, command_line, wait_until_dead
from tests.soak_actors import Actors
from tests.soak_samples import Sample, after_warming_up, drift_of, take_sample

LOAD_SHARE = 0.7
KILL_SECONDS = 30.0
SUBSCRIBERS = ("ann", "ben")
GROWTH_MAX = {"supervisor_descriptors": 8, "node_descriptors": 200, "client_descriptors": 100, "shared_names": 4}
"""Segments that are open at the moment come and go in the workers and the clients."""
_FLAT = ("node_anon_kib", "client_anon_kib")
FLAT_SHARE = 0.05
_CORES = 2
_CALIBRATION_SECONDS = 6.0
_ROWS = 500
_GROUP = 8
_SAMPLE_SECONDS = 5.0
_PRINT_SECONDS = 60.0
_DRAIN_SECONDS = 120.0
_READY_SECONDS = 60.0
_BURST_EVERY = 5
_CONSUMER_LIVES_SECONDS = (20.0, 90.0)
_CONFIG = """
[segment]
target_size = "4MiB"
max_open_duration = "200ms"

[topics.small]
[topics.churn]
[topics.transactions]
"""


def bundle(number: int) -> pa.RecordBatch:
    """A few kilobytes that follow from their number."""
    return pa.record_batch({"number": pa.array(np.arange(number, number + _ROWS, dtype=np.int64))})


class Book:
    """The bundles that each subscriber is owed. A bundle that both subscribers have is forgotten, to bound the memory."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self._acknowledged: dict[BundleId, int] = {}
        self._had: dict[BundleId, set[str]] = {}

    def acknowledged(self, ids: list[BundleId], first: int) -> None:
        with self.mutex:
            self.counts["acknowledged"] += len(ids)
            for number, id_ in enumerate(ids, first):
                self._acknowledged[id_] = number
                self._settle(id_)

    def delivered(self, subscriber: str, delivery: Delivery) -> None:
        id_, values = delivery.bundle_id, delivery.batch.column("number")
        first = values[0].as_py()
        with self.mutex:
            self.counts["delivered"] += 1
            if len(values) != _ROWS or values[_ROWS - 1].as_py() != first + _ROWS - 1:
                self.failures.append(f"{subscriber} got {id_} with other contents than any bundle had")
            if self._acknowledged.get(id_, first) != first:
                self.failures.append(f"{subscriber} got {id_} as {first}, it was pushed as {self._acknowledged[id_]}")
            had = self._had.setdefault(id_, set())
            self.counts["redelivered"] += subscriber in had
            had.add(subscriber)
            self._settle(id_)

    def told(self, subscriber: str, notice: GapNotice) -> None:
        with self.mutex:
            self.counts["told_lost"] += 1
            ids = [
                id_
                for id_ in self._acknowledged
                if (id_.core, id_.segment_seq) == (notice.core, notice.segment_seq)
                and notice.bundle_index_first <= id_.bundle_index <= notice.bundle_index_last
            ]
            if ids:
                self.failures.append(f"{subscriber} is told that {ids[:3]} are lost: {notice.reason}")

    def _settle(self, id_: BundleId) -> None:
        if id_ in self._acknowledged and len(self._had.get(id_, ())) == len(SUBSCRIBERS):
            del self._acknowledged[id_], self._had[id_]

    @property
    def owed(self) -> int:
        with self.mutex:
            return len(self._acknowledged)


class Soak:
    """One node and its clients."""

    def __init__(self, directories: Directories, hours: float, seed: int, *, is_calm: bool = False) -> None:
        self._is_calm = is_calm
        self.book = Book()
        self.samples: list[Sample] = []
        self._directories = directories
        self._random = Random(seed)
        self._end = time.monotonic() + 3600 * hours
        self._is_over = threading.Event()
        self._is_drained = threading.Event()
        self._per_second = float("inf")
        self._numbers = iter(range(0, 1 << 62, _GROUP))
        self._node = self._start_node()

    def run(self) -> None:
        others = Actors(self._client, self._is_over, self.book.counts, self.book.failures)
        actors = [
            *(threading.Thread(target=self._guarded, args=(target,)) for target in others.targets()),
            threading.Thread(target=self._guarded, args=(self._produce,)),
            *(threading.Thread(target=self._guarded, args=(self._consume, name)) for name in SUBSCRIBERS),
        ]
        for actor in actors:
            actor.start()
        try:
            self._calibrate()
            self._storm()
        finally:
            self._is_over.set()
            self._drain(others)
            self._is_drained.set()
            others.drained()
            for actor in actors:
                actor.join()
            self._stop_node()
        self._judge()

    def _guarded(self, action: object, *arguments: object) -> None:
        try:
            action(*arguments)  # type: ignore[operator]
        except Exception as error:
            self.book.failures.append(f"{type(error).__name__}: {error}")
            raise

    # --- the node ----------------------------------------------------------------------------------------------------------

    def _start_node(self) -> subprocess.Popen[bytes]:
        base = self._directories.base
        (base / "quiver.toml").write_text(_CONFIG)
        arguments = ["up", "--config", str(base / "quiver.toml"), "--cores", str(_CORES)]
        arguments += ["--data-dir", str(self._directories.data), "--run-dir", str(self._directories.run)]
        with (base / "log").open("ab") as log:
            started = subprocess.Popen(
                command_line("quiver_actors.cli.main", *arguments), cwd=ROOT, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _READY_SECONDS
        while len(self._worker_pids()) < _CORES:
            if time.monotonic() > deadline or started.poll() is not None:
                raise AssertionError(f"the node is not ready: {(base / 'log').read_text()[-2000:]}")
            self._is_over.wait(0.2)
        return started

    def _worker_pids(self) -> list[int]:
        with contextlib.suppress(Exception):
            reply = control.request(str(self._directories.run / control.SOCKET_NAME), control.Status())
            if isinstance(reply, control.NodeStatus):
                return [child.pid for child in reply.children if child.pid]
        return []

    def _stop_node(self) -> None:
        self._node.terminate()
        self._node.wait(_READY_SECONDS)

    # --- clients -----------------------------------------------------------------------------------------------------------

    def _client(self) -> Client:
        while True:
            try:
                return connect(str(self._directories.run), timeout=60.0)
            except QuiverError:
                if self._is_over.wait(0.2):
                    raise

    def _produce(self) -> None:
        due = time.monotonic()
        with self._client() as client:
            while not self._is_over.is_set():
                first = next(self._numbers)
                try:
                    receipts = client.push_many([bundle(number) for number in range(first, first + _GROUP)], timeout=60)
                except QuiverError:
                    self.book.counts["pushes_unanswered"] += 1
                    continue
                self.book.acknowledged([receipt.bundle_id for receipt in receipts], first)
                due = max(due + _GROUP / self._per_second, time.monotonic() - 1.0)
                self._is_over.wait(max(0.0, due - time.monotonic()))

    def _consume(self, name: str) -> None:
        random = Random(f"{name}")
        while not self._is_drained.is_set():
            with self._client() as client, contextlib.suppress(QuiverError):
                subscription = client.subscribe(name, start="earliest", gaps="deliver")
                until = time.monotonic() + random.uniform(*_CONSUMER_LIVES_SECONDS)
                try:
                    while time.monotonic() < until and not self._is_drained.is_set():
                        self._take(name, subscription.get(timeout=0.5))
                finally:
                    subscription.abort()
                    self.book.counts["consumers_gone"] += 1

    def _take(self, name: str, item: Delivery | GapNotice | None) -> None:
        if isinstance(item, GapNotice):
            self.book.told(name, item)
        elif item is not None:
            self.book.delivered(name, item)
            item.ack()

    # --- what goes on ------------------------------------------------------------------------------------------------------

    def _calibrate(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self.book.counts["delivered"] and time.monotonic() < deadline:
            self._is_over.wait(0.2)
        self._is_over.wait(_CALIBRATION_SECONDS / 2)
        before, started = self.book.counts["acknowledged"], time.monotonic()
        self._is_over.wait(_CALIBRATION_SECONDS)
        seen = (self.book.counts["acknowledged"] - before) / (time.monotonic() - started)
        self._per_second = max(1.0, LOAD_SHARE * seen)
        print(f"takes {seen:.0f} bundles/s with everybody reading; from now on {self._per_second:.0f}", flush=True)

    def _storm(self) -> None:
        kill_at = time.monotonic() + min(KILL_SECONDS, max(1.0, (self._end - time.monotonic()) / 4))
        print_at = 0.0
        while time.monotonic() < self._end and not self.book.failures:
            self._sample()
            if time.monotonic() >= print_at:
                print_at = time.monotonic() + _PRINT_SECONDS
                print(self._line(), flush=True)
            if not self._is_calm and time.monotonic() >= kill_at:
                kill_at += KILL_SECONDS
                self.book.counts["rounds"] += 1
                (self._burst if self.book.counts["rounds"] % _BURST_EVERY == 0 else self._kill_one)()
            self._is_over.wait(_SAMPLE_SECONDS)

    def _kill_one(self, number: signal.Signals = signal.SIGKILL) -> None:
        pids = self._worker_pids()
        if pids:
            pid = self._random.choice(pids)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                self.book.counts[number.name] += 1
            if number is signal.SIGSTOP:
                self._is_over.wait(2.0)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _burst(self) -> None:
        for _ in range(3 * _CORES):
            self._kill_one()
            self._is_over.wait(0.3)
        self._kill_one(signal.SIGSTOP)
        pids = self._worker_pids()
        self._node.kill()
        self._node.wait()
        wait_until_dead(pids)
        self.book.counts["node_killed"] += 1
        self._node = self._start_node()

    def _drain(self, others: Actors) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while (self.book.owed or others.owed) and time.monotonic() < deadline:
            threading.Event().wait(0.2)
        if others.owed:
            self.book.failures.append(f"{others.owed} small bundles that were acknowledged or committed did not come")
        if self.book.owed:
            self.book.failures.append(f"{self.book.owed} acknowledged bundles did not reach both subscribers")

    def _judge(self) -> None:
        for name, most in GROWTH_MAX.items():
            if drift_of(self.samples, name)["drift"] > most:
                self.book.failures.append(f"{name} grow: {drift_of(self.samples, name)}")
        for name in _FLAT if self._is_calm else ():
            first, last = after_warming_up(self.samples, name, _SAMPLE_SECONDS)
            if abs(last - first) > FLAT_SHARE * first:
                self.book.failures.append(f"{name} is not flat: {first:,} after the first minutes, {last:,} at the end")

    # --- figures -----------------------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        self.samples.append(take_sample(self._node.pid, self._worker_pids()))

    def _line(self) -> str:
        sample, counts = self.samples[-1], self.book.counts
        left = max(0.0, self._end - time.monotonic()) / 60
        return f"{left:6.1f} min left  acknowledged {counts['acknowledged']:,}  owed {self.book.owed:,}  " + "  ".join(
            f"{name} {value:,}" for name, value in sample._asdict().items()
        )

    def figures(self) -> dict[str, object]:
        drift = {name: drift_of(self.samples, name) for name in Sample._fields}
        flat = {name: after_warming_up(self.samples, name, _SAMPLE_SECONDS) for name in _FLAT}
        failures = len(self.book.failures)
        return {**dict(sorted(self.book.counts.items())), "open_failures": failures, "drift": drift, "flat": flat}


@contextlib.contextmanager
def directories() -> Iterator[Directories]:
    made = Directories()
    try:
        yield made
    finally:
        made.remove()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calm", action="store_true", help="nobody is killed; memory must end flat")
    arguments = parser.parse_args()
    started = time.monotonic()
    with directories() as made:
        soak = Soak(made, arguments.hours, arguments.seed, is_calm=arguments.calm)
        soak.run()
    for failure in soak.book.failures:
        print(failure)
    hours = round((time.monotonic() - started) / 3600, 3)
    print(json.dumps({"soak_hours": hours, "load_share": LOAD_SHARE, **soak.figures()}))
    return bool(soak.book.failures)


if __name__ == "__main__":
    sys.exit(main())
