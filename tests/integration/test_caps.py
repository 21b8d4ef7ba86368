"""The size cap of a running node: real processes, real files; a sampler that watches the disk and the supervisor's words all the time."""

from __future__ import annotations

import signal

import pytest

from quiver_actors.base.units import KIB, MIB
from quiver_actors.supervisor.figures import (
    NodeStorageFigure,
    StorageFigure,
)
from quiver_actors.supervisor.measure import measure
from tests.integration.capped_node import (
    CAP,
    DEADLINE_SECONDS,
    bundle,
    config,
    delivery_id,
    drain,
    eased_by_memory,
    easing,
    key_of,
    node_words,
    number_of,
    push_until_refused,
    push_until_taken,
    sampling,
    status_when_throttled,
    take_all,
    wait_until,
    words,
)
from tests.integration.client_node import client_node

# --- policies ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["backpressure", "reject"])
def test_at_the_cap_pushes_are_refused_and_go_on_by_themselves_when_there_is_room(policy: str) -> None:
    with client_node(1, config(policy)) as node, node.connect() as client, sampling(node) as sampler:
        subscription = client.subscribe("s", start="earliest")
        stored = push_until_refused(client, timeout=3.0)
        assert sampler.peak_bytes > CAP // 2
        status = status_when_throttled(node, client, stored)
        assert (status.node.state, status.node.healthy) == ("degraded", False), "pushes are refused: that is not well"
        assert "of retention.size_cap = 16.0 MiB" in status.node.problems[0]
        assert "raise retention.size_cap (16.0 MiB)" in status.node.advice
        wait_until(
            lambda: easing(node) == ["coalesce", "widen", "defer"], "a full cap is felt, and refuses nobody by itself"
        )
        seen: set[int] = set()
        # What is delivered makes room, and with it the state goes.
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


def test_with_the_supervisor_stopped_workers_live_within_their_last_quota() -> None:
    with client_node(2, config()) as node, node.connect() as client, sampling(node) as sampler:
        client.subscribe("s", start="earliest").close()
        client.push(bundle(0), key=key_of(client, 0))
        wait_until(lambda: sampler.peak_quotas > CAP // 4, "quotas are given")
        node.process.signal(signal.SIGSTOP)
        try:
            stored = push_until_refused(client, key=key_of(client, 0), timeout=2.0)
            quota_bytes = words(node, 0)[StorageFigure.QUOTA_SEEN_BYTES]
            assert quota_bytes < CAP
            wait_until(lambda: words(node, 0)[StorageFigure.USED_BYTES] <= quota_bytes, "seals to end within the quota")
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
        held = words(node, 1)[StorageFigure.QUOTA_SEEN_BYTES]
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
            taken = push_until_refused(client, 1)  # a worker takes pushes until it has heard what the others hold
            subscription = client.subscribe("s", start="earliest")
            found = {delivery_id(delivery) for delivery in take_all(subscription, len(receipts) + len(taken))}
            assert found >= {receipt.bundle_id for receipt in receipts}
            client.push(bundle(1), timeout=20.0)
            assert node_words(node)[NodeStorageFigure.USED_BYTES] <= CAP
