"""One subscriber process: `python -m quiver_actors.cli.demo.subscriber parquet <run_dir> <directory>` or `... count <run_dir>`.

Takes bundles until its standard input is closed and nothing more comes. Says on standard output, one JSON object a line, how far it is.
The Parquet writer acknowledges bundles only when the files that hold them are complete.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from quiver_actors.base.model import BundleId
from quiver_actors.cli.demo.node import SLOTS, TOPIC
from quiver_actors.cli.demo.tables import hours_block
from quiver_actors.client import Delivery, Subscription, connect

BUNDLES_PER_FILE = 128
_REPORT_SECONDS = 0.1
_IDLE_SECONDS = 0.2


class Sink(Protocol):
    """The end of a demo subscriber: it takes deliveries and acknowledges them."""

    def add(self, delivery: Delivery, number: int) -> None:
        """Take one delivery; `number` counts all of them."""

    def flush(self) -> None:
        """Finish and acknowledge everything taken so far."""


class Counter:
    """Acknowledges at once: the counting is done by `follow`."""

    def add(self, delivery: Delivery, number: int) -> None:
        """Acknowledge the delivery at once."""
        delivery.ack()

    def flush(self) -> None:
        """Do nothing: every delivery is acknowledged already."""


class ParquetWriter:
    """Writes `flights-<n>.parquet`, `weather-<n>.parquet` and `deliveries-<n>.parquet`, a set for every `BUNDLES_PER_FILE` bundles."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = 0
        self._taken: list[Delivery] = []
        self._rows: dict[str, list[pa.Table]] = {slot: [] for slot in SLOTS.values()}
        self._deliveries: list[dict[str, int]] = []

    def add(self, delivery: Delivery, number: int) -> None:
        """Collect the rows of the delivery, with its number as a column."""
        self._taken.append(delivery)
        batches = {SLOTS[slot_id]: batch for slot_id, batch in delivery.slots.items()}
        for slot, batch in batches.items():
            numbers = pa.repeat(pa.scalar(number), batch.num_rows)
            self._rows[slot].append(pa.Table.from_batches([batch]).append_column("delivery", numbers))
        bundle_id = delivery.bundle_id
        self._deliveries.append(
            {
                "delivery": number,
                "core": bundle_id.core,
                "segment_seq": bundle_id.segment_seq,
                "bundle_index": bundle_id.bundle_index,
                "hours": hours_block(next(iter(batches.values()))),
            }
        )
        if len(self._taken) >= BUNDLES_PER_FILE:
            self.flush()

    def flush(self) -> None:
        """Write the collected rows to files, then acknowledge the deliveries."""
        if not self._taken:
            return
        for slot, parts in self._rows.items():
            if parts:
                self._write(slot, pa.concat_tables(parts))
            parts.clear()
        self._write("deliveries", pa.Table.from_pylist(self._deliveries))
        for delivery in self._taken:
            delivery.ack()
        self._taken.clear()
        self._deliveries.clear()
        self._files += 1

    def _write(self, name: str, table: pa.Table) -> None:
        pq.write_table(table, self._directory / f"{name}-{self._files:05d}.parquet")


def follow(subscription: Subscription, sink: Sink) -> None:
    """Feed the sink until standard input is closed and the subscription idle, and report on the way."""
    seen: set[BundleId] = set()
    deliveries = rows = 0
    reported = 0.0
    while True:
        delivery = subscription.get(timeout=_IDLE_SECONDS)
        if delivery is None:
            sink.flush()
        else:
            deliveries += 1
            if delivery.bundle_id not in seen:
                seen.add(delivery.bundle_id)
                rows += delivery.row_count
            sink.add(delivery, deliveries)
        if delivery is None or time.monotonic() - reported > _REPORT_SECONDS:
            print(json.dumps({"deliveries": deliveries, "bundles": len(seen), "rows": rows}), flush=True)
            reported = time.monotonic()
        if delivery is None and _input_is_closed():
            return


def _input_is_closed() -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], 0)
    return bool(readable) and sys.stdin.read(1) == ""


def main(arguments: list[str]) -> int:
    """Follow the topic until standard input closes. Arguments: kind (`parquet` or another name), run directory, output directory."""
    kind, run_dir = arguments[:2]
    sink: Sink = ParquetWriter(Path(arguments[2])) if kind == "parquet" else Counter()
    with (
        connect(run_dir) as client,
        client.subscribe(kind, topic=TOPIC, start="earliest", prefetch=2 * BUNDLES_PER_FILE) as subscription,
    ):
        follow(subscription, sink)
        subscription.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
