"""Clients of another host, over real `quiver serve` processes with TLS and tokens: what arrives, what is told, and what survives whom."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

import quiver_actors
from quiver_actors.client import Client, GapNotice
from quiver_actors.errors import (
    AlreadyResolved,
    BundleTooLarge,
    InvalidBundle,
    NotClaimed,
    QuiverError,
    StorageFull,
    Throttled,
    UnknownSlot,
    UnknownTopic,
    UsageError,
)
from quiver_actors.flight.not_remote import NotRemote
from tests.integration.client_node import first_id, numbers
from tests.integration.remote.servers import DEADLINE_SECONDS, Served, stored


def test_a_client_with_tls_and_a_token_does_what_a_local_one_does(served: Served, local: Client) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bundle = {"flights": numbers(1), "weather": numbers(2, 2)}
    with quiver_actors.connect_remote(served.url, token="a secret", tls_roots=served.certificate) as client:
        with client.subscribe("exporter", topic="travel") as deliveries:
            receipt = client.push(bundle, topic="travel", item_count=5, trace_context=trace)
            delivery = deliveries.get(DEADLINE_SECONDS)
            assert delivery.bundle_id == receipt.bundle_id
            assert isinstance(delivery, quiver_actors.Delivery)
            assert (delivery.item_count, delivery.row_count, delivery.delivery_count) == (5, 5, 1)
            assert delivery.trace_context == {"traceparent": trace}
            (kept,) = local.read("travel", receipt.bundle_id.core)
            (far,) = client.read("travel", receipt.bundle_id.core)
            for each in (delivery, far):
                assert each["flights"].equals(bundle["flights"])
                assert each[7].equals(bundle["weather"])
                assert (each.incarnation, each.ingestion_unix_ns) == (kept.incarnation, kept.ingestion_unix_ns)
            assert client.sql("SELECT sum(id) AS s FROM travel.flights").read_all().to_pydict() == {"s": [6]}
            assert client.schema("travel", "flights") == local.schema("travel", "flights")
            assert client.topics() == local.topics()
            delivery.ack().wait()
            assert deliveries.all_drained()
            assert local.subscribers("travel")[receipt.bundle_id.core][0].pending == 0
        assert client.read("travel", receipt.bundle_id.core, slots=["weather"]).__next__().slot_ids == (7,)


def test_bundles_come_as_they_were_whatever_their_types(served: Served, local: Client) -> None:
    batches = [
        pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode(), "n": pa.array([None, 1, 2])}),
        pa.record_batch({"l": pa.array([[1], None, []]), "v": pa.array(["x" * 40, None, ""], pa.string_view())}),
        pa.record_batch({"e": pa.array([], pa.float64())}),
        pa.record_batch({"s": pa.array([{"a": 1}, None])}).slice(1),
        pa.record_batch(
            [pa.array([1])], schema=pa.schema([pa.field("m", pa.int64(), metadata={"k": "v"})], {"a": "b"})
        ),
    ]
    with served.connect() as client, client.subscribe("types") as deliveries:
        client.push_many(batches)
        for batch in batches:
            with deliveries.get(DEADLINE_SECONDS) as delivery:
                delivery.batch.validate(full=True)
                assert delivery.batch.equals(batch, check_metadata=True)


def test_large_bundles_and_many_of_them(served: Served, local: Client) -> None:
    large = pa.record_batch({"b": pa.array([b"x" * (1 << 20)] * 40)})
    with served.connect() as client, client.subscribe("large") as deliveries:
        receipts = client.push_many([large, *map(numbers, range(2000)), large])
        assert len(receipts) == 2002
        found = [deliveries.get(DEADLINE_SECONDS) for _ in receipts]
        assert [each.bundle_id for each in found] == [receipt.bundle_id for receipt in receipts]
        assert found[0].batch.equals(large)
        assert found[-1].batch.equals(large)
        assert [first_id(each) for each in found[1:-1]] == list(range(2000))


def test_what_cannot_be_pushed_is_told_as_at_home(served: Served, local: Client) -> None:
    cases: list[tuple[object, str, type[QuiverError]]] = [
        (numbers(1), "nowhere", UnknownTopic),
        (numbers(1), "travel", UnknownSlot),
        ({"nothing": numbers(1)}, "travel", UnknownSlot),
        (5, "default", InvalidBundle),
        ({}, "default", InvalidBundle),
    ]
    with served.connect() as client:
        for bundle, topic, kind in cases:
            for each in (client, local):
                with pytest.raises(kind):
                    each.push(bundle, topic=topic)
        huge = pa.record_batch({"n": pa.array(range(1 << 20))})
        with pytest.raises(BundleTooLarge):
            client.push(dict.fromkeys(range(40), huge))
        before = len(stored(local, "default"))
        with pytest.raises(InvalidBundle):
            client.push_many([numbers(1), numbers(2), 5])
        assert len(stored(local, "default")) == before + 2
        with pytest.raises(UsageError, match="producer and sequence"):
            client.push(numbers(1), producer="p")
        with pytest.raises(UsageError, match="600"):
            client.push(numbers(1), timeout=601)


def test_a_full_topic_refuses_over_there_as_at_home(served: Served, local: Client) -> None:
    block = pa.record_batch({"b": pa.array([os.urandom(100_000)])})
    with local.subscribe("keeper", topic="full", start="earliest"), served.connect() as client:
        refused: list[type[QuiverError]] = []
        for each in (local, client):
            with pytest.raises((Throttled, StorageFull)) as told:
                each.push_many([block] * 500, topic="full", timeout=5.0)
            refused.append(type(told.value))
            assert told.value.retriable
        assert refused[0] is refused[1]


def test_a_number_is_stored_once(served: Served, local: Client) -> None:
    with served.connect() as client:
        first = client.push_many([numbers(n) for n in range(3)], topic="other", producer="p", sequence=5)
        again = client.push_many([numbers(n) for n in range(4)], topic="other", producer="p", sequence=5)
        assert [receipt.duplicate for receipt in again] == [True, True, True, False]
        assert [receipt.bundle_id for receipt in again][:3] == [receipt.bundle_id for receipt in first]


def test_what_is_not_there_refuses_by_its_name_and_says_what_to_do(served: Served) -> None:
    instead = {
        "stage": "producer= and sequence=",
        "transaction": "producer= and sequence=",
        "create_topic": "quiver topics",
        "unsubscribe": "quiver subscribers",
        "hold": r"subscribe\(\)",
        "read_segment": r"read\(\)",
        "schemas": r"schema\(\)",
        "core_for": r"connect\(\) on the node's host",
    }
    with served.connect() as client, client.subscribe("names", order="newest") as deliveries:
        for name, what in instead.items():
            with pytest.raises(NotRemote, match=rf"no {name}\(\).*{what}"):
                getattr(client, name)
        with pytest.raises(NotRemote, match=r"close\(\)"):
            deliveries.abort()
        assert deliveries.order == "newest"
        assert not hasattr(client, "nothing_at_all")


def test_gap_notices_are_told_until_they_were_taken(served: Served, local: Client) -> None:
    with local.subscribe("gaps", topic="holes"):
        pass
    receipts = [local.push(numbers(n), topic="holes") for n in range(3)]
    local.seek("gaps", receipts[2].bundle_id, topic="holes")
    with served.connect() as client:
        seen: list[GapNotice] = []

        def fail(notice: GapNotice) -> None:
            seen.append(notice)
            raise LookupError

        with client.subscribe("gaps", topic="holes", on_gap=fail) as deliveries, pytest.raises(LookupError):
            deliveries.get(DEADLINE_SECONDS)
        with client.subscribe("gaps", topic="holes", gaps="deliver") as deliveries:
            notice = deliveries.get(DEADLINE_SECONDS)
            assert notice == seen[0]
            assert (notice.reason, notice.bundle_count, deliveries.gap_count) == ("dropped", 2, 1)
            assert first_id(deliveries.get(DEADLINE_SECONDS)) == 2
        with client.subscribe("gaps", topic="holes", gaps="deliver") as deliveries:
            assert first_id(deliveries.get(DEADLINE_SECONDS)) == 2


def test_leases_are_extended_and_end(served: Served) -> None:
    with served.connect() as client:
        with client.subscribe("long", lease=60.0) as deliveries:
            client.push_many([numbers(n) for n in range(3)])
            first, second, third = (deliveries.get(DEADLINE_SECONDS) for _ in range(3))
            assert first.lease_until_ns is not None
            before = first.lease_until_ns
            first.extend()
            assert first.lease_until_ns != before
            third.ack()
            assert deliveries.extend([first, second, third]) == [third]
            with pytest.raises(AlreadyResolved):
                third.extend()
        with client.subscribe("short", lease=0.5) as deliveries, client.subscribe("short", lease=0.5) as other:
            client.push(numbers(9))
            held = deliveries.get(0.1) or other.get(DEADLINE_SECONDS)
            again = None
            while again is None:
                again = deliveries.get(0.1) or other.get(0.1)
            assert again.bundle_id == held.bundle_id
            assert again.token > held.token
            again.ack().wait()
            with pytest.raises(NotClaimed):
                held.ack().wait()
