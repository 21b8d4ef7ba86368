"""What does one cap for all cores give, and does it hold?

share       four workers, one hot and three idle: how much of the cap the hot core can fill; against the static split, under which it has a
            quarter (one worker with a quarter of the cap). `throughput` is the rate at which it fills it.
resume      a push waits at the cap; a subscriber acknowledges everything: from that being durable to the push being acknowledged.
overload    a producer offers twice what a subscriber drains, under each policy, while the disk is looked at every 20 ms: how far usage
            goes over the cap, refusals, bundles announced as lost (of these, bundles that the subscriber held at that moment, so that
            they came as well), and acknowledged bundles that never came (of these, unannounced ones: must be none).

    python -m benchmarks.caps [--quick] [--json] [--rounds N] [--dir D] [--seconds N] [--drain MIB] [--cases share resume overload]
                              [--batch N] [--policies backpressure reject drop_oldest]

`--seconds` is the length of each overload: 600 for the long form. `--drain` is what the subscriber takes a second: a machine that cannot
store twice as much lets the producer fall behind (`pushed` says how far it got).
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa

import quiver_actors
from benchmarks.harness import (
    Measurements,
    Report,
    begun,
    parser,
    read_options,
    run_interleaved,
    running_node,
)
from quiver_actors.client import Client, GapNotice
from quiver_actors.errors import PushTimeout, Throttled, WorkerUnavailable
from quiver_actors.store.status.status_view import attach_page
from quiver_actors.supervisor.figures import STORAGE_ROW, StorageFigure, region_of
from quiver_actors.supervisor.measure import measure

MIB = 1 << 20
CASES = ("share", "resume", "overload")
POLICIES = ("backpressure", "reject", "drop_oldest")
BUNDLE_BYTES = 256 << 10
SAMPLE_SECONDS = 0.02
OVERLOAD_CORES = 2
OVERLOAD_TARGET_BYTES = MIB


def config(cap_bytes: int, policy: str = "backpressure", target: str = "8MiB") -> str:
    return (
        f'[segment]\ntarget_size = "{target}"\nmax_open_duration = "200ms"\ncompaction = "off"\n'
        f'[retention]\nsize_cap = "{cap_bytes}B"\nsize_cap_policy = "{policy}"\n'
    )


def bundle(number: int) -> pa.RecordBatch:
    values = np.full(BUNDLE_BYTES // 8, number, dtype=np.int64)
    return pa.record_batch({"id": pa.array(values)})


def used_bytes(run_dir: str, core: int) -> int:
    page = attach_page(run_dir)
    try:
        rows = page.read_region(region_of(core)).rows
        return next(row.values[StorageFigure.USED_BYTES] for row in rows if row.kind == STORAGE_ROW)
    finally:
        page.close()


def fill(client: Client, timeout: float = 2.0) -> int:
    """Push until the cap refuses; how many bytes were taken."""
    taken = 0
    while True:
        try:
            taken += len(client.push_many([bundle(0)] * 16, key="hot", timeout=timeout)) * BUNDLE_BYTES
        except Throttled:
            return taken


def share(directory: str, cores: int, cap_bytes: int, of_bytes: int) -> Measurements:
    """What a hot worker fills, as a part of `of_bytes`, and how fast."""
    with running_node(directory, config(cap_bytes), cores) as run_dir, quiver_actors.connect(run_dir) as client:
        client.subscribe("nobody", start="earliest").close()
        began = time.monotonic()
        taken = fill(client)
        seconds = time.monotonic() - began - 2.0
        hot = max(used_bytes(run_dir, core) for core in range(cores))
        return {"share": hot / of_bytes, "rate": taken / MIB / max(seconds, 0.1)}


def resume(directory: str, cap_bytes: int) -> Measurements:
    """Milliseconds from durable acknowledgements to a push that had waited for them."""
    with (
        running_node(directory, config(cap_bytes)) as run_dir,
        quiver_actors.connect(run_dir) as client,
        client.subscribe("s", start="earliest") as subscription,
    ):
        fill(client)
        done: list[float] = []

        def push() -> None:
            client.push(bundle(1), timeout=60)
            done.append(time.monotonic())

        held = subscription.get_many(100_000, timeout=5.0)
        waiting = threading.Thread(target=push)
        waiting.start()
        for delivery in held:
            delivery.ack()
        subscription.flush()
        freed = time.monotonic()
        waiting.join()
        return {"ms": max(0.0, done[0] - freed) * 1e3}


@contextmanager
def sampled(data_dir: str, peak: list[int]) -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak.append(measure([data_dir]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def overload(
    directory: str, policy: str, cap_bytes: int, seconds: float, drain_rate: float, batch: int = 1
) -> Measurements:
    """Twice the drain rate (bytes a second) for so long, then everything is drained."""
    acked: set[tuple[int, int, int]] = set()
    refused = [0]
    peak: list[int] = []
    settings = config(cap_bytes, policy, f"{OVERLOAD_TARGET_BYTES}B")
    with running_node(directory, settings, OVERLOAD_CORES) as run_dir, quiver_actors.connect(run_dir) as client:
        data_dir = os.path.join(os.path.dirname(run_dir), "data")
        stop = time.monotonic() + seconds
        subscription = client.subscribe("s", start="earliest", gaps="deliver")

        def offer() -> None:
            began, number = time.monotonic(), 0
            while time.monotonic() < stop:
                number += batch
                try:
                    # Of a batch that is refused nobody learns which of its bundles were stored before: they do not count.
                    receipts = client.push_many([bundle(number)] * batch, key=str(number), timeout=1.0)
                    ids = [receipt.bundle_id for receipt in receipts]
                    acked.update((each.core, each.segment_seq, each.bundle_index) for each in ids)
                except (Throttled, PushTimeout, WorkerUnavailable):
                    refused[0] += 1
                ahead = number * BUNDLE_BYTES / (2 * drain_rate) - (time.monotonic() - began)
                if ahead > 0:
                    time.sleep(ahead)

        producer = threading.Thread(target=offer)
        with sampled(data_dir, peak):
            producer.start()
            delivered, announced = drain(subscription, stop, producer, drain_rate)
            producer.join()
        subscription.close()
    return {
        "over": max(peak) - cap_bytes,
        "samples": len(peak),
        "samples over": sum(used > cap_bytes for used in peak),
        "samples over a segment a core": sum(
            used > cap_bytes + OVERLOAD_CORES * OVERLOAD_TARGET_BYTES for used in peak
        ),
        "refusals": refused[0],
        "announced": len(announced & acked),
        "announced and delivered": len(announced & acked & delivered),
        "missing": len(acked - delivered),
        "missing unannounced": len(acked - delivered - announced),
        "pushed": len(acked),
    }


def drain(
    subscription: quiver_actors.GapSubscription, stop: float, producer: threading.Thread, drain_rate: float
) -> tuple[set[tuple[int, int, int]], set[tuple[int, int, int]]]:
    """At the drain rate while the producer offers, then as fast as it goes; what came, and what was announced as lost."""
    delivered: set[tuple[int, int, int]] = set()
    announced: set[tuple[int, int, int]] = set()
    began = time.monotonic()
    while True:
        event = subscription.get(1.0 if producer.is_alive() else 3.0)
        if event is None:
            if producer.is_alive():
                continue
            return delivered, announced
        if isinstance(event, GapNotice):
            indexes = range(event.bundle_index_first, event.bundle_index_last + 1)
            announced.update((event.core, event.segment_seq, index) for index in indexes)
            continue
        with event:
            delivered.add((event.bundle_id.core, event.bundle_id.segment_seq, event.bundle_id.bundle_index))
        ahead = len(delivered) * BUNDLE_BYTES / drain_rate - (time.monotonic() - began)
        if time.monotonic() < stop and ahead > 0:
            time.sleep(ahead)


def main() -> None:
    found = parser(__doc__)
    found.add_argument("--seconds", type=float, default=0.0, help="of each overload (default 60, with --quick 8)")
    found.add_argument("--drain", type=float, default=8.0, help="MiB a second (default 8)")
    found.add_argument("--batch", type=int, default=1, help="bundles that the producer pushes at once (default 1)")
    found.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), help="default: all")
    found.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    options = read_options(found, rounds=3)
    options.seconds = options.seconds or (8.0 if options.quick else 60.0)
    with begun(options) as (report, directory):
        if "share" in options.cases:
            show_share(report, options, directory)
        if "resume" in options.cases:
            resumed = [resume(directory, 64 * MIB) for _ in range(options.rounds)]
            report.show_rounds("resume", resumed, "ms", "ms", "synced")
        if "overload" in options.cases:
            show_overload(report, options, directory)


def show_share(report: Report, options: argparse.Namespace, directory: str) -> None:
    cap_bytes = (256 if options.quick else 2048) * MIB
    candidates = {
        "coordinated": lambda: share(directory, 4, cap_bytes, cap_bytes),
        "static": lambda: share(directory, 1, cap_bytes // 4, cap_bytes),
    }
    results = run_interleaved(candidates, options.rounds)
    static = results["static"]
    for key, unit in (("share", "of cap"), ("rate", "MiB/s")):
        report.show_rounds(f"share static {key}", static, key, unit, "synced")
        report.show_rounds(f"share coordinated {key}", results["coordinated"], key, unit, "synced", ("static", static))


def show_overload(report: Report, options: argparse.Namespace, directory: str) -> None:
    for policy in options.policies:
        found = overload(directory, policy, 48 * MIB, options.seconds, options.drain * MIB, options.batch)
        for key in found:
            unit = "bytes" if key == "over" else "count"
            report.show_rounds(f"overload {policy} {key}", [found], key, unit, "synced")


if __name__ == "__main__":
    main()
