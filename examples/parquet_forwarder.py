"""A forwarder: every bundle of a topic ends up in Parquet files, once, whatever is killed on the way.

    quiver up --data-dir quiver_data --cores 2 &
    python examples/parquet_forwarder.py [DIRECTORY]

The node is the one of `QUIVER_RUN_DIR`, else the one of this user. Without DIRECTORY the files are in a new temporary one. This forwarder
ends when nothing is left; a service leaves `idle_timeout` out and ends by SIGTERM. It keeps no state: started again, it goes on.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds

import quiver_actors
from quiver_actors.forward import Forwarder, ParquetFiles

TOPIC = "example-orders"
ORDERS = 500


def order(number: int) -> dict[str, pa.RecordBatch]:
    lines = pa.record_batch({"order": [number] * 3, "price": [1.0, 2.0, 3.0]})
    return {"orders": pa.record_batch({"id": [number]}), "lines": lines}


def forward(client: quiver_actors.Client, directory: Path) -> int:
    """Write until nothing is left; returns how many files were finished. A bundle is acknowledged when its file is on disk."""
    subscription = client.subscribe("archive", topic=TOPIC, start="earliest")
    parquet = ParquetFiles(directory, slots={0: "orders", 1: "lines"}, target_bytes=64 << 20, max_age=30)
    with subscription as deliveries, parquet as files:
        forwarder = Forwarder(deliveries, files)
        signal.signal(signal.SIGTERM, lambda *_: forwarder.stop(timeout=10))
        while not deliveries.all_drained():
            forwarder.run(idle_timeout=0.5)
        return files.statistics().files


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="quiver-parquet-"))
    with quiver_actors.connect() as client:
        client.create_topic(TOPIC, {"slots": {"orders": 0, "lines": 1}}, if_missing=True)
        client.push_many((order(number) for number in range(ORDERS)), topic=TOPIC)
        client.flush(TOPIC)
        print(f"{forward(client, directory)} files in {directory}")
    rows = {slot: ds.dataset(directory / slot).count_rows() for slot in ("orders", "lines")}
    print(f"forwarded {rows['orders']} orders and {rows['lines']} lines")


if __name__ == "__main__":
    main()
