"""A consumer that does not survive the first bundle that it looks at: `... dying_consumer <run_dir> <subscriber> <topic> <way>`.

`way` says how it takes bundles: `get`, `get_many`, `batches`, `aio` or `aio_batches`. Its prefetch holds all that the subscriber is owed.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from quiver_actors import aio
from quiver_actors.client import connect

if TYPE_CHECKING:
    from quiver_actors.client.subscribe_request import SubscribeOptions

PREFETCH = 20
DELIVERIES_MAX = 2
OPTIONS: SubscribeOptions = {
    "prefetch": PREFETCH,
    "max_deliveries": DELIVERIES_MAX,
    "exhausted": "drop",
    "start": "earliest",
}


def wait_for_prefetch(subscription: Any) -> None:
    """Return when everything is here and nobody has looked at it."""
    deadline = time.monotonic() + 60.0
    while subscription._consumer.inbox.waiting < PREFETCH:
        assert time.monotonic() < deadline
        with subscription._exchange.lock:
            subscription._exchange.look()
        select.select([], [], [], 0.01)


def die_of(what: object) -> None:
    assert what is not None
    os.kill(os.getpid(), signal.SIGKILL)


def main(run_dir: str, subscriber: str, topic: str, way: str) -> None:
    if way.startswith("aio"):
        asyncio.run(in_asyncio(run_dir, subscriber, topic, way))
    with connect(run_dir) as client:
        subscription = client.subscribe(subscriber, topic=topic, **OPTIONS)
        wait_for_prefetch(subscription)
        if way == "get":
            die_of(subscription.get())
        elif way == "get_many":
            die_of(subscription.get_many(1))
        else:
            die_of(next(iter(subscription.batches(max_rows=1))))


async def in_asyncio(run_dir: str, subscriber: str, topic: str, way: str) -> None:
    async with aio.connect(run_dir) as client:
        subscription = await client.subscribe(subscriber, topic=topic, **OPTIONS)
        wait_for_prefetch(subscription)
        if way == "aio":
            die_of(await subscription.get())
        async for batch in subscription.batches(max_rows=1):
            die_of(batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
