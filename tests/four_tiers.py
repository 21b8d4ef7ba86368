"""Many bundles, read over four tiers while they move: `python -m tests.four_tiers [--bundles 1000000] [--subscribe]`; ends with one line
of JSON. With `--segment-bytes 300000` the archiver merges small segments meanwhile.

One producer pushes bundles of one row, each with its number. Meanwhile logs are sealed, segments are uploaded and moved to a cold disk, and
what is archived leaves the disk, so that the newest bundles lie in the open log, older ones in hot segments, still older ones in cold
ones, and the oldest in the archive alone. Two readers read ranges that begin anywhere and end anywhere, or where the log ends at that
moment. At the end all is read once more.

Every tenth of the bundles, and of those that are read at the end, the memory of the worker, the archiver and this process is printed
(`RssAnon`).

What must hold: each read gives the numbers of its range, in order, each once, with their rows, and everything that was acknowledged
before the read was asked for. Samples say whether all four tiers had bundles at the same time.

With `--subscribe` segments also expire after two seconds, whoever needs them. A subscriber begins with the oldest bundle when half of them
are pushed, and must get all of them, in order, each once, without a gap notice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import psutil
import pyarrow as pa

from quiver_actors.base.archive_status import read_archive_status
from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery, StoredBundle
from tests.integration.client_node import ClientNode, client_node
from tests.soak_samples import status_kib

GROUP = 1000
READERS = 2
SAMPLE_EVERY = 20
"""Groups from one look at the tiers to the next."""
RANGE_GROUPS_MAX = 20
PATIENCE_SECONDS = 120.0
TIERS = ("archive", "cold", "hot", "open")
CONFIG = """
node = "tiers"
[segment]
target_size = "{segment_bytes}B"
max_open_duration = "1h"
[archive]
url = "file://{directory}/archive"
enabled = true
keep_local_size = "{local_bytes}B"
[tier]
cold_dir = "{directory}/cold"
keep_hot = 2
"""
EXPIRING = """
[retention]
max_age = "2s"
[topics.default.archive]
require = true
"""


def text_of(number: int) -> str:
    """The second value of a bundle's row."""
    return f"bundle {number:x}"


def group_of(first: int) -> list[pa.RecordBatch]:
    """The bundles of a group."""
    numbers = range(first, first + GROUP)
    rows = pa.record_batch({"number": pa.array(np.arange(first, first + GROUP)), "text": list(map(text_of, numbers))})
    return [rows.slice(row, 1) for row in range(GROUP)]


def values_of(bundle: StoredBundle | Delivery) -> tuple[int, str]:
    """What a bundle says."""
    batch = bundle.batch
    assert batch.num_rows == 1
    return batch.column("number")[0].as_py(), batch.column("text")[0].as_py()


class FourTiers:
    """One run: the main thread pushes, others read."""

    def __init__(self, node: ClientNode, cold: Path, bundles: int, seed: int, *, subscribes: bool) -> None:
        self.failures: list[str] = []
        self.figures: dict[str, object] = {"bundles": bundles}
        self._node = node
        self._cold = cold
        self._bundles = bundles
        self._seed = seed
        self._subscribes = subscribes
        self._consumed = 0
        self._starts: list[BundleId] = []
        """The id of each group's first bundle, of the groups that are acknowledged."""
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._reads = self._read_bundles = 0
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._pids: dict[str, int] = {}
        self._anon_mib: dict[str, list[int]] = {}

    def run(self) -> None:
        with self._node.connect() as client:
            # From here on the archiver is a subscriber: without any, a log whose seal has begun is read only when that is done.
            self._push(client)
            client.flush(until="archived", timeout=PATIENCE_SECONDS)
        self._pids = {"worker": self._node.pids[0], "archiver": archiver_of(self._node), "reader": os.getpid()}
        readers = [threading.Thread(target=self._read_on, args=(self._seed + number,)) for number in range(READERS)]
        readers += [threading.Thread(target=self._consume)] if self._subscribes else []
        for reader in readers:
            reader.start()
        started = time.monotonic()
        try:
            with self._node.connect() as client:
                self._push_all(client)
        finally:
            self._is_over.set()
            for reader in readers:
                reader.join()
        pushed = time.monotonic()
        self.figures |= {"push_seconds": round(pushed - started, 1), "reads": self._reads, "read": self._read_bundles}
        self.figures["samples"] = sum(self._seen.values())
        self.figures["samples_with_all_tiers"] = self._seen[TIERS]
        with self._node.connect() as client:
            self.figures["at_the_end"] = self._sizes_with_archive(client)
            self._read_range(client, 0, None, is_shown=True)
        self.figures["last_read_seconds"] = round(time.monotonic() - pushed, 1)
        self.figures["anon_mib"] = self._anon_mib

    def _show(self, text: str) -> None:
        """Print how far it is, and the memory of all processes."""
        found = {name: status_kib(pid, "RssAnon") >> 10 for name, pid in self._pids.items()}
        for name, mib in found.items():
            self._anon_mib.setdefault(name, []).append(mib)
        print(f"{text}; MiB: {found}", flush=True)

    def _push_all(self, client: Client) -> None:
        tenth = max(1, self._bundles // GROUP // 10)
        shown: dict[str, int] = {}
        for number in range(1, self._bundles // GROUP):
            if self.failures:
                return
            self._push(client)
            if number % SAMPLE_EVERY == SAMPLE_EVERY - 1:
                sizes = self._sizes(client)
                self._seen[tuple(tier for tier in TIERS if sizes[tier])] += 1
                shown = sizes
            if (number + 1) % tenth == 0:
                self._show(f"{(number + 1) * GROUP:,} pushed, {self._read_bundles:,} read; {shown}")

    def _push(self, client: Client) -> None:
        receipts = client.push_many(group_of(len(self._starts) * GROUP), timeout=PATIENCE_SECONDS)
        self._starts.append(receipts[0].bundle_id)

    def _sizes(self, client: Client) -> dict[str, int]:
        """How many bundles lie where: of what is on the disk, each counts once. It moves meanwhile: a sample, no proof."""
        cold = {int(path.stem) for path in self._cold.glob("default/core_0/*/*.qseg")}
        found, gone = client.readable()[0], client.archived()[0]
        on_disk = [(info.bundle_count, info.segment_seq in cold) for info in found.sealed]
        return {
            "archive": sum(info.bundle_count for info in gone),
            "cold": sum(count for count, is_cold in on_disk if is_cold),
            "hot": sum(count for count, is_cold in on_disk if not is_cold),
            "open": sum(info.bundle_count for info in found.unsealed),
        }

    def _sizes_with_archive(self, client: Client) -> dict[str, int]:
        """`_sizes`, once something has left the disk: the archiver has the lowest priority of all, and may have come to nothing yet."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (sizes := self._sizes(client))["archive"] and time.monotonic() < deadline:
            threading.Event().wait(0.1)
        return sizes

    # --- readers -------------------------------------------------------------------------------------------------------------

    def _read_on(self, seed: int) -> None:
        rng = Random(seed)
        try:
            with self._node.connect() as client:
                while not self._is_over.is_set() and not self.failures:
                    known = len(self._starts)
                    if not known:
                        self._is_over.wait(0.01)
                        continue
                    first = rng.randrange(known)
                    end = first + rng.randint(1, RANGE_GROUPS_MAX)
                    self._read_range(client, first, end if end < known and rng.random() < 0.8 else None)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")
            raise

    def _read_range(self, client: Client, first: int, end: int | None, *, is_shown: bool = False) -> None:
        """Read the groups `[first, end)` and compare; None: up to the end of the log, whatever that is now."""
        tenth = max(1, self._bundles // 10)
        known = len(self._starts)
        bundles = client.read("default", 0, self._starts[first], None if end is None else self._starts[end])
        expected = first * GROUP
        for bundle in bundles:
            if end is None and self._is_long(expected - first * GROUP):
                break
            if (found := values_of(bundle)) != (expected, text_of(expected)):
                self.failures.append(f"{bundle.bundle_id} has {found}: {expected} was to come")
                return
            expected += 1
            if is_shown and expected % tenth == 0:
                self._show(f"{expected:,} read at the end")
        else:
            least = known if end is None else end
            if expected < least * GROUP or (end is not None and expected > end * GROUP):
                self.failures.append(
                    f"the groups {first} to {end} ended with bundle {expected - 1}, {known} were known"
                )
        with self._lock:
            self._reads += 1
            self._read_bundles += expected - first * GROUP

    # --- the subscriber ------------------------------------------------------------------------------------------------------

    def _consume(self) -> None:
        """Get all bundles from the oldest one on, while they leave the disk."""
        while 2 * len(self._starts) * GROUP < self._bundles and not self._is_over.is_set():
            self._is_over.wait(0.01)
        try:
            with self._node.connect() as client:
                self._consume_all(client)
        except Exception as error:
            self.failures.append(f"the subscriber: {type(error).__name__}: {error}")
            raise

    def _consume_all(self, client: Client) -> None:
        with client.subscribe("late", start=0, gaps="deliver", idle_timeout=PATIENCE_SECONDS) as deliveries:
            while self._consumed < self._bundles and not self.failures:
                item = deliveries.get(PATIENCE_SECONDS)
                if not isinstance(item, Delivery):
                    self.failures.append(f"the subscriber got {item}: {self._consumed} was to come")
                    return
                if (found := values_of(item)) != (self._consumed, text_of(self._consumed)):
                    self.failures.append(
                        f"{item.bundle_id} has {found} for the subscriber: {self._consumed} was to come"
                    )
                item.ack()
                self._consumed += 1
            deliveries.flush()
            if not deliveries.all_drained():
                self.failures.append("the subscriber is owed more than was pushed")
        self.figures["consumed"] = self._consumed

    def _is_long(self, count: int) -> bool:
        """Whether a read without an end has read enough. The last one reads all."""
        return not self._is_over.is_set() and count >= RANGE_GROUPS_MAX * GROUP


def run_four_tiers(
    bundles: int, seed: int = 1, *, segment_bytes: int = 1 << 20, local_bytes: int = 8 << 20, subscribes: bool = False
) -> FourTiers:
    """One run on a node of its own."""
    more = EXPIRING if subscribes else ""
    with tempfile.TemporaryDirectory() as directory, tiered_node(directory, segment_bytes, local_bytes, more) as node:
        tiers = FourTiers(node, Path(directory, "cold"), bundles, seed, subscribes=subscribes)
        tiers.run()
        status = read_archive_status(str(node.directories.run))
        tiers.figures["uploaded_segments"] = 0 if status is None else status.uploaded_segments
        tiers.figures["merged_segments"] = 0 if status is None else status.merged_segments
        return tiers


def archiver_of(node: ClientNode) -> int:
    """The process id of a node's archiver."""
    found = psutil.Process(node.process.pid).children(recursive=True)
    return next(each.pid for each in found if "quiver_actors.archive" in each.cmdline())


@contextlib.contextmanager
def tiered_node(directory: str, segment_bytes: int, local_bytes: int, more: str = "") -> Iterator[ClientNode]:
    """A node with all four tiers, in a directory."""
    Path(directory, "cold").mkdir()
    config = CONFIG.format(directory=directory, segment_bytes=segment_bytes, local_bytes=local_bytes)
    with client_node(cores=1, config=config + more) as started:
        yield started


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(prog="python -m tests.four_tiers")
    parser.add_argument("--bundles", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--segment-bytes", type=int, default=1 << 20)
    parser.add_argument("--subscribe", action="store_true", help="let segments expire, and a subscriber get them all")
    arguments = parser.parse_args()
    bundles, size_bytes = arguments.bundles // GROUP * GROUP, arguments.segment_bytes
    tiers = run_four_tiers(bundles, arguments.seed, segment_bytes=size_bytes, subscribes=arguments.subscribe)
    for failure in tiers.failures:
        print(failure)
    print(json.dumps({**tiers.figures, "failures": len(tiers.failures)}))
    return bool(tiers.failures)


if __name__ == "__main__":
    sys.exit(main())
