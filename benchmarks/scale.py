"""Does a bundle cost the same when there is much else?

Method: a real node with one worker. 4 KiB bundles are pushed, 64 a call, then read and acknowledged by a subscriber that wants only those,
while one thing is small or large:

    segments       10 or 10,000 sealed segments on the core that a subscriber has not read
    subscribers    1 or 64 subscribers beside, which are owed everything and read nothing
    topics         1 or 500 topics
    claims         0 or 100,000 bundles that another consumer holds, under a lease
    backlog        one sealed segment of 30 MiB that a subscriber has not read, or 635 of them (20 GB)

`push` and `deliver` are the worker's CPU a bundle (user + system of its threads, from the scheduler's own account), with everything
that it does meanwhile: rotation, seals, progress, figures, upkeep. Not time: the machine may be shared. Each pair is interleaved; the
ratio is large against small, and flat means at most 1.2. `idle` is its CPU a second while nothing happens: the part that goes by time, a
few publications of figures and a look at the directory, and that a slow machine's bundles bear more of.

Segments and backlog are copies: one segment is made by a node, then copied under the next numbers while the node is stopped. Those of
the backlog are sparse: what an open and a worker read of a segment is there (its tail, the directory of bundles), the bundles' bytes are a
hole, and nobody reads them; so 20 GB take a few hundred MiB of disk.

    python -m benchmarks.scale [--quick] [--json] [--rounds N] [--dir D] [--only WHAT ...]
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Measurements,
    Report,
    begun,
    cpu_seconds,
    parser,
    read_options,
    run_interleaved,
    running_node,
    worker_of,
)
from quiver_actors.client import Client

KIB, MIB = 1 << 10, 1 << 20
CONFIG = '[retention]\nsize_cap = "100TiB"\n[segment]\ncompaction = "off"\n'
"""A cap puts the worker's work for it into the figures; it is so large that nothing waits for it."""
BEHIND = "behind"
READY_SECONDS = 300.0
SETTLE_SECONDS = 2.5
"""Pause until the work after a burst is done: files are measured two seconds after it, and each subscriber's figures are written again."""
MANY = 10_000
TAIL_BYTES = 256 * KIB
SPARSE_SEGMENT_BYTES = 30 * MIB
_PER_CALL = 64
_HELD_AT_ONCE = 50_000


@dataclass(frozen=True, slots=True)
class Size:
    """What there is beside the bundles that are measured."""

    segments: int = 0
    is_sparse: bool = False
    subscribers: int = 0
    topics: int = 0
    claims: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    small: Size
    large: Size
    told: tuple[str, str]


def pairs(quick: bool) -> dict[str, Pair]:
    part = 100 if quick else 1
    backlog = 20 * 10**9 // SPARSE_SEGMENT_BYTES // part
    return {
        "segments": Pair(Size(segments=10), Size(segments=10_000 // part), ("10", f"{10_000 // part}")),
        "subscribers": Pair(Size(subscribers=1), Size(subscribers=64 // min(part, 8)), ("1", f"{64 // min(part, 8)}")),
        "topics": Pair(Size(), Size(topics=500 // part), ("1", f"{500 // part}")),
        "claims": Pair(Size(), Size(claims=100_000 // part), ("0", f"{100_000 // part}")),
        "backlog": Pair(
            Size(segments=1, is_sparse=True),
            Size(segments=backlog, is_sparse=True),
            ("1segment", f"{backlog}segments"),
        ),
    }


def batch_of(size_bytes: int, number: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"number": np.full(max(1, (size_bytes - 400) // 8), number)})


# --- what there is beside ------------------------------------------------------------------------------------------------


def make_store(base: str, size: Size) -> str:
    """A stopped node's data directory with so many sealed segments that the subscriber `behind` has not read."""
    data_dir = os.path.join(tempfile.mkdtemp(prefix="store-", dir=base), "data")
    with running_node(base, CONFIG, data_dir=data_dir) as run_dir, quiver_actors.connect(run_dir) as client:
        client.subscribe(BEHIND, start="earliest").close()
        bundle_bytes = 64 * KIB if size.is_sparse else 4 * KIB
        bundles = (SPARSE_SEGMENT_BYTES if size.is_sparse else 64 * KIB) // bundle_bytes
        client.push_many([batch_of(bundle_bytes, number) for number in range(bundles)])
        client.flush()
    copy_segments(os.path.join(data_dir, "default", "core_0", "segments"), size)
    return data_dir


def copy_segments(directory: str, size: Size) -> None:
    """Make it so many: the same segment under the next numbers."""
    (first,) = Path(directory).glob("*.qseg")
    copy = copy_tail if size.is_sparse else shutil.copyfile
    for number in range(1, size.segments):
        copy(str(first), os.path.join(directory, f"{int(first.stem) + number:016}.qseg"))


def copy_tail(source: str, target: str) -> None:
    """A sparse copy: the file's length, its head, and the last part, in which everything is that stands behind the bundles."""
    with open(source, "rb") as whole, open(target, "wb") as sparse:
        size = os.fstat(whole.fileno()).st_size
        os.truncate(sparse.fileno(), size)
        for start, end in ((0, 4 * KIB), (size - TAIL_BYTES, size)):
            os.pwrite(sparse.fileno(), os.pread(whole.fileno(), end - start, start), start)


@contextlib.contextmanager
def held(client: Client, count: int) -> Iterator[None]:
    """A consumer of one subscriber holds so many bundles, under a lease that does not end meanwhile.

    One alone: a second one's prefetch and its own would share what is left, and neither could have all of it.
    """
    if not count:
        yield
        return
    client.subscribe("holder", start="earliest").close()
    client.push_many([batch_of(64)] * count)
    client.flush()
    subscription = client.subscribe("holder", prefetch=_HELD_AT_ONCE, lease=600)
    taken: list[object] = []
    while len(taken) < count:
        got = subscription.get_many(count - len(taken), 20)
        if not got:
            raise TimeoutError(f"the holder got {len(taken)} of {count} bundles, and no more within 20 s")
        taken += got
    try:
        yield
    finally:
        subscription.abort()


# --- what a bundle costs -------------------------------------------------------------------------------------------------


def cost(base: str, size: Size, data_dir: str, bundles: int) -> Measurements:
    """The worker's CPU of so many bundles, in microseconds each."""
    topics = "".join(f"[topics.idle_{number:03}]\n" for number in range(size.topics))
    with (
        running_node(base, CONFIG + topics, data_dir=data_dir, ready_seconds=READY_SECONDS) as run_dir,
        quiver_actors.connect(run_dir, timeout=READY_SECONDS) as client,
    ):
        for number in range(size.subscribers):
            client.subscribe(f"beside-{number}", start="earliest").close()
        with held(client, size.claims):
            return spent(run_dir, client, bundles)


def spent(run_dir: str, client: Client, bundles: int) -> Measurements:
    worker, group = worker_of(run_dir), [batch_of(4 * KIB, number) for number in range(_PER_CALL)]
    gc.collect()
    client.subscribe("probe", start="latest").close()
    _push(client, group, _PER_CALL)
    _deliver(client, _PER_CALL)
    time.sleep(1.0)  # what a start leaves to be done, such as looking at every directory once
    push = _cpu_us(worker, lambda: _push(client, group, bundles))
    deliver = _cpu_us(worker, lambda: _deliver(client, bundles))
    time.sleep(SETTLE_SECONDS if bundles >= MANY else 0)
    idle = _cpu_us(worker, lambda: time.sleep(2.0)) / 2.0
    return {"push": push / bundles, "deliver": deliver / bundles, "idle": idle}


def _push(client: Client, group: list[pa.RecordBatch], bundles: int) -> None:
    for _ in range(bundles // _PER_CALL):
        client.push_many(group)
    client.flush()


def _deliver(client: Client, bundles: int) -> None:
    """Claim, read and acknowledge them all; done when that is durable."""
    with client.subscribe("probe", prefetch=1024) as subscription:
        count = 0
        while count < bundles:
            for delivery in subscription.get_many(256, 20):
                delivery.ack()
                count += 1
        subscription.flush()


def _cpu_us(worker: psutil.Process, run: Callable[[], None]) -> float:
    before = cpu_seconds(worker)
    run()
    return (cpu_seconds(worker) - before) * 1e6


# --- the report ----------------------------------------------------------------------------------------------------------


def compare(report: Report, base: str, what: str, pair: Pair, rounds: int, bundles: int) -> None:
    sizes = {"small": pair.small, "large": pair.large}
    stores = {name: make_store(base, size) if size.segments else "" for name, size in sizes.items()}
    results = run_interleaved(
        {name: partial(cost, base, sizes[name], stores[name], bundles) for name in sizes},
        rounds,
        warm_bytes=64 * MIB,
    )
    for store in filter(None, stores.values()):
        shutil.rmtree(os.path.dirname(store))
    for key, unit in (("push", "us CPU/bundle"), ("deliver", "us CPU/bundle"), ("idle", "us CPU/s")):
        small, large = (f"scale/{what}/{told}/{key}" for told in pair.told)
        report.show_rounds(small, results["small"], key, unit, "synced")
        report.show_rounds(large, results["large"], key, unit, "synced", (pair.told[0], results["small"]))


def main() -> None:
    found = parser(__doc__)
    choices = list(pairs(False))
    found.add_argument("--only", nargs="+", default=choices, choices=choices, help="these alone")
    options = read_options(found)
    bundles = 2_048 if options.quick else 40_960
    with begun(options) as (report, base):
        for what, pair in pairs(options.quick).items():
            if what in options.only:
                compare(report, base, what, pair, options.rounds, bundles)


if __name__ == "__main__":
    main()
