"""asyncio: many tasks push at once and share the node's syncs; one task reads; no thread is needed.

    quiver up --data-dir quiver_data --cores 2 &
    python examples/with_asyncio.py

The node is the one of `QUIVER_RUN_DIR`, else the one of this user.
"""

from __future__ import annotations

import asyncio

import pyarrow as pa

from quiver_actors import BundleId, aio

TOPIC = "example-readings"
SENSORS, READINGS = 20, 10


async def sense(client: aio.Client, sensor: int) -> list[BundleId]:
    """Push one reading after the other; each is on disk when its `push` returns."""
    stored = []
    for number in range(READINGS):
        reading = pa.record_batch({"sensor": [sensor], "celsius": [20.0 + number]})
        stored.append((await client.push(reading, topic=TOPIC)).bundle_id)
    return stored


async def read(client: aio.Client, subscription: aio.Subscription, missing: set[BundleId]) -> int:
    """Acknowledge what comes until nothing is missing; returns the rows of it."""
    await client.flush(TOPIC)
    rows = 0
    async for delivery in subscription:  # ends when nothing came for `idle_timeout`
        with delivery:  # resolving does not wait, so there is nothing to await
            rows += delivery.batch.num_rows
        missing.discard(delivery.bundle_id)
        if not missing:
            break
    await subscription.flush()
    return rows


async def main() -> None:
    async with aio.connect() as client:
        await client.create_topic(TOPIC, if_missing=True)
        async with await client.subscribe("averages", topic=TOPIC, idle_timeout=60) as subscription:
            stored = await asyncio.gather(*(sense(client, sensor) for sensor in range(SENSORS)))
            missing = {bundle_id for bundle_ids in stored for bundle_id in bundle_ids}
            rows = await read(client, subscription, missing)
    if missing:
        raise SystemExit(f"{len(missing)} readings did not come")
    print(f"{SENSORS} sensors pushed {SENSORS * READINGS} readings, read {rows}")


if __name__ == "__main__":
    asyncio.run(main())
