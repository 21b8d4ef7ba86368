"""The size cap of a running node: real processes, real files; a sampler that watches the disk and the supervisor's words all the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.cli.status_view import attach_page
from quiver_actors.client import Client, Delivery, GapNotice, GapSubscription
from quiver_actors.errors import Throttled
from quiver_actors.model import BundleId
from quiver_actors.shm.counters import CountersPage
from quiver_actors.supervisor.figures import (
    GRANT_ROW,
    NODE_STORAGE_ROW,
    STORAGE_ROW,
    GrantFigure,
    region_of,
)
from quiver_actors.supervisor.measure import measure
from quiver_actors.units import KIB, MIB
from tests.integration.client_node import ClientNode, client_node

CAP = 16 * MIB
STEP = 640 * KIB
"""One log: half a megabyte of segment and as much slack as that gets."""
DEADLINE_SECONDS = 60.0

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
    peak_grants: int = 0
    samples: int = 0
    over: list[str] = field(default_factory=list)

    def sample(self) -> None:
        used = measure([str(self.data)])
        grants = [row.values[GrantFigure.GRANT_BYTES] for row in self.page.read_region(0).rows if row.kind == GRANT_ROW]
        self.samples += 1
        self.peak_bytes = max(self.peak_bytes, used)
        self.peak_grants = max(self.peak_grants, sum(grants))
        # Room for one segment and the tail of its seal on each core, and for small files between two of their measurements.
        if used > self.cap + len(grants) * (STEP + 64 * KIB):
            self.over.append(f"{used} bytes on disk")
        if sum(grants) > self.cap:
            self.over.append(f"grants of {grants}")


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
        page.close()
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


def push_until_refused(client: Client, first: int = 0, key: str | None = None, timeout: float = 1.0) -> list[int]:
    """Push numbered bundles one by one; those that were acknowledged."""
    stored: list[int] = []
    with pytest.raises(Throttled) as refused:  # noqa: PT012 - which push is refused is not known before
        for number in range(first, first + 100_000):
            client.push(bundle(number), key=key, timeout=timeout)
            stored.append(number)
    assert refused.value.retry_after_ns > 0
    return stored


def key_of(client: Client, core: int) -> str:
    """A key whose bundles go to that core."""
    return next(str(n) for n in range(1000) if client._producer.core_for(str(n)) == core)


# --- policies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["backpressure", "reject"])
def test_at_the_cap_pushes_are_refused_and_go_on_by_themselves_when_there_is_room(policy: str) -> None:
    with client_node(1, config(policy)) as node, node.connect() as client, sampling(node) as sampler:
        subscription = client.subscribe("s", start="earliest")
        stored = push_until_refused(client, timeout=3.0)
        assert sampler.peak_bytes > CAP // 2
        seen = set()
        while len(seen) < len(stored):
            delivery = subscription.get(10.0)
            assert delivery is not None
            with delivery:
                seen.add(number_of(delivery))
        assert seen == set(stored), "what was acknowledged came, and nothing of what was refused"
        receipt = client.push(bundle(999_999), timeout=20.0)
        assert receipt.sequence == len(stored), "a refused push uses no sequence"


def test_drop_oldest_goes_on_and_announces_exactly_what_is_lost() -> None:
    with client_node(1, config("drop_oldest")) as node, node.connect() as client, sampling(node):
        subscription = client.subscribe("s", start="earliest", gaps="deliver")
        receipts = client.push_many((bundle(number) for number in range(400)), timeout=30.0)
        client.flush()
        pushed = {receipt.bundle_id for receipt in receipts}
        delivered, announced = drain(subscription, pushed)
        assert delivered | announced == pushed
        assert delivered & announced == set()
        assert announced, "forty megabytes do not fit into sixteen"


def drain(subscription: GapSubscription, pushed: set[BundleId]) -> tuple[set[BundleId], set[BundleId]]:
    """Everything that the subscription gives: ids delivered, ids announced as lost."""
    delivered: set[BundleId] = set()
    announced: set[BundleId] = set()
    while not pushed <= delivered | announced:
        event = subscription.get(20.0)
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
