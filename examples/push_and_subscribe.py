"""Push and subscribe: bundles of two slots are pushed, read without a copy, and acknowledged one by one.

    quiver up --data-dir quiver_data --cores 2 &
    python examples/push_and_subscribe.py

The node is the one of `QUIVER_RUN_DIR`, else the one of this user. Run it again: the subscriber goes on where it was.
"""

from __future__ import annotations

import pyarrow as pa

import quiver_actors

TOPIC = "example-travel"
BUNDLES = 100


def bundle(number: int) -> dict[str, pa.RecordBatch]:
    """A bundle is stored, delivered and acknowledged as one; its slots need not have the same rows."""
    flights = pa.record_batch({"carrier": ["AA", "UA"], "delay_minutes": [number, 3]})
    return {"flights": flights, "weather": pa.record_batch({"wind_knots": [12.5]})}


def main() -> None:
    with quiver_actors.connect() as client:
        client.create_topic(TOPIC, {"slots": {"flights": 0, "weather": 1}}, if_missing=True)
        with client.subscribe("exporter", topic=TOPIC) as deliveries:
            receipts = client.push_many((bundle(number) for number in range(BUNDLES)), topic=TOPIC)
            print(f"stored, {receipts[-1].durability.name}, as {receipts[0].bundle_id} to {receipts[-1].bundle_id}")

            client.flush(TOPIC)  # seals now; by itself that comes at 32 MiB or after 10 minutes
            missing, rows = {receipt.bundle_id for receipt in receipts}, 0
            while missing:
                delivery = deliveries.get(timeout=60)
                if delivery is None:
                    raise SystemExit(f"{len(missing)} bundles did not come")
                with delivery:  # acknowledges at the end; an exception gives the bundle back
                    rows += delivery["flights"].num_rows
                missing.discard(delivery.bundle_id)
            deliveries.flush()  # the acknowledgements are durable
    print(f"pushed {BUNDLES} bundles, read {rows} flights")


if __name__ == "__main__":
    main()
