"""A client on another host: bundles are pushed through Arrow Flight, delivered and acknowledged.

    quiver up --data-dir quiver_data --cores 2 &
    quiver serve &
    python examples/remote_client.py

The server is the one of the first argument, else grpc://127.0.0.1:8815. Another host also gives a token, and the certificates to trust:
`connect_remote("grpc+tls://node-a:8815", token_file="quiver.token", tls_roots="roots.pem")`.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import quiver_actors

BUNDLES = 100


def main(url: str = "grpc://127.0.0.1:8815") -> None:
    with quiver_actors.connect_remote(url) as client, client.subscribe("remote-reader", topic="default") as deliveries:
        bundles = (pa.record_batch({"number": [number, -number]}) for number in range(BUNDLES))
        receipts = client.push_many(bundles)  # on the disk of the node's host when this returns
        print(f"stored, {receipts[-1].durability.name}, on node {client.node}")

        missing, rows = {receipt.bundle_id for receipt in receipts}, 0
        while missing:
            delivery = deliveries.get(timeout=60)
            if delivery is None:
                raise SystemExit(f"{len(missing)} bundles did not come")
            with delivery:  # acknowledges at the end; an exception gives the bundle back
                if delivery.bundle_id in missing:
                    rows += delivery.batch.num_rows
                    missing.discard(delivery.bundle_id)
        deliveries.flush()  # the acknowledgements are durable
    print(f"pushed {BUNDLES} bundles from afar, read {rows} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
