from __future__ import annotations

import gc
import os
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.client import Client, GapNotice, Subscription, connect
from quiver_actors.client.exchange import Exchange
from quiver_actors.client.subscriber_channel import WATCHDOG_NS
from quiver_actors.errors import (
    AlreadyResolved,
    ClosedError,
    InvalidBundle,
    InvalidFormat,
    InvalidId,
    ProtocolError,
    SlotNotInBundle,
    Truncated,
    UnknownSlot,
    UnknownSubscriber,
    UnknownTopic,
    UsageError,
    WorkerUnavailable,
)
from quiver_actors.model import BundleId
from quiver_actors.protocol.messages import (
    ClientMessage,
    Credit,
    Done,
    FlushProgress,
    Hello,
    Register,
    Resolve,
    SegmentRetired,
    Terms,
    Unreadable,
    Unregister,
)
from quiver_actors.units import SECOND_NS
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, batch, deliver, gap, open_segment, resolved, take
from tests.unit.client.peer import Background, Peer, PeerSession, refuse, write_node_file
from tests.unit.segment.logfile import TIME

# --- attaching ---------------------------------------------------------------------------------------------------------------


def test_subscribe_registers_on_all_workers_and_gives_credit(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel", prefetch=10):
        two_cores.wait_for(lambda: len([m for _, m in two_cores.received if isinstance(m, Credit)]) == 2)
        assert two_cores.of_type(Register) == [Register(1, "travel", "exporter", "latest", Terms())] * 2
        assert two_cores.of_type(Credit) == [Credit("travel", "exporter", 10)] * 2


def test_subscribe_waits_for_every_worker(two_cores: Peer, clock: ClientClock) -> None:
    two_cores.kill(1)
    with connect(two_cores.run_dir, timeout=60) as client:
        subscribing = Background(lambda: client.subscribe("exporter"))
        two_cores.wait_for(lambda: bool(two_cores.of_type(Credit)))
        clock.ahead_ns += 61 * SECOND_NS
        with pytest.raises(WorkerUnavailable, match="worker 1"):
            subscribing.result()
    two_cores.wait_for(lambda: not two_cores.sessions)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"subscriber": "no spaces"}, InvalidId),
        ({"subscriber": "CON"}, InvalidId),
        ({"subscriber": "a", "start": "yesterday"}, UsageError),
        ({"subscriber": "a", "prefetch": 0}, UsageError),
        ({"subscriber": "a", "topic": "nosuch"}, UnknownTopic),
    ],
)
def test_wrong_arguments_are_refused(client: Client, arguments: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        client.subscribe(**arguments)


def test_refused_registration_is_raised(peer: Peer, client: Client) -> None:
    peer.handlers[Register] = refuse("invalid_id", "this id is taken")
    with pytest.raises(InvalidId, match="this id is taken"):
        client.subscribe("exporter")


def test_nobody_waits_without_rest_for_a_worker_that_does_not_answer(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took a whole processor, for as long as a worker took to come, also in `flush`."""
    waits: list[float | None] = []

    class Counted(Exchange):
        def _wait(self, waiter: Any, timeout_seconds: float | None) -> None:
            waits.append(timeout_seconds)
            super()._wait(waiter, timeout_seconds)

    monkeypatch.setattr("quiver_actors.client.subscription.Exchange", Counted)
    peer.handlers[Register] = lambda session, message: True
    with connect(peer.run_dir, timeout=0.3) as client, pytest.raises(WorkerUnavailable):
        client.subscribe("exporter")
    assert 1 <= len(waits) < 20


def test_unsubscribe_tells_all_workers_and_forgives_one_that_never_knew(two_cores: Peer) -> None:
    def unknown_on_core_1(session: PeerSession, message: ClientMessage) -> bool:
        return session.core == 1 and refuse("unknown_subscriber")(session, message)

    two_cores.handlers[Unregister] = unknown_on_core_1
    with connect(two_cores.run_dir) as client:
        client.unsubscribe("exporter", topic="travel")
        assert len(two_cores.of_type(Unregister)) == 2
        two_cores.handlers[Unregister] = refuse("unknown_subscriber", "never heard of it")
        with pytest.raises(UnknownSubscriber, match="never heard of it"):
            client.unsubscribe("exporter", topic="travel")


# --- reading -----------------------------------------------------------------------------------------------------------------


def test_delivery_gives_the_bundle_that_was_stored(feeder: Feeder, subscription: Subscription) -> None:
    first, second = take(subscription, 2)
    assert first.bundle_id == BundleId("travel", 0, 4, 0)
    assert first["flights"].equals(batch(0))
    assert first[3].equals(batch(0))
    assert first["weather"].equals(batch(0, 1))
    assert (first.row_count, first.item_count, first.ingestion_unix_ns) == (3, 0, TIME + 100)
    assert {slot: found.num_rows for slot, found in first.slots.items()} == {3: 2, 7: 1}
    assert first.slot_ids == (3, 7)
    assert "weather" in first
    assert "weather" not in second
    assert second.batch.equals(batch(1))
    assert second.item_count == 1


def test_wrong_slots_of_a_delivery_say_so(feeder: Feeder, subscription: Subscription) -> None:
    first, second = take(subscription, 2)
    with pytest.raises(InvalidBundle, match=r"slots \[3, 7\]"):
        _ = first.batch
    with pytest.raises(SlotNotInBundle):
        second["weather"]
    with pytest.raises(UnknownSlot):
        second["nosuch"]


def test_batches_are_views_of_the_mapping_and_outlive_everything(feeder: Feeder, client: Client) -> None:
    gc.collect()  # What other tests left behind in reference cycles.
    allocated = pa.total_allocated_bytes()
    with client.subscribe("exporter", topic="travel") as subscription:
        found = [delivery["flights"] for delivery in take(subscription, 50)]
    client.close()
    assert pa.total_allocated_bytes() == allocated
    assert [part.column(0)[0].as_py() for part in found] == list(range(50))


def test_credit_comes_back_in_portions_as_bundles_are_taken(peer: Peer, feeder: Feeder, client: Client) -> None:
    with client.subscribe("exporter", topic="travel", prefetch=16) as subscription:
        take(subscription, BUNDLES)

        def totals() -> list[int]:
            return [message.total for _, message in peer.received if isinstance(message, Credit)]

        with peer.changed:
            assert peer.changed.wait_for(lambda: totals()[-1] == BUNDLES + 16, 60), totals()
            given = totals()
        assert given[0] == 16
        # The watchdog may repeat one.
        assert sorted(set(given)) == list(range(16, BUNDLES + 17, 8))


def test_prefetch_of_one_delivers_everything(feeder: Feeder, client: Client) -> None:
    with client.subscribe("exporter", topic="travel", prefetch=1) as subscription:
        assert [delivery.bundle_id.bundle_index for delivery in take(subscription, BUNDLES)] == list(range(BUNDLES))


def test_get_returns_none_when_nothing_comes(subscription: Subscription) -> None:
    assert subscription.get(0) is None
    assert subscription.get(0.05) is None


def test_get_without_waiting_takes_what_is_there(feeder: Feeder, subscription: Subscription) -> None:
    take(subscription)
    assert subscription.get(0) is not None


def test_iteration_ends_when_idle(feeder: Feeder, client: Client, clock: ClientClock) -> None:
    clock.stop()
    with client.subscribe("exporter", topic="travel", idle_timeout=0.1) as subscription:
        count = 0
        for _ in subscription:
            count += 1
            if count == BUNDLES:
                clock.go_on()
        assert count == BUNDLES


def test_iteration_ends_when_the_subscription_is_closed(client: Client) -> None:
    subscription = client.subscribe("exporter")
    iteration = Background(lambda: list(subscription))
    subscription.close()
    assert iteration.result() == []
    with pytest.raises(ClosedError):
        subscription.get()


def test_bundles_of_all_workers_come_in_one_stream(two_cores: Peer, segment: Path) -> None:
    Feeder(two_cores, segment)
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel") as subscription:
        found = [delivery.bundle_id[1:] for delivery in take(subscription, 2 * BUNDLES)]
    assert sorted(found) == [(core, 4, n) for core in range(2) for n in range(BUNDLES)]


def test_several_threads_share_a_subscription(feeder: Feeder, subscription: Subscription) -> None:
    found: list[int] = []

    def consume() -> None:
        while len(found) < BUNDLES:
            if (delivery := subscription.get(0.05)) is not None:
                with delivery:
                    found.append(delivery["flights"].column(0)[0].as_py())

    for thread in [Background(consume) for _ in range(4)]:
        thread.result()
    assert sorted(found) == list(range(BUNDLES))


def test_damaged_segment_is_an_error_of_its_deliveries_only(
    peer: Peer, subscription: Subscription, segment: Path, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(segment.read_bytes()[:-16] + bytes(16))
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    session = peer.sessions[-1]
    open_segment(session, damaged, 3)
    open_segment(session, segment, 4)
    deliver(session, 0, segment_seq=3)
    deliver(session, 1, segment_seq=4)
    bad, good = take(subscription, 2)
    for _ in range(2):
        with pytest.raises(InvalidFormat):
            _ = bad.slots
    bad.reject()
    assert good.batch.equals(batch(1))
    peer.wait_for(lambda: bool(peer.of_type(Unreadable)))
    (told,) = peer.of_type(Unreadable)
    assert isinstance(told, Unreadable)
    assert (told.segment_seq, told.token, array("I", told.bundle_indexes).tolist()) == (3, 1, [0])
    subscription.flush()
    assert resolved(peer) == [], "the worker has it back already"


def test_segment_shorter_than_announced_is_truncated_not_a_crash(
    peer: Peer, subscription: Subscription, segment: Path
) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment, size_bytes=10 << 20)
    with pytest.raises(Truncated, match="announced"):
        subscription.get(60)


def test_bundles_without_their_segment_are_a_protocol_error(peer: Peer, subscription: Subscription) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    deliver(peer.sessions[-1], 0)
    with pytest.raises(ProtocolError, match="without its file"):
        subscription.get(60)


# --- resolving ---------------------------------------------------------------------------------------------------------------


def test_outcomes_reach_the_worker(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    one, two, three, four = take(subscription, 4)
    one.ack()
    two.reject()
    three.defer()
    four.defer(1.5)
    subscription.flush()
    assert sorted(resolved(peer)) == [
        (4, "ack", 0, [0]),
        (4, "defer", 0, [2]),
        (4, "defer", 1_500_000_000, [3]),
        (4, "reject", 0, [1]),
    ]


def test_resolutions_travel_together(
    peer: Peer, feeder: Feeder, subscription: Subscription, clock: ClientClock
) -> None:
    deliveries = take(subscription, BUNDLES)
    clock.stop()
    for delivery in deliveries:
        delivery.ack()
    subscription.flush()
    sent = resolved(peer)
    assert sorted(index for *_, indexes in sent for index in indexes) == list(range(BUNDLES))
    # One message for each token and time of sending.
    assert len(sent) <= 20


def test_first_ack_leaves_at_once(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    take(subscription)[0].ack()
    peer.wait_for(lambda: feeder.resolved == {0})


def test_acks_leave_when_get_returns_nothing(peer: Peer, subscription: Subscription, segment: Path) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], 0, 1, 2)
    for delivery in take(subscription, 3):
        delivery.ack()
    assert subscription.get(0) is None
    peer.wait_for(lambda: sum(len(indexes) for *_, indexes in resolved(peer)) == 3)


def test_acks_leave_in_time_while_another_thread_waits_for_more(
    peer: Peer, subscription: Subscription, segment: Path
) -> None:
    peer.wait_for(lambda: bool(peer.of_type(Credit)))
    open_segment(peer.sessions[-1], segment)
    deliver(peer.sessions[-1], *range(30))
    deliveries = take(subscription, 30)
    waiting = Background(subscription.get)
    for delivery in deliveries:
        delivery.ack()
    peer.wait_for(lambda: sum(len(indexes) for *_, indexes in resolved(peer)) == 30)
    assert waiting.is_running
    deliver(peer.sessions[-1], 31)
    assert waiting.result() is not None


def test_block_acknowledges_or_defers(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    good, bad, rejected = take(subscription, 3)
    with good:
        pass
    with pytest.raises(LookupError), bad:
        raise LookupError
    with rejected:
        rejected.reject()
    subscription.flush()
    assert sorted(resolved(peer)) == [(4, "ack", 0, [0]), (4, "defer", 0, [1]), (4, "reject", 0, [2])]


def test_resolving_twice_the_same_way_changes_nothing_and_another_way_is_refused(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    (delivery,) = take(subscription)
    delivery.ack()
    delivery.ack()
    for again in (delivery.reject, delivery.defer):
        with pytest.raises(AlreadyResolved, match="resolved before"):
            again()
    assert delivery.is_resolved
    subscription.flush()
    assert resolved(peer) == [(4, "ack", 0, [0])]


def test_negative_delay_is_refused(feeder: Feeder, subscription: Subscription) -> None:
    (delivery,) = take(subscription)
    with pytest.raises(UsageError):
        delivery.defer(-1)
    assert not delivery.is_resolved


def test_flush_waits_for_the_worker(peer: Peer, feeder: Feeder, subscription: Subscription) -> None:
    waiting: list[tuple[PeerSession, int]] = []

    def hold(session: PeerSession, message: ClientMessage) -> bool:
        assert isinstance(message, FlushProgress)
        waiting.append((session, message.tag))
        return True

    peer.handlers[FlushProgress] = hold
    take(subscription)[0].ack()
    flush = Background(subscription.flush)
    peer.wait_for(lambda: len(waiting) == 1)
    assert flush.is_running
    del peer.handlers[FlushProgress]
    waiting[0][0].send(Done(waiting[0][1]))
    flush.result()


def test_close_sends_and_flushes_what_was_resolved(
    peer: Peer, feeder: Feeder, client: Client, clock: ClientClock
) -> None:
    clock.stop()  # a close waits for a few seconds only
    with client.subscribe("exporter", topic="travel") as subscription:
        for delivery in take(subscription, 10):
            delivery.ack()
    assert feeder.resolved == set(range(10))
    assert len(peer.of_type(FlushProgress)) == 1
    peer.wait_for(lambda: not peer.sessions)


def test_delivery_of_a_closed_subscription_cannot_be_resolved_but_read(feeder: Feeder, client: Client) -> None:
    subscription = client.subscribe("exporter", topic="travel")
    (delivery,) = take(subscription)
    subscription.close()
    subscription.close()
    with pytest.raises(ClosedError):
        delivery.ack()
    assert delivery["flights"].equals(batch(0))


def test_error_of_a_block_is_not_hidden_by_a_closed_subscription(feeder: Feeder, client: Client) -> None:
    subscription = client.subscribe("exporter", topic="travel")
    (delivery,) = take(subscription)
    with pytest.raises(LookupError), delivery:
        _close_and_fail(subscription)


def _close_and_fail(subscription: Subscription) -> None:
    subscription.close()
    raise LookupError


def test_client_close_closes_its_subscriptions(peer: Peer, client: Client) -> None:
    subscription = client.subscribe("exporter")
    client.close()
    with pytest.raises(ClosedError):
        subscription.get()
    peer.wait_for(lambda: not peer.sessions)


def test_retired_segment_is_forgotten_but_stays_readable(
    peer: Peer, feeder: Feeder, subscription: Subscription
) -> None:
    gc.collect()  # What other tests left behind in reference cycles.
    deliveries = take(subscription, BUNDLES)
    mapped = "0000000000000004.qseg"
    assert mapped in Path("/proc/self/maps").read_text()
    peer.sessions[-1].send(SegmentRetired("travel", "exporter", 4))
    assert subscription.get(0.05) is None
    assert deliveries[7]["flights"].equals(batch(7))
    del deliveries
    assert mapped not in Path("/proc/self/maps").read_text()


def test_what_waits_of_a_retired_segment_is_not_handed_over(
    peer: Peer, client: Client, segment: Path, clock: ClientClock
) -> None:
    with client.subscribe("exporter", topic="travel", prefetch=8) as subscription:
        session = peer.sessions[-1]
        peer.wait_for(lambda: bool(peer.of_type(Credit)))
        open_segment(session, segment)
        deliver(session, 0, 1, 2, 3)
        (first,) = take(subscription, 1)
        open_segment(session, segment, segment_seq=5)
        deliver(session, 7, segment_seq=5, token=2)
        session.send(SegmentRetired("travel", "exporter", 4))
        clock.ahead_ns += WATCHDOG_NS // 2  # it looks by then
        (other,) = take(subscription, 1)
        assert other.bundle_id[2:] == (5, 7)
        assert first["flights"].equals(batch(0))
        # All four count as taken: others may come in their place.
        peer.wait_for(lambda: peer.of_type(Credit)[-1].total == 8 + 4)
        assert subscription.claims_lost == 0


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
