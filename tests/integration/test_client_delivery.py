"""What a subscription can do beside taking the next bundle, against a real node of two workers."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence

import pytest

from quiver_actors import aio
from quiver_actors.base.model import BundleId, Receipt
from quiver_actors.client import Client, Subscription
from quiver_actors.errors import AlreadyResolved, ClosedError, NotClaimed, NotStored, UnknownSubscriber, UsageError
from tests.integration.client_node import ClientNode, first_id, node_fixture, numbers, take
from tests.support.commands import run_here
from tests.unit.node.worker.harness import until

node = node_fixture(cores=2)


@pytest.fixture(scope="module")
def client(node: ClientNode) -> Iterator[Client]:
    with node.connect() as connected:
        connected.subscribe("keeper").close()
        yield connected


def pushed(client: Client, count: int, *, key: str = "k") -> Sequence[Receipt]:
    receipts = client.push_many([numbers(n) for n in range(count)], key=key)
    client.flush()
    return receipts


def ids_of(subscription: Subscription, count: int) -> list[int]:
    """The first ids of the next bundles, behind which nothing comes."""
    found = [first_id(delivery) for delivery in take(subscription, count)]
    assert subscription.get(0.2) is None
    return found


def test_new_subscriber_starts_at_a_bundle_or_a_time(client: Client) -> None:
    first = pushed(client, 20)
    between = time.time_ns()
    pushed(client, 5)
    with client.subscribe("at-bundle", start=first[12].bundle_id) as subscription:
        assert sorted(ids_of(subscription, 13)) == sorted([*range(12, 20), *range(5)])
    with client.subscribe("at-time", start=between) as subscription:
        assert ids_of(subscription, 5) == list(range(5))


def test_claim_by_reference_counts_what_the_consumer_did_right_before(client: Client) -> None:
    with client.subscribe("by-reference-at-once", prefetch=8, max_in_flight=8) as subscription:
        receipts = pushed(client, 8)
        deliveries = {first_id(delivery): delivery for delivery in take(subscription, 8)}
        for number in range(4):
            deliveries[number].ack()
        with pytest.raises(AlreadyResolved):
            subscription.claim(receipts[3].bundle_id)
        for number in range(4, 8):
            deliveries[number].defer(3600)
        again = subscription.claim(receipts[7].bundle_id)
        assert first_id(again) == 7
        again.ack()


def test_claim_by_reference(client: Client) -> None:
    with client.subscribe("by-reference", prefetch=1, max_in_flight=1) as subscription:
        receipts = pushed(client, 10)
        delivery = subscription.claim(receipts[7].bundle_id)
        assert first_id(delivery) == 7
        with pytest.raises(NotClaimed):
            subscription.claim(receipts[7].bundle_id)
        delivery.ack().wait()
        with pytest.raises(AlreadyResolved):
            subscription.claim(receipts[7].bundle_id)
        found = []
        for _ in range(9):
            (next_one,) = take(subscription, 1)
            with next_one:
                found.append(first_id(next_one))
        assert found == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        subscription.flush()
        assert subscription.all_drained()


def test_questions_and_cumulative_acknowledgement(client: Client) -> None:
    with client.subscribe("asker", max_in_flight=1) as subscription:
        assert subscription.all_drained()
        receipts = pushed(client, 50)
        start, end = receipts[0].bundle_id, receipts[-1].bundle_id
        assert subscription.pending_count() == 50
        assert subscription.oldest_incomplete() == {start.core: start}
        assert subscription.pending_in_range(start, end) == 49
        subscription.ack_through(receipts[29].bundle_id)
        assert subscription.pending_count() == 20
        client.ack_through(receipts[39].bundle_id, subscriber="asker")
        client.ack_through(receipts[9].bundle_id, subscriber="asker")
        assert subscription.pending_count() == 10
        assert subscription.pending_in_range(start, end) == 9
        with pytest.raises(UsageError):
            subscription.ack_through(end._replace(segment_seq=end.segment_seq + 1000))
        subscription.ack_through(end)
        assert subscription.all_drained()


def test_range_read_is_repeatable_until_acknowledged(client: Client) -> None:
    with client.subscribe("replayer", max_in_flight=1):
        receipts = pushed(client, 30)
        start, end = receipts[3].bundle_id, receipts[25].bundle_id
        for _ in range(2):
            found = list(client.read("default", start.core, start, end))
            assert [bundle.bundle_id for bundle in found] == [receipt.bundle_id for receipt in receipts[3:25]]
            assert [bundle.batch.column(0)[0].as_py() for bundle in found] == list(range(3, 25))
        with pytest.raises(NotStored):
            client.read("default", start.core, start, end._replace(segment_seq=end.segment_seq + 1000))


def test_projection_gives_only_what_is_asked_for(client: Client) -> None:
    with client.subscribe("projected", topic="travel", slots=["weather"], columns={"weather": ["id"]}) as subscription:
        client.push(
            {"flights": numbers(1), "weather": numbers(7).append_column("more", numbers(1).column(0))}, topic="travel"
        )
        (delivery,) = take(subscription, 1)
        assert delivery.slot_ids == (7,)
        assert delivery.batch.equals(numbers(7))
        with pytest.raises(UsageError):
            delivery["flights"]


def test_in_flight_window_holds_back_until_something_is_resolved(node: ClientNode, client: Client) -> None:
    client.subscribe("window").close()
    pushed(client, 20)
    with client.subscribe("window", max_in_flight=4) as subscription:
        held = take(subscription, 4)
        assert subscription.get(0.2) is None
        until(lambda: full_windows(node, "window") == 1, "status to show whose window is full")
        held[0].ack()
        assert take(subscription, 1)


def full_windows(node: ClientNode, subscriber: str) -> int:
    """Consumers that could be given more but for their window, as `quiver status` says."""
    status = json.loads(run_here("status", "--run-dir", str(node.directories.run), "--json").stdout)
    return sum(each["window_full"] for each in status["subscribers"] if each["subscriber"] == subscriber)


def test_exhausted_bundle_is_dropped(client: Client) -> None:
    with client.subscribe("dropper", max_deliveries=2, exhausted="drop") as subscription:
        pushed(client, 1)
        for count in (1, 2):
            (delivery,) = take(subscription, 1)
            assert delivery.delivery_count == count
            delivery.defer()
        assert subscription.get(0.2) is None
        assert subscription.all_drained()


def test_orphan_is_dropped_but_no_attached_subscriber(client: Client) -> None:
    with client.subscribe("orphan"):
        with pytest.raises(UsageError, match="no orphan"):
            client.drop_orphan("orphan")
        pushed(client, 3)
    assert client.drop_orphan("orphan") == 3
    with pytest.raises(UnknownSubscriber):
        client.drop_orphan("orphan")


def test_asyncio_client_end_to_end(node: ClientNode) -> None:
    async def main() -> list[BundleId]:
        async with aio.connect(node.directories.run, timeout=20.0) as client:
            async with await client.subscribe("tasks", idle_timeout=10) as subscription:
                pushes = asyncio.gather(*(client.push(numbers(n)) for n in range(100)))
                found = []
                async for delivery in subscription:
                    with delivery:
                        found.append(delivery.bundle_id)
                    if len(found) == 100:
                        break
                receipts = await pushes
                await subscription.flush()
                assert await subscription.all_drained()
                assert sorted(receipt.bundle_id for receipt in receipts) == sorted(found)
            infos = [info for each in (await client.subscribers()).values() for info in each]
            assert "tasks" in {info.subscriber for info in infos}
            assert await client.unsubscribe("tasks") == 0
        return found

    assert len(set(asyncio.run(main()))) == 100


def test_a_close_that_is_cancelled_gives_back_what_was_held(node: ClientNode, client: Client) -> None:
    client.create_topic("hasty")

    async def main() -> None:
        async with aio.connect(node.directories.run, timeout=20.0) as client:
            subscription = await client.subscribe("hasty", topic="hasty", lease=None)
            await client.push(numbers(1), topic="hasty")
            delivery = await subscription.get(timeout=20)
            assert delivery is not None
            closing = asyncio.create_task(subscription.close())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ClosedError):
                await subscription.get(0)
            async with await client.subscribe("hasty", topic="hasty") as following:
                again = await following.get(timeout=20)
                assert again is not None
                assert again.bundle_id == delivery.bundle_id

    asyncio.run(main())


def test_asyncio_client_looks_at_what_is_stored_as_the_other_one_does(node: ClientNode, client: Client) -> None:
    with client.subscribe("keeps-other", topic="other"), client.subscribe("looker", topic="other") as subscription:
        last = client.push_many([numbers(n) for n in range(20)], topic="other")[-1].bundle_id
        client.flush("other")
        take(subscription, 20)

    async def main() -> None:
        async with aio.connect(node.directories.run, timeout=20.0) as twin:
            assert await twin.segments("other") == client.segments("other")
            for core, infos in client.segments("other").items():
                expected = [(bundle.bundle_id, bundle.batch) for bundle in client.read("other", core)]
                assert [(bundle.bundle_id, bundle.batch) async for bundle in twin.read("other", core)] == expected
                for info in infos:
                    reader = await twin.read_segment(core, "other", info.segment_seq)
                    assert reader.bundle_count == info.bundle_count
                with pytest.raises(NotStored):
                    async for _ in twin.read("other", core, end=BundleId("other", core, 10_000, 1)):
                        pass
            assert (await twin.seek("looker", "latest", topic="other", dry_run=True)).skipped == 20
            await twin.ack_through(last, subscriber="looker")
            assert (await twin.seek("looker", "earliest", topic="other")).again == 20
            assert await twin.drop_orphan("looker", topic="other") == 20

    asyncio.run(main())
