"""The size cap of a running node: real processes, real files; a sampler that watches the disk and the supervisor's words all the time."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.cli.status_view import attach_page, take_status
from quiver_actors.cli.storage import opened
from quiver_actors.client import Client, Delivery, GapNotice, GapSubscription, Subscription
from quiver_actors.errors import PushTimeout, QuiverError, Throttled
from quiver_actors.inspection.findings import has_damage
from quiver_actors.inspection.verification import Totals, verify
from quiver_actors.model import BundleId, Receipt
from quiver_actors.retention.pressure import LADDER, Signals, pressure_of
from quiver_actors.shm.counters import CountersPage
from quiver_actors.supervisor.figures import (
    GRANT_ROW,
    NODE_STORAGE_ROW,
    STORAGE_ROW,
    GrantFigure,
    NodeStorageFigure,
    StorageFigure,
    region_of,
)
from quiver_actors.supervisor.measure import measure
from quiver_actors.units import KIB, MIB
from quiver_actors.worker.load import memory_taken
from tests.integration.client_node import ClientNode, client_node

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
    peak_grants: int = 0
    samples: int = 0
    over: list[str] = field(default_factory=list)
    former: list[CountersPage] = field(default_factory=list)

    def follow(self, page: CountersPage) -> None:
        """The node was started again. The sampling thread may be reading the former page at this moment: it is closed at the end."""
        self.former.append(self.page)
        self.page = page

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
    """A worker says no shortly before a push gives up: where a busy machine makes it late, it is asked again, with more time."""
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


# --- policies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["backpressure", "reject"])
def test_at_the_cap_pushes_are_refused_and_go_on_by_themselves_when_there_is_room(policy: str) -> None:
    with client_node(1, config(policy)) as node, node.connect() as client, sampling(node) as sampler:
        subscription = client.subscribe("s", start="earliest")
        stored = push_until_refused(client, timeout=3.0)
        assert sampler.peak_bytes > CAP // 2
        wait_until(
            lambda: easing(node) == ["coalesce", "widen", "defer"], "a full cap is felt, and refuses nobody by itself"
        )
        seen: set[int] = set()
        while len(seen) < len(stored):
            delivery = subscription.get(DEADLINE_SECONDS)
            assert delivery is not None
            with delivery:
                seen.add(number_of(delivery))
        assert seen == set(stored), "what was acknowledged came, and nothing of what was refused"
        receipt = push_until_taken(client, 999_999)
        assert receipt.sequence == len(stored), "a refused push uses no sequence"
        subscription.flush()
        wait_until(lambda: set(easing(node)) <= eased_by_memory(), "and no longer than it is full")


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


def test_a_hot_core_gets_what_idle_cores_do_not_use() -> None:
    cap = 32 * MIB
    with client_node(4, config(cap=cap)) as node, node.connect() as client, sampling(node, cap):
        client.subscribe("s", start="earliest").close()
        push_until_refused(client, key=key_of(client, 2), timeout=3.0)
        wait_until(lambda: words(node, 2)[StorageFigure.USED_BYTES] > 0.85 * cap, "the hot core uses the cap")
        # A log that is being sealed counts as allocated until its end is cut off; the sampler looks at the files themselves.
        wait_until(lambda: sum(words(node, core)[StorageFigure.USED_BYTES] for core in range(4)) <= cap, "it fits")


def test_what_is_counted_is_what_du_says() -> None:
    with client_node(2, config()) as node, node.connect() as client:
        client.subscribe("s", start="earliest").close()
        for core in range(2):
            client.push_many((bundle(number) for number in range(30)), key=key_of(client, core))
        client.flush()

        def agrees() -> bool:
            return node_words(node)[NodeStorageFigure.USED_BYTES] == pytest.approx(
                measure([str(node.directories.data)]), rel=0.01
            )

        wait_until(agrees, "the account and du agree")


def test_with_the_supervisor_stopped_workers_live_within_their_last_grant() -> None:
    with client_node(2, config()) as node, node.connect() as client, sampling(node) as sampler:
        client.subscribe("s", start="earliest").close()
        client.push(bundle(0), key=key_of(client, 0))
        wait_until(lambda: sampler.peak_grants > CAP // 4, "grants are given")
        node.process.signal(signal.SIGSTOP)
        try:
            stored = push_until_refused(client, key=key_of(client, 0), timeout=2.0)
            granted = words(node, 0)[StorageFigure.GRANT_SEEN_BYTES]
            assert granted < CAP
            wait_until(lambda: words(node, 0)[StorageFigure.USED_BYTES] <= granted, "seals to end within the grant")
            used = words(node, 0)[StorageFigure.USED_BYTES]
        finally:
            node.process.signal(signal.SIGCONT)
        more = push_until_refused(client, len(stored), key=key_of(client, 0), timeout=3.0)
        assert more, "the supervisor goes on from the words that it finds"
        assert words(node, 0)[StorageFigure.USED_BYTES] > used


def test_a_worker_that_stays_dead_gives_back_what_it_does_not_use() -> None:
    with client_node(2, config()) as node, node.connect() as client, sampling(node):
        client.subscribe("s", start="earliest").close()
        client.push(bundle(0), key=key_of(client, 0))
        node.signal_worker(1, signal.SIGSTOP)
        held = words(node, 1)[StorageFigure.GRANT_SEEN_BYTES]
        assert held > 0
        push_until_refused(client, 1, key=key_of(client, 0), timeout=2.0)
        used = words(node, 0)[StorageFigure.USED_BYTES]
        assert used <= CAP - words(node, 1)[StorageFigure.USED_BYTES]
        node.signal_worker(1, signal.SIGKILL)
        assert push_until_refused(client, 1000, key=key_of(client, 0), timeout=3.0), (
            "its headroom went to the other one"
        )


def test_a_reload_changes_cap_and_policy_while_pushes_wait() -> None:
    with client_node(1, config()) as node, node.connect() as client:
        client.subscribe("s", start="earliest").close()
        file = node.directories.base / "quiver.toml"
        stored = push_until_refused(client, timeout=1.0)
        file.write_text(config(cap=2 * CAP))
        node.process.signal(signal.SIGHUP)
        stored += push_until_refused(client, len(stored), timeout=3.0)
        assert len(stored) * 100 * KIB > CAP
        file.write_text(config("drop_oldest", cap=CAP))
        node.process.signal(signal.SIGHUP)
        client.push_many((bundle(10_000 + number) for number in range(100)), timeout=30.0)
        used = NodeStorageFigure.USED_BYTES
        wait_until(lambda: node_words(node)[used] <= CAP, "the store works its way down to the lower cap")


def test_a_store_that_is_over_its_cap_starts_and_works_its_way_down() -> None:
    with client_node(2, config(cap=4 * CAP)) as node:
        with node.connect() as client:
            subscription = client.subscribe("s", start="earliest")
            receipts = client.push_many((bundle(number) for number in range(300)), timeout=30.0)
            client.flush()
            subscription.close()
        (node.directories.base / "quiver.toml").write_text(config())
        node.process.stop()
        node.restart()
        with node.connect() as client:
            assert node_words(node)[NodeStorageFigure.USED_BYTES] > CAP
            assert push_until_refused(client, 1) == []
            subscription = client.subscribe("s", start="earliest")
            found = {delivery_id(delivery) for delivery in take_all(subscription, len(receipts))}
            assert found == {receipt.bundle_id for receipt in receipts}
            client.push(bundle(1), timeout=20.0)
            assert node_words(node)[NodeStorageFigure.USED_BYTES] <= CAP


# --- kills -----------------------------------------------------------------------------------------------------------------


ROUNDS = int(os.environ.get("QUIVER_TEST_CAP_ROUNDS", "4"))
"""100 in the long form."""


@pytest.mark.timeout(7200)
def test_no_acknowledged_bundle_is_missing_without_its_notice_whoever_is_killed_during_evictions() -> None:
    random = Random(5)
    acked: dict[BundleId, int] = {}
    delivered: dict[BundleId, int] = {}
    announced: set[BundleId] = set()
    with client_node(2, config("drop_oldest", cap=12 * MIB)) as node, sampling(node, 12 * MIB) as sampler:
        for number in range(ROUNDS):
            victim = random.choice(["core_0", "core_1", "supervisor"])
            with node.connect() as client, client.subscribe("s", start="earliest", gaps="deliver") as subscription:
                delivered |= consume(subscription, announced, random.randint(0, 30))
                killed = threading.Event()
                pusher = threading.Thread(target=push_while, args=(client, acked, killed, 1_000_000 * number))
                pusher.start()
                wait_until(lambda: sampler.peak_bytes > 10 * MIB, "the store is full")
                killed.wait(random.random() * 0.5)
                kill(node, victim)
                killed.set()
                pusher.join()
            if victim == "supervisor":
                assert_nothing_needed_is_gone(node)
                node.restart()
                sampler.follow(attach_page(str(node.directories.run)))
        with node.connect() as client, client.subscribe("s", gaps="deliver") as subscription:
            client.flush()
            missing = set(acked) - set(delivered) - announced
            while missing:
                event = subscription.get(DEADLINE_SECONDS)
                assert event is not None, (
                    f"{len(missing)} acknowledged bundles neither came nor were announced: {sorted(missing)[:3]}"
                )
                missing -= note(event, delivered, announced)
        node.process.stop()
        assert_nothing_needed_is_gone(node)
    assert announced
    assert all(delivered[id_] == number for id_, number in acked.items() if id_ in delivered)


def assert_nothing_needed_is_gone(node: ClientNode) -> None:
    """As the dead left it: no file is gone that some progress still owes bundles of."""
    with opened(str(node.directories.data), lambda _: None) as (tree, place):
        findings = list(verify(tree, place, deep=False, totals=Totals()))
    assert not has_damage(findings), findings


def kill(node: ClientNode, victim: str) -> None:
    if victim == "supervisor":
        node.kill_supervisor()
    else:
        node.kill_worker(int(victim.removeprefix("core_")))


def push_while(client: Client, acked: dict[BundleId, int], killed: threading.Event, first: int) -> None:
    """Push until somebody was killed; what was acknowledged until then."""
    number = first
    while not killed.is_set():
        try:
            receipts = client.push_many([bundle(number + n) for n in range(8)], key=str(number), timeout=5.0)
        except QuiverError:
            number += 8
            continue
        acked.update((receipt.bundle_id, number + n) for n, receipt in enumerate(receipts))
        number += 8


def consume(subscription: GapSubscription, announced: set[BundleId], count: int) -> dict[BundleId, int]:
    delivered: dict[BundleId, int] = {}
    for _ in range(count):
        event = subscription.get(0.2)
        if event is None:
            break
        note(event, delivered, announced)
    return delivered


def note(event: Delivery | GapNotice, delivered: dict[BundleId, int], announced: set[BundleId]) -> set[BundleId]:
    """What an event accounts for."""
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
    """Everything that the subscription gives: ids delivered, ids announced as lost."""
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
