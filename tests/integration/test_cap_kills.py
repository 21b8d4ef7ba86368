"""Whoever is killed during evictions: no acknowledged bundle is missing without its notice."""

from __future__ import annotations

import os
import threading
from random import Random

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.units import MIB
from quiver_actors.cli.storage import opened
from quiver_actors.client import Client
from quiver_actors.errors import QuiverError
from quiver_actors.store.inspection.findings import has_damage
from quiver_actors.store.inspection.verification import Totals, verify
from quiver_actors.store.status.status_view import attach_page
from tests.integration.capped_node import DEADLINE_SECONDS, bundle, config, consume, note, sampling, wait_until
from tests.integration.client_node import ClientNode, client_node

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
    """Check the directory of a dead node: no file is gone whose bundles the progress of a subscriber still needs."""
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
