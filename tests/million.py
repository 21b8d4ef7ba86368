"""A million bundles, read live: `python -m tests.million [--bundles 1000000] [--held 300000]`; ends with one line of JSON.

One producer pushes numbered bundles of one row into a topic with small segments, and now and then a transaction. A subscriber reads them as
they come, out of logs that are being written, sealed and rotated. After a third of them the worker is killed while pushes are under way.
After two thirds the node is stopped, its sealed segments are compacted, and it is started again.

What must hold: the subscriber gets every bundle, in the order of its pushes, and none again after the acknowledgement of it was durable
(`flush` had returned). At the end another subscriber takes the first of them, out of compacted segments, and holds them without an answer.
The worker's memory (`RssAnon`) is printed for each tenth of the bundles that are stored, and of those that are held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from quiver_actors.client import Client, Delivery, GapNotice
from quiver_actors.client.refused import RefusedResolution
from quiver_actors.errors import QuiverError, WorkerUnavailable
from tests.integration.client_node import ClientNode, client_node
from tests.integration.node_process import ROOT, command_line
from tests.soak_samples import status_kib

GROUP = 1000
TRANSACTION_EVERY = 10
"""Groups from one transaction to the next."""
TRANSACTION_BUNDLES = 20
BEHIND_MAX = 4 * GROUP
"""How far the producer may be ahead of the reader: what is read is not sealed yet as a rule."""
FLUSH_EVERY = 1000
RESTARTS = 2
PATIENCE_SECONDS = 300.0
CONFIG = '[segment]\ntarget_size = "1MiB"\nmax_open_duration = "1h"\n'


class Row:
    """The bundles of one kind in the order in which they were pushed, as the reader gets them."""

    def __init__(self) -> None:
        self.last = 0
        """The number of the newest bundle that came; the first one is 1."""
        self.durable = 0
        """The number up to which acknowledgements are durable."""
        self.returns = 0

    def take(self, number: int) -> str:
        """Note a bundle. Returns what is wrong with it; empty if nothing is."""
        if number <= self.durable:
            return f"bundle {number} came again, bundles up to {self.durable} were acknowledged durably"
        if number > self.last + 1:
            return f"bundle {number} came after {self.last}"
        if number <= self.last:
            self.returns += 1
            if self.returns > RESTARTS:
                return f"bundle {number} came after {self.last}, and {RESTARTS} restarts have explained others"
        self.last = number
        return ""


class Million:
    """One run: the main thread pushes and restarts, another thread reads."""

    def __init__(self, node: ClientNode, bundles: int, held: int) -> None:
        """
        Args:
            bundles: how many are pushed; whole groups.
            held: how many of them are held at the end.
        """
        self.failures: list[str] = []
        self.figures: dict[str, object] = {"bundles": bundles}
        self.anon_kib: dict[str, list[int]] = {"stored": [], "held": []}
        self._node = node
        self._bundles = bundles
        self._held = min(held, bundles)
        self._plain, self._published = Row(), Row()
        self._moved = threading.Condition()
        self._is_over = False

    def run(self) -> None:
        with self._node.connect() as client:
            for name in ("live", "late"):
                client.subscribe(name, start="earliest").close()
        reader = threading.Thread(target=self._read)
        reader.start()
        started = time.monotonic()
        try:
            with self._node.connect() as client:
                self._push_all(client)
            self._wait_for(lambda: self._plain.last == self._bundles, "the last bundle")
        finally:
            self._is_over = True
            reader.join()
        self.figures["seconds"] = round(time.monotonic() - started, 1)
        self.figures["delivered_again"] = self._plain.returns
        self.figures["published"] = self._published.last
        if not self.failures:
            self._hold()

    # --- the producer --------------------------------------------------------------------------------------------------------

    def _push_all(self, client: Client) -> None:
        groups = self._bundles // GROUP
        killer: threading.Thread | None = None
        transactions = 0
        for number in range(groups):
            if number == groups // 3:
                killer = threading.Thread(target=self._node.kill_worker, args=(0,))
                killer.start()
            if number == 2 * groups // 3:
                self._restart()
            self._push(client, 1 + number * GROUP)
            if killer is not None:
                killer.join()
                killer = None
            if number % TRANSACTION_EVERY == 0:
                self._publish(client, transactions)
                transactions += 1
            if (number + 1) % max(1, groups // 10) == 0:
                self.anon_kib["stored"].append(status_kib(self._node.pids[0], "RssAnon"))
                print(f"{self._plain.last:,} delivered, worker {self.anon_kib['stored'][-1]:,} KiB", flush=True)
            reached = (number + 1) * GROUP
            self._wait_for(partial(self._has_read, reached - BEHIND_MAX), "the reader")
        self._wait_for(lambda: self._published.last == transactions * TRANSACTION_BUNDLES, "what was published")

    def _push(self, client: Client, first: int) -> None:
        """Push one group under its numbers, again after a loss: it is stored once."""
        rows = pa.record_batch({"number": pa.array(np.arange(first, first + GROUP, dtype=np.int64))})
        bundles = [rows.slice(row, 1) for row in range(GROUP)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                client.push_many(bundles, producer="counter", sequence=first, timeout=60.0)
            except QuiverError:
                if time.monotonic() > deadline:
                    raise
            else:
                return

    def _publish(self, client: Client, number: int) -> None:
        """A transaction of bundles with numbers of their own, below 0."""
        first = 1 + number * TRANSACTION_BUNDLES
        with client.transaction(f"million-{number}") as transaction:
            for own in range(first, first + TRANSACTION_BUNDLES):
                transaction.push(pa.record_batch({"number": pa.array([-own], pa.int64())}))

    def _restart(self) -> None:
        """Stop the node, compact what is stored, and start it again."""
        self._node.process.stop()
        command = command_line(
            "quiver_actors.cli.main", "compact", "--data-dir", str(self._node.directories.data), "--json"
        )
        done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
        (segments,) = json.loads(done.stdout)["engines"].values()
        self.figures["segments_then"] = len(segments)
        self.figures["compacted"] = sum(each["new_size_bytes"] is not None for each in segments)
        self._node.restart()

    def _has_read(self, number: int) -> bool:
        return self._plain.last >= number

    def _wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        with self._moved:
            done = self._moved.wait_for(lambda: bool(self.failures) or is_so(), PATIENCE_SECONDS)
        if self.failures or not done:
            raise AssertionError("; ".join(self.failures) or f"{what} did not come within {PATIENCE_SECONDS} s")

    # --- the reader ----------------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            with (
                self._node.connect() as client,
                client.subscribe("live", prefetch=1024, lease=None, gaps="deliver") as events,
            ):
                since_flush = 0
                while not self._is_over and not self.failures:
                    event = events.get(0.5)
                    if event is None:
                        continue
                    self._take(event)
                    since_flush += 1
                    if since_flush >= FLUSH_EVERY:
                        since_flush = 0
                        self._make_durable(events.flush)
                self._make_durable(events.flush)
                if not self.failures and not events.all_drained():
                    self.failures.append("something is pending although everything has come")
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise

    def _take(self, event: Delivery | GapNotice) -> None:
        if isinstance(event, GapNotice):
            self._fail(f"told of a loss: {event}")
            return
        number = int(event.batch.column("number")[0].as_py())
        wrong = self._plain.take(number) if number > 0 else self._published.take(-number)
        if wrong:
            self._fail(wrong)
        event.ack()
        with self._moved:
            self._moved.notify_all()

    def _make_durable(self, flush: Callable[[float], list[RefusedResolution]]) -> None:
        at = self._plain.last, self._published.last
        # Some of it was not durable when its worker was lost: it comes again.
        with contextlib.suppress(WorkerUnavailable):
            if not flush(PATIENCE_SECONDS):
                self._plain.durable, self._published.durable = at

    def _fail(self, reason: str) -> None:
        with self._moved:
            self.failures.append(reason)
            self._moved.notify_all()

    # --- what is held --------------------------------------------------------------------------------------------------------

    def _hold(self) -> None:
        """Take the first bundles as another subscriber, and keep them."""
        row, every = Row(), max(1, self._held // 3)
        kept: list[Delivery] = []
        self.anon_kib["held"].append(status_kib(self._node.pids[0], "RssAnon"))
        with self._node.connect() as client, client.subscribe("late", prefetch=4096, lease=None) as deliveries:
            while len(kept) < self._held:
                for delivery in deliveries.get_many(1000, timeout=PATIENCE_SECONDS):
                    number = int(delivery.batch.column("number")[0].as_py())
                    if number > 0 and (wrong := row.take(number)):
                        self._fail(wrong)
                        return
                    kept.append(delivery)
                    if len(kept) % every == 0:
                        self.anon_kib["held"].append(status_kib(self._node.pids[0], "RssAnon"))
            for delivery in kept:
                delivery.ack()
            deliveries.flush(PATIENCE_SECONDS)


def run_million(bundles: int, held: int) -> Million:
    """One run on a node of its own."""
    with node() as started:
        million = Million(started, bundles, held)
        million.run()
        return million


@contextlib.contextmanager
def node() -> Iterator[ClientNode]:
    with client_node(cores=1, config=CONFIG) as started:
        yield started


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.million")
    parser.add_argument("--bundles", type=int, default=1_000_000)
    parser.add_argument("--held", type=int, default=300_000, help="bundles that are held at the end")
    arguments = parser.parse_args()
    million = run_million(arguments.bundles // GROUP * GROUP, arguments.held)
    for failure in million.failures:
        print(failure)
    print(json.dumps({**million.figures, "worker_anon_kib": million.anon_kib, "failures": len(million.failures)}))
    return bool(million.failures)


if __name__ == "__main__":
    sys.exit(main())
