"""The embedded store: one program pushes and reads, without a node and without a second terminal.

    python examples/embedded_store.py

The data directory is `example_store` in the working directory. Run it again: the subscriber goes on where it was.
"""

from __future__ import annotations

import pyarrow as pa

import quiver_actors

BUNDLES = 100


def main() -> None:
    with quiver_actors.open("example_store") as store:
        readings = (pa.record_batch({"sensor": [1, 2], "celsius": [20.0, float(number)]}) for number in range(BUNDLES))
        # On disk when it returns, also if the program is killed at once.
        receipts = store.push_many(readings)
        print(f"stored, {receipts[-1].durability.name}, as {receipts[0].bundle_id} to {receipts[-1].bundle_id}")
        rows = 0
        with store.subscribe("reader", start="earliest") as deliveries:
            for _ in range(BUNDLES):
                delivery = deliveries.get(timeout=30)
                assert delivery is not None, "all bundles were stored before"
                with delivery:
                    rows += delivery.batch.num_rows
    print(f"pushed {BUNDLES} bundles, read {rows} rows")


if __name__ == "__main__":
    main()
