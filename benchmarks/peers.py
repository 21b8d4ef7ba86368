"""What would a user of one node get from another store, with the same bundles, the same durability and the same bytes outstanding?

Method: groups of bundles, one outstanding group, the next when the whole of it is on the disk. Bundles of 1 KiB and 64 KiB (the bytes of an
encoded Arrow stream of one batch), groups of one, of 64 KiB or 1 MiB, and of 4 or 16 MiB. `quiver` is a real node with one worker:
the bundles are RecordBatches that it encodes, a process of its own checks, syncs and seals them. The others get ready-encoded bytes,
which spares them that work (`encode` says how much it is), except `pyarrow stream`, which encodes as it writes. How each makes a
group durable stands in benchmarks/stores.py. Redis and JetStream have a server process as Quiver has; LMDB, SQLite, RocksDB,
persist-queue and the plain file run inside the producer, serve no second process, and seal nothing.

`read` is everything stored read back in order by one process, each bundle opened as an Arrow batch: for Quiver the sealed segments.
CPU is user + system of the producer and of the server together.

Peers, interleaved in one run: all of the above. A figure is Quiver's rate against that peer's: above 1, Quiver is ahead. `make bench-peers`
installs them; one that is not there is named as skipped.

    python -m benchmarks.peers [--quick] [--json] [--rounds N] [--dir D] [--only PEER ...] [--seconds S]
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Measurements,
    Report,
    begun,
    cpu_seconds,
    parser,
    percentile,
    read_options,
    run_interleaved,
    running_node,
    warm_memory,
    workers_of,
)
from benchmarks.ingest import make_batches
from benchmarks.stores import PEERS, PlainFile, Store

KIB, MIB = 1 << 10, 1 << 20
STORED_BYTES_MAX = 1 << 30
"""Upper limit for the bytes of one candidate in one round: the page cache must hold them."""


@dataclass(frozen=True, slots=True)
class Case:
    """`group`: bundles outstanding."""

    bundle_bytes: int
    group: int

    @property
    def name(self) -> str:
        return f"{self.bundle_bytes // KIB}KiB/{self.group}outstanding"


CASES = tuple(Case(KIB, group) for group in (1, 64, 4096)) + tuple(Case(64 * KIB, group) for group in (1, 16, 256))


class Quiver:
    """The product behind the calls of a `Store`."""

    def __init__(self, directory: str) -> None:
        self._held = contextlib.ExitStack()
        run_dir = self._held.enter_context(running_node(directory))
        self._client = self._held.enter_context(quiver_actors.connect(run_dir))
        self._client.subscribe("reader", start="earliest").close()  # keeps what nobody has read
        self.processes = workers_of(run_dir)

    def append(self, group: Sequence[pa.RecordBatch]) -> None:
        if len(group) == 1:
            self._client.push(group[0])
        else:
            self._client.push_many(group)

    def before_read(self) -> None:
        """Seal: peers' bundles are where they will be read from, too."""
        self._client.flush()

    def read(self) -> Iterator[pa.RecordBatch]:
        for bundle in self._client.read("default", 0):
            yield bundle.batch

    def close(self) -> None:
        self._held.close()


def encoded(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return cast(bytes, sink.getvalue().to_pybytes())


def as_batch(stored: Any) -> pa.RecordBatch:
    if isinstance(stored, pa.RecordBatch):
        return stored
    return pa.ipc.open_stream(pa.py_buffer(stored)).read_next_batch()


def measure(make: Callable[[str], Any], takes_batches: bool, base: str, case: Case, seconds: float) -> Measurements:
    """Append groups for so long to a store that `make` opens, then read all back."""
    batches = make_batches(case.bundle_bytes)
    bundles = batches if takes_batches else [encoded(batch) for batch in batches]
    group = [bundles[number % len(bundles)] for number in range(case.group)]
    directory = tempfile.mkdtemp(prefix="store-", dir=base)
    try:
        store = make(directory)
        try:
            store.append(group[:1])
            warm_memory(int(seconds * STORED_BYTES_MAX))
            measured, stored = append_for(store, group, case, seconds)
            return {**measured, **read_back(store, stored + 1, len(batches[0]))}
        finally:
            store.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def append_for(store: Any, group: Sequence[Any], case: Case, seconds: float) -> tuple[Measurements, int]:
    took: list[float] = []
    servers = cpu_seconds(*store.processes)
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() < started + seconds and len(took) * case.group * case.bundle_bytes < STORED_BYTES_MAX:
        before = time.perf_counter()
        store.append(group)
        took.append((time.perf_counter() - before) * 1e6)
    spent = time.perf_counter() - started
    cpu = time.process_time() - cpu + cpu_seconds(*store.processes) - servers
    stored = len(took) * case.group
    took.sort()
    rate = stored / spent
    figures = {"bundles/s": rate, "MB/s": rate * case.bundle_bytes / 1e6, "cpu": cpu / stored * 1e6}
    return {**figures, "p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}, stored


def read_back(store: Any, stored: int, rows: int) -> Measurements:
    if isinstance(store, Quiver):
        store.before_read()
    started, found, found_rows = time.perf_counter(), 0, 0
    for bundle in store.read():
        found_rows += as_batch(bundle).num_rows
        found += 1
    took = time.perf_counter() - started
    assert (found, found_rows) == (stored, stored * rows), f"{found} of {stored} bundles came back"
    return {"read": found / took}


def compare(report: Report, base: str, case: Case, peers: Sequence[type[Store]], rounds: int, seconds: float) -> None:
    candidates = {"quiver": partial(measure, Quiver, True, base, case, seconds)}
    for peer in peers:
        candidates[peer.name] = partial(measure, peer, peer is PlainFile, base, case, seconds)
    results = run_interleaved(candidates, rounds, warm_bytes=int(seconds * STORED_BYTES_MAX))
    ours = results["quiver"]
    for name, found in results.items():
        at = f"peers/{case.name}/{name}"
        report.show_rounds(at, found, "bundles/s", "bundles/s", "synced")
        report.show_rounds(f"{at}/ack_p50", found, "p50", "us/group", "synced")
        report.show_rounds(f"{at}/cpu", found, "cpu", "us/bundle", "synced")
        report.show_rounds(f"{at}/read", found, "read", "bundles/s", "synced")
    for name, found in list(results.items())[1:]:
        report.show_rounds(f"peers/{case.name}/quiver", ours, "bundles/s", "bundles/s", "synced", (name, found))
        report.show_rounds(f"peers/{case.name}/quiver/read", ours, "read", "bundles/s", "synced", (name, found))


def show_encoding(report: Report, bundle_bytes: int, rounds: int) -> None:
    """What the peers are spared: a batch to the bytes of a stream."""
    batches = make_batches(bundle_bytes)
    results: list[Measurements] = []
    for _ in range(rounds):
        started = time.process_time_ns()
        for batch in batches:
            encoded(batch)
        results.append({"us": (time.process_time_ns() - started) / 1e3 / len(batches)})
    report.show_rounds(f"peers/{bundle_bytes // KIB}KiB/encode", results, "us", "us/bundle", "none")


def installed(report: Report, only: Sequence[str]) -> list[type[Store]]:
    """Return the stores that can run here; the others are reported."""
    found = []
    for peer in PEERS:
        if only and peer.name not in only:
            continue
        if why := peer.missing():
            report.skipped(peer.name, why)
        else:
            found.append(peer)
    return found


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--only", nargs="+", default=[], choices=[peer.name for peer in PEERS], help="these peers")
    found.add_argument("--seconds", type=float, default=0, help="of appending, each (default 0.7, with --quick 0.02)")
    options = read_options(found)
    seconds = options.seconds or (0.02 if options.quick else 0.7)
    with begun(options) as (report, base):
        peers = installed(report, options.only)
        for case in (CASES[1],) if options.quick else CASES:
            compare(report, base, case, peers, options.rounds, seconds)
        for size in (KIB, 64 * KIB):
            show_encoding(report, size, options.rounds)


if __name__ == "__main__":
    main()
