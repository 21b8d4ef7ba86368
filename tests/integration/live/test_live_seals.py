"""When bundles of open segments come, at a real node: what is durable, the seal under a consumer, and what rots before it."""

from __future__ import annotations

import contextlib

import pytest

from quiver_actors.base.model import BundleId
from quiver_actors.client import Client, Delivery
from quiver_actors.client.gaps import GapNotice
from quiver_actors.client.subscription import GapSubscription
from quiver_actors.errors import ChecksumMismatch, DataLost
from tests.integration.client_node import ClientNode, client_node, first_id, numbers, take
from tests.integration.live_node import LIVE, ids_of, ids_read, push_all, sealed_counts
from tests.unit.node.worker.harness import until


def mapped_files(directory: str) -> list[str]:
    with open("/proc/self/maps") as file:
        return [line.split(maxsplit=5)[5].strip() for line in file if f"/{directory}/core_" in line]


# --- the seal under a consumer ------------------------------------------------------------------------------------------------------


def test_claims_and_batches_outlive_the_seal(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic) as subscription:
        push_all(client, range(30), topic)
        held = take(subscription, 20)
        batches = [delivery.batch for delivery in held[:10]]
        client.flush(topic)
        assert sealed_counts(client, topic) == [30]
        assert [batch.column("id")[0].as_py() for batch in batches] == list(range(10))
        assert ids_of(held) == list(range(20)), "what was not looked at before the seal can be read after it"
        for delivery in held:
            delivery.verify()
            delivery.ack().wait()
        assert ids_of(take(subscription, 10)) == list(range(20, 30))
        assert subscription.get(0.1) is None, "nothing comes twice because of the seal"
        subscription.ack_through(BundleId(topic, 0, held[0].bundle_id.segment_seq, 29))
        assert subscription.all_drained()
    assert [batch.column("id")[0].as_py() for batch in batches] == list(range(10))


def test_a_lease_that_ends_behind_the_seal(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic, lease=1.0) as subscription:
        push_all(client, range(3), topic)
        held = take(subscription, 3)
        client.flush(topic)
        again = take(subscription, 3)
        assert [(first_id(delivery), delivery.delivery_count) for delivery in again] == [(n, 2) for n in range(3)]
        for delivery in again:
            delivery.ack()
        assert subscription.flush() == []
        assert held[0].token < again[0].token
        assert subscription.all_drained()


def test_files_are_let_go_of_when_all_is_resolved(client: Client, topic: str) -> None:
    """Whether the seal comes before the last acknowledgement or behind it."""
    with client.subscribe("s", topic=topic) as subscription:
        for number in range(10):
            client.push(numbers(number), topic=topic)
            (delivery,) = take(subscription, 1)
            assert first_id(delivery) == number
            if number % 2:
                client.flush(topic)
            delivery.ack().wait()
            del delivery
            client.flush(topic)
        push_all(client, range(1), topic)
        (last,) = take(subscription, 1)
        until(lambda: subscription.get(0) is None and len(mapped_files(topic)) <= 1, "the mappings to go")
        assert first_id(last) == 0


# --- what is durable -------------------------------------------------------------------------------------------------------------


def test_segment_only_bundles_come_at_the_seal(client: Client, topic: str) -> None:
    client.create_topic(f"{topic}-s", {"durability": "segment_only"})
    with client.subscribe("s", topic=f"{topic}-s") as subscription:
        push_all(client, range(1), f"{topic}-s")
        assert ids_of(take(subscription, 1)) == [0], "it was synced with the log's name"
        push_all(client, range(1, 6), f"{topic}-s")
        assert subscription.get(0.3) is None, "nothing is shown that a power loss may take"
        assert not subscription.all_drained()
        client.flush(f"{topic}-s")
        assert ids_of(take(subscription, 5)) == list(range(1, 6))


def test_bundles_between_two_syncs_come_with_the_next_one(client: Client, topic: str) -> None:
    client.create_topic(f"{topic}-i", {"wal.flush_interval": "1min"})
    with client.subscribe("s", topic=f"{topic}-i") as subscription:
        push_all(client, range(1), f"{topic}-i")
        assert ids_of(take(subscription, 1)) == [0], "it was synced with the log's name"
        push_all(client, range(1, 6), f"{topic}-i")
        assert subscription.get(0.3) is None, "nothing is shown that a power loss may take"
        client.set_topic(f"{topic}-i", {"wal.flush_interval": "10ms"})
        push_all(client, range(6, 7), f"{topic}-i")
        assert ids_of(take(subscription, 6)) == list(range(1, 7))
        assert sealed_counts(client, f"{topic}-i") == []


def test_a_transaction_comes_in_one_piece_and_in_its_turn(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic) as subscription:
        push_all(client, range(3), topic)
        with client.transaction("live") as transaction:
            for number in range(100, 110):
                transaction.push(numbers(number), topic=topic)
            push_all(client, range(3, 6), topic)
            assert ids_of(take(subscription, 6)) == list(range(6))
            assert subscription.get(0.1) is None, "staged bundles are invisible"
        push_all(client, range(6, 9), topic)
        found = take(subscription, 13)
        assert [place.bundle_id for place in found] == sorted(place.bundle_id for place in found)
        assert sorted(ids_of(found)) == [*range(6, 9), *range(100, 110)]


def test_what_is_unsubscribed_or_skipped(client: Client, topic: str) -> None:
    with client.subscribe("s", topic=topic) as subscription:
        push_all(client, range(10), topic)
        held = take(subscription, 4)
        held[0].ack().wait()
    assert client.unsubscribe("s", topic=topic) == 9
    with client.subscribe("late", topic=topic, start="earliest", gaps="deliver") as events:
        first = events.get(20)
        assert isinstance(first, Delivery)
        assert first_id(first) == 0
        report = client.seek("late", "latest", topic=topic)
        assert report.skipped == 10
        push_all(client, range(10, 11), topic)
        found: list[Delivery | GapNotice] = []
        while not (found and isinstance(found[-1], Delivery) and first_id(found[-1]) == 10):
            event = events.get(20)
            assert event is not None
            found.append(event)
        notices = [event for event in found if isinstance(event, GapNotice)]
        assert [(notice.bundle_index_first, notice.bundle_count, notice.reason) for notice in notices] == [
            (0, 10, "dropped")
        ]
    assert sealed_counts(client, topic) == []


def test_a_drain_seals_what_is_held_and_loses_nothing() -> None:
    with client_node(config=LIVE) as node:
        with node.connect() as client, client.subscribe("s", start="earliest") as subscription:
            push_all(client, range(20))
            held = take(subscription, 20)
            for delivery in held[::2]:
                delivery.ack()
            assert subscription.flush() == []
        node.process.stop()
        node.restart()
        with node.connect() as client, client.subscribe("s") as subscription:
            assert ids_of(take(subscription, 10)) == list(range(1, 20, 2))
            assert sealed_counts(client) == [20]


# --- damage ------------------------------------------------------------------------------------------------------------------------


def rot(node: ClientNode, topic: str, number: int) -> None:
    """Overwrite a bundle's values in the open log, under the running node."""
    values = numbers(number).column("id").buffers()[1].to_pybytes()[:24]
    (path,) = (node.directories.data / topic / "core_0" / "wal").glob("quiver.wal")
    at = path.read_bytes().find(values)
    assert at >= 0
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\x2a" * 8)


def test_what_rots_in_a_log_is_announced_and_stays_announced_after_the_seal(
    node: ClientNode, client: Client, topic: str
) -> None:
    with client.subscribe("early", topic=topic, gaps="deliver") as early:
        places = push_all(client, range(1000, 1010), topic)
        rot(node, topic, 1003)
        assert told(early, 10) == ([*range(1000, 1003), *range(1004, 1010)], [(3, 1, "damaged")])
        with pytest.raises((ChecksumMismatch, DataLost)):
            ids_read(client, topic=topic)
        push_all(client, range(1010, 1012), topic)
        with client.subscribe("late", topic=topic, start="earliest", gaps="deliver") as late:
            assert told(late, 12) == ([*range(1000, 1003), *range(1004, 1012)], [(3, 1, "damaged")])
        for name in ("idle", "keeper"):
            client.subscribe(name, topic=topic, start="earliest").close()
        client.flush(topic)
        assert told(early, 2) == ([1010, 1011], [])
        assert early.get(0.2) is None
        with client.subscribe("idle", topic=topic, gaps="deliver") as idle:
            assert told(idle, 12) == ([*range(1000, 1003), *range(1004, 1012)], [(3, 1, "damaged")])
        assert ids_read(client, places[4], topic=topic) == list(range(1004, 1012))
        with pytest.raises((ChecksumMismatch, DataLost)):
            ids_read(client, places[3], places[4], topic)


def told(events: GapSubscription, count: int) -> tuple[list[int], list[tuple[int, int | None, str]]]:
    """What came of so many bundles: those that could be read, and the notices."""
    seen: list[int] = []
    notices: list[tuple[int, int | None, str]] = []
    while len(seen) + len(notices) < count:
        event = events.get(30)
        if isinstance(event, GapNotice):
            notices.append((event.bundle_index_first, event.bundle_count, event.reason))
            continue
        assert event is not None, f"{seen} and {notices} of {count}"
        with contextlib.suppress(ChecksumMismatch), event:
            seen.append(first_id(event))
    return sorted(seen), notices
