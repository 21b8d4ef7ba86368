"""A subscription whose worker, node or process goes away, and its gap notices."""

import gc
import os
from pathlib import Path

import pytest

from quiver_actors.base.protocol.messages import (
    ClientMessage,
    Credit,
    Hello,
    Register,
    Resolve,
)
from quiver_actors.client import Client, GapNotice, Subscription, connect
from quiver_actors.errors import (
    UnknownSubscriber,
    WorkerUnavailable,
)
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, deliver, gap, open_segment, take
from tests.unit.client.peer import Peer, PeerSession, refuse, write_node_file

# --- gaps --------------------------------------------------------------------------------------------------------------------


def test_gap_notice_reaches_the_callback(peer: Peer, client: Client, segment: Path) -> None:
    notices: list[GapNotice] = []
    with client.subscribe("exporter", topic="travel", on_gap=notices.append) as subscription:
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        peer.sessions[-1].send(gap())
        open_segment(peer.sessions[-1], segment)
        deliver(peer.sessions[-1], 0)
        take(subscription)
        assert subscription.get(0) is None
    assert notices == [GapNotice("travel", 0, 4, 10, 14, 5, 20, "damaged")]


def test_a_callback_that_closes_and_raises_is_heard(peer: Peer, client: Client) -> None:
    """Iteration took it for the end of the subscription."""

    def refuse(notice: GapNotice) -> None:
        subscription.abort()
        raise ValueError(notice.reason)

    subscription = client.subscribe("exporter", topic="travel", on_gap=refuse)
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    peer.sessions[-1].send(gap())
    with pytest.raises(ValueError, match="damaged"):
        list(subscription)


def test_gap_notice_is_logged_without_a_callback(
    peer: Peer, subscription: Subscription, caplog: pytest.LogCaptureFixture
) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    peer.sessions[-1].send(gap())
    assert subscription.get(0.1) is None
    assert "quiver.subscription.gap" in caplog.text
    assert "damaged" in caplog.text


# --- losing the connection ------------------------------------------------------------------------------------------------------


def test_lost_worker_is_registered_with_again_and_what_was_not_acknowledged_comes_again(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    first = take(subscription, 3)
    first[0].ack()
    subscription.flush()
    peer.kill(0)
    peer.listen(0)
    # What had arrived before the loss was noticed may still be given out.
    while take(subscription)[0].bundle_id.bundle_index != 1:
        pass
    assert len(peer.of_type(Register)) == 2
    first[1].ack()
    with pytest.raises(WorkerUnavailable, match="1 bundles are delivered again"):
        subscription.flush()
    assert subscription.claims_lost == 1
    assert feeder.resolved == {0}, "a claim of the lost connection is not resolved over the new one"


def test_bundles_of_a_lost_worker_are_not_given_out_any_more(two_cores: Peer, segment: Path) -> None:
    Feeder(two_cores, segment)
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel") as subscription:
        take(subscription, 2)
        two_cores.kill(1)
        taken: dict[int, int] = {}
        while taken.get(0, 0) < BUNDLES - 2 or 1 not in taken:
            (delivery,) = take(subscription)
            core = delivery.bundle_id.core
            taken[core] = taken.get(core, 0) + 1
            if core == 0 and taken[0] == 100:
                two_cores.listen(1)
    assert taken[0] <= BUNDLES


def test_other_workers_deliver_while_one_is_away(two_cores: Peer, segment: Path) -> None:
    Feeder(two_cores, segment)
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel", prefetch=4) as subscription:
        two_cores.kill(1)
        found = [delivery.bundle_id for delivery in take(subscription, BUNDLES)]
        assert sum(bundle_id.core == 0 for bundle_id in found) >= BUNDLES - 8


def test_draining_worker_is_waited_for(peer: Peer, feeder: Feeder, client: Client) -> None:
    refusals = iter([True, True])

    def refuse_twice(session: PeerSession, message: ClientMessage) -> bool:
        return next(refusals, False) and refuse("draining")(session, message)

    peer.handlers[Register] = refuse_twice
    with client.subscribe("exporter", topic="travel") as subscription:
        take(subscription)


def test_unregistered_subscriber_is_told(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    take(subscription)
    peer.handlers[Credit] = refuse("unknown_subscriber", "it was unregistered")
    with pytest.raises(UnknownSubscriber, match="it was unregistered"):
        take(subscription, 200)


def test_worker_that_the_node_gets_later_is_subscribed_from_its_beginning(run_dir: Path, segment: Path) -> None:
    with Peer(run_dir, cores=2) as peer:
        write_node_file(run_dir, 1)
        with connect(run_dir) as client, client.subscribe("exporter", topic="travel") as subscription:
            write_node_file(run_dir, 2)
            peer.kill(0)
            peer.listen(0)
            Feeder(peer, segment)
            cores = {delivery.bundle_id.core for delivery in take(subscription, BUNDLES + 1)}
        assert cores == {0, 1}
        starts = {(core, message.start) for core, message in peer.received if isinstance(message, Register)}
        assert (1, "earliest") in starts
        assert (1, "latest") not in starts


def test_refused_resolution_is_logged_and_changes_nothing(
    peer: Peer, feeder: Feeder, subscription: Subscription, caplog: pytest.LogCaptureFixture
) -> None:
    peer.handlers[Resolve] = refuse("not_claimed", "bundle 0 is not yours")
    deliveries = take(subscription, 2)
    deliveries[0].ack()
    subscription.flush()
    assert "bundle 0 is not yours" in caplog.text
    assert subscription.get(60) is not None


def test_forked_child_subscribes_anew_and_leaves_the_parent_alone(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    (delivery,) = take(subscription)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            delivery.ack()
            own = subscription.get(60)
            if own is not None and subscription.claims_lost == 1 and delivery["flights"].num_rows == 2:
                status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert feeder.resolved == set()
    delivery.ack()
    subscription.flush()
    assert feeder.resolved == {0}
    assert {message.pid for message in peer.of_type(Hello)} == {os.getpid(), child}


def test_no_descriptor_or_mapping_is_left(peer: Peer, feeder: Feeder, client: Client, clock: ClientClock) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def consume() -> None:
        with client.subscribe("exporter", topic="travel") as subscription:
            for delivery in take(subscription, 10):
                delivery.slots  # noqa: B018
                delivery.defer()
        feeder.resolved.clear()

    clock.stop()  # a close waits for a few seconds only, and its error would keep what it has seen
    gc.collect()  # What other tests left behind in reference cycles.
    consume()
    peer.wait_for(lambda: not peer.sessions)
    before = count()
    for _ in range(3):
        consume()
        peer.wait_for(lambda: not peer.sessions)
    assert count() == before
    assert "0000000000000004.qseg" not in Path("/proc/self/maps").read_text()
