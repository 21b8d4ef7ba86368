"""A node with a size cap under test: its words, a sampler of its disk, and pushes that meet the cap."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.base.units import KIB, MIB
from quiver_actors.client import Client, Delivery, GapNotice, GapSubscription, Subscription
from quiver_actors.errors import PushTimeout, Throttled
from quiver_actors.node.worker.load import memory_taken
from quiver_actors.shm.counters import CountersPage
from quiver_actors.store.retention.pressure import LADDER, Signals, pressure_of
from quiver_actors.store.status.status_document import StatusView
from quiver_actors.store.status.status_view import attach_page, take_status
from quiver_actors.supervisor.figures import (
    NODE_STORAGE_ROW,
    QUOTA_ROW,
    STORAGE_ROW,
    QuotaFigure,
    region_of,
)
from quiver_actors.supervisor.measure import measure
from tests.integration.client_node import ClientNode

CAP = 16 * MIB
STEP = MIB + 8 * KIB
"""One log: half a megabyte of segment and as much slack as that gets."""
DEADLINE_SECONDS = 60.0
ANSWER_SECONDS = 10.0
CONFIG = """
[segment]
target_size = "512KiB"
max_open_duration = "50ms"
compaction = "off"

[retention]
size_cap = "{cap}B"
size_cap_policy = "{policy}"
min_free = "1MiB"
"""


def config(policy: str = "backpressure", cap: int = CAP) -> str:
    return CONFIG.format(policy=policy, cap=cap)


def bundle(number: int, size_bytes: int = 100 * KIB) -> pa.RecordBatch:
    """Told by its first value; it does not compress."""
    values = np.full(size_bytes // 8, number, dtype=np.int64)
    return pa.record_batch({"id": pa.array(values)})


def number_of(delivery: Delivery) -> int:
    found: int = delivery.batch.column("id")[0].as_py()
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    waiter, deadline = threading.Event(), time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        waiter.wait(0.01)


@dataclass
class Sampler:
    """What was seen of a node's disk, a hundred times a second."""

    page: CountersPage
    data: Path
    cap: int
    peak_bytes: int = 0
    peak_quotas: int = 0
    samples: int = 0
    over: list[str] = field(default_factory=list)
    former: list[CountersPage] = field(default_factory=list)

    def follow(self, page: CountersPage) -> None:
        """The node was started again. The sampling thread may be reading the former page at this moment: it is closed at the end."""
        self.former.append(self.page)
        self.page = page

    def sample(self) -> None:
        used = measure([str(self.data)])
        quotas = [row.values[QuotaFigure.QUOTA_BYTES] for row in self.page.read_region(0).rows if row.kind == QUOTA_ROW]
        self.samples += 1
        self.peak_bytes = max(self.peak_bytes, used)
        self.peak_quotas = max(self.peak_quotas, sum(quotas))
        # Room for one segment and the tail of its seal on each core, and for small files between two of their measurements.
        if used > self.cap + len(quotas) * (STEP + 64 * KIB):
            self.over.append(f"{used} bytes on disk")
        if sum(quotas) > self.cap:
            self.over.append(f"quotas of {quotas}")


@contextmanager
def sampling(node: ClientNode, cap: int = CAP) -> Iterator[Sampler]:
    page = attach_page(str(node.directories.run))
    sampler, stop = Sampler(page, node.directories.data, cap), threading.Event()

    def run() -> None:
        while not stop.wait(0.01):
            sampler.sample()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield sampler
    finally:
        stop.set()
        thread.join()
        for each in (*sampler.former, sampler.page):
            each.close()
    assert sampler.over == []
    assert sampler.samples > 0


def words(node: ClientNode, core: int) -> tuple[int, ...]:
    """A worker's own row."""
    page = attach_page(str(node.directories.run))
    try:
        rows = page.read_region(region_of(core)).rows
        return next((row.values for row in rows if row.kind == STORAGE_ROW), (0,) * 32)
    finally:
        page.close()


def node_words(node: ClientNode) -> tuple[int, ...]:
    page = attach_page(str(node.directories.run))
    try:
        return next(row.values for row in page.read_region(0).rows if row.kind == NODE_STORAGE_ROW)
    finally:
        page.close()


def push_answered(client: Client, bundles: list[pa.RecordBatch], timeout: float, **options: Any) -> Sequence[Receipt]:
    """A worker refuses a push shortly before the push times out; where a busy machine delays the refusal, the push gets more time."""
    try:
        return client.push_many(bundles, timeout=timeout, **options)
    except PushTimeout:
        return client.push_many(bundles, timeout=ANSWER_SECONDS, **options)


def push_until_refused(client: Client, first: int = 0, key: str | None = None, timeout: float = 1.0) -> list[int]:
    """Push numbered bundles one by one; those that were acknowledged."""
    stored: list[int] = []
    with pytest.raises(Throttled) as refused:  # noqa: PT012 - which push is refused is not known before
        for number in range(first, first + 100_000):
            push_answered(client, [bundle(number)], timeout, key=key)
            stored.append(number)
    assert refused.value.retry_after_ns > 0
    return stored


def status_when_throttled(node: ClientNode, client: Client, stored: list[int]) -> StatusView:
    """What `quiver status` says once the next push would be refused. The seal of the last log may make room for one more after a push was
    refused: then the next push is taken, and the node is well."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        status = take_status(str(node.directories.run))
        if status.engines[0].state == "throttled" and status.engines[0].stored_bundles == len(stored):
            return status
        assert time.monotonic() < deadline, f"{status.engines[0]}, though pushes are refused"
        stored += push_until_refused(client, len(stored), timeout=3.0)


def push_until_taken(client: Client, number: int) -> Receipt:
    """Push a bundle again for as long as there is no room for it."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return client.push(bundle(number), timeout=20.0)
        except Throttled:
            assert time.monotonic() < deadline, "the room that was made is not given out"
            select.select([], [], [], 0.05)


def easing(node: ClientNode) -> list[str]:
    """What `quiver status` says that the only worker does about its pressure."""
    (core,) = take_status(str(node.directories.run)).cores
    assert bool(core.steps) <= (core.pressure > 0)
    return core.steps


def eased_by_memory() -> set[str]:
    """What workers do, whatever a test does, where the machine has little memory left: other tests run beside this one."""
    pressure = pressure_of(Signals(memory=memory_taken()))
    return {str(step.name).lower() for step, _, ends in LADDER if pressure >= ends}


def key_of(client: Client, core: int) -> str:
    """A key whose bundles go to that core."""
    return next(str(n) for n in range(1000) if client._producer.core_for(str(n)) == core)


def consume(subscription: GapSubscription, announced: set[BundleId], count: int) -> dict[BundleId, int]:
    delivered: dict[BundleId, int] = {}
    for _ in range(count):
        event = subscription.get(0.2)
        if event is None:
            break
        note(event, delivered, announced)
    return delivered


def note(event: Delivery | GapNotice, delivered: dict[BundleId, int], announced: set[BundleId]) -> set[BundleId]:
    """Count the bundles that an event accounts for."""
    if isinstance(event, GapNotice):
        assert event.reason == "evicted", "a file that went without its notice is found missing by the next process"
        announced |= ids_of(event)
        return ids_of(event)
    with event:
        delivered[event.bundle_id] = number_of(event)
    return {event.bundle_id}


def take_all(subscription: Subscription, count: int) -> Iterator[Delivery]:
    for _ in range(count):
        delivery = subscription.get(DEADLINE_SECONDS)
        assert delivery is not None
        with delivery:
            yield delivery


def delivery_id(delivery: Delivery) -> BundleId:
    return delivery.bundle_id


def drain(subscription: GapSubscription, pushed: set[BundleId]) -> tuple[set[BundleId], set[BundleId]]:
    """Consume the subscription: ids delivered, ids announced as lost."""
    delivered: set[BundleId] = set()
    announced: set[BundleId] = set()
    while not pushed <= delivered | announced:
        event = subscription.get(DEADLINE_SECONDS)
        assert event is not None, f"{len(pushed - delivered - announced)} bundles neither came nor were announced"
        if isinstance(event, GapNotice):
            announced |= ids_of(event)
        else:
            with event:
                delivered.add(event.bundle_id)
    return delivered, announced


def ids_of(notice: GapNotice) -> set[BundleId]:
    indexes = range(notice.bundle_index_first, notice.bundle_index_last + 1)
    return {BundleId(notice.topic, notice.core, notice.segment_seq, index) for index in indexes}
