"""Live consumers of Redis Streams and NATS JetStream, for benchmarks/live.py.

The pushing side is a `Store` of benchmarks/stores.py, which starts the server and syncs each push. The consumers here run in a process of
their own, wait with a blocking read, and note for each bundle when they had it as an Arrow batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

from benchmarks.live_consumers import DEADLINE_SECONDS, ready
from benchmarks.peers import as_batch
from benchmarks.stores import JetStream, RedisStream, Store

Gets = Callable[[str, int, Barrier, Any], None]


def redis_gets(address: str, total: int, barrier: Barrier, results: Any) -> None:
    """XREAD BLOCK of everything behind the last entry."""
    import redis

    client: Any = redis.Redis(unix_socket_path=address)
    took: list[int] = []
    last: bytes | str = "0-0"
    ready(barrier)
    while len(took) < total:
        ((_, entries),) = client.xread({"bundles": last}, block=DEADLINE_SECONDS * 1000)
        for _, fields in entries:
            assert as_batch(fields[b"b"]).num_rows
            took.append(time.perf_counter_ns())
        last = entries[-1][0]
    results.put((took, took[-1]))
    client.close()


def jetstream_gets(address: str, total: int, barrier: Barrier, results: Any) -> None:
    """A push consumer in order, without acknowledgements."""
    asyncio.run(_jetstream_gets(address, total, barrier, results))


async def _jetstream_gets(address: str, total: int, barrier: Barrier, results: Any) -> None:
    import nats

    client = await nats.connect(address)
    subscription = await client.jetstream().subscribe("b", ordered_consumer=True)
    took: list[int] = []
    ready(barrier)
    while len(took) < total:
        message = await subscription.next_msg(timeout=DEADLINE_SECONDS)
        assert as_batch(message.data).num_rows
        took.append(time.perf_counter_ns())
    results.put((took, took[-1]))
    await client.close()


def redis_address(store: Any) -> str:
    return str(store.path("redis.sock"))


def jetstream_address(store: Any) -> str:
    return str(store.client.connected_url.geturl())


LIVE_PEERS: tuple[tuple[type[Store], Gets, Callable[[Any], str]], ...] = (
    (RedisStream, redis_gets, redis_address),
    (JetStream, jetstream_gets, jetstream_address),
)
"""The pushing side, the consumer of another process, and the address by which it finds the server."""
