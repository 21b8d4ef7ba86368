from __future__ import annotations

import gc
from array import array
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.base.protocol.messages import (
    ClientMessage,
    Credit,
    Register,
    Terms,
    Unreadable,
    Unregister,
)
from quiver_actors.base.units import SECOND_NS
from quiver_actors.client import Client, Subscription, connect
from quiver_actors.client.exchange import Exchange
from quiver_actors.errors import (
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
from tests.unit.client.clock import ClientClock
from tests.unit.client.feeding import BUNDLES, Feeder, batch, deliver, open_segment, resolved, take
from tests.unit.client.peer import Background, Peer, PeerSession, refuse
from tests.unit.store.segment.logfile import TIME

# --- attaching ---------------------------------------------------------------------------------------------------------------


def test_subscribe_registers_on_all_workers_and_gives_credit(two_cores: Peer) -> None:
    with connect(two_cores.run_dir) as client, client.subscribe("exporter", topic="travel", prefetch=10):
        two_cores.wait_for(lambda: len([m for _, m in two_cores.received if isinstance(m, Credit)]) == 2)
        assert (
            two_cores.of_type(Register)
            == [Register(1, "travel", "exporter", "latest", Terms(), reads_archive=True)] * 2
        )
        assert two_cores.of_type(Credit) == [Credit("travel", "exporter", 10)] * 2


def test_subscribe_waits_for_every_worker_and_takes_no_bundle_before(two_cores: Peer, clock: ClientClock) -> None:
    two_cores.kill(1)
    with connect(two_cores.run_dir, timeout=60) as client:
        subscribing = Background(lambda: client.subscribe("exporter"))
        two_cores.wait_for(lambda: bool(two_cores.of_type(Register)))
        clock.ahead_ns += 61 * SECOND_NS
        # The answer of worker 0 may still be on its way when the time is over.
        with pytest.raises(WorkerUnavailable, match=r"worker [01]"):
            subscribing.result()
    two_cores.wait_for(lambda: not two_cores.sessions)
    assert two_cores.of_type(Credit) == []


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
    """Regression: a waiting consumer took a whole processor until the worker came, also in `flush`."""
    waits: list[float | None] = []

    class Counted(Exchange):
        def _wait(self, waiter: Any, timeout_seconds: float | None) -> None:
            waits.append(timeout_seconds)
            super()._wait(waiter, timeout_seconds)

    monkeypatch.setattr("quiver_actors.client.client.Exchange", Counted)
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
        assert given == list(range(16, BUNDLES + 17, 8))


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
