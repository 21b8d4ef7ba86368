"""Pushing to a real node, and reading back what was stored."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import Durability, Receipt
from quiver_actors.client import Client
from quiver_actors.errors import BundleTooLarge, QuiverError, UnknownTopic
from tests.integration.client_node import client_fixture, first_id, node_fixture, numbers, take

ONE_SLOT: dict[str, pa.RecordBatch] = {
    "no rows": numbers(0, 0),
    "no columns": pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([]))),
    "large": numbers(0, 300_000),
    "nested": pa.record_batch(
        {
            "s": pa.array(
                [{"a": 1, "b": [1.5, None]}, None], pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float32()))])
            ),
            "m": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
        }
    ),
    "not null, with metadata": pa.record_batch(
        [pa.array([1])],
        schema=pa.schema([pa.field("a", pa.int64(), nullable=False, metadata={"unit": "m"})], metadata={"k": "v"}),
    ),
    "dictionary": pa.record_batch({"w": pa.array(["a", "b", None, "a"]).dictionary_encode()}),
    "other dictionary": pa.record_batch({"w": pa.array(["z", "y"]).dictionary_encode()}),
    "nested dictionary": pa.record_batch(
        {"l": pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), pa.array(["p", "q", "p"]).dictionary_encode())}
    ),
    "large dictionary": pa.record_batch({"w": pa.array([f"word {n}" for n in range(40_000)]).dictionary_encode()}),
    "run-end encoded": pa.record_batch({"r": pa.RunEndEncodedArray.from_arrays([2, 5], ["a", "b"])}),
    "views": pa.record_batch({"v": pa.array(["a", "longer than twelve bytes"], pa.string_view())}),
    "decimal and time": pa.record_batch(
        {"d": pa.array([1, None], pa.decimal128(20, 2)), "t": pa.array([1, 2], pa.timestamp("us", tz="UTC"))}
    ),
    "slice": numbers(0, 100_000).slice(500, 10),
}


node = node_fixture(cores=2)
client = client_fixture()


def stored(client: Client, receipt: Receipt) -> Mapping[int, pa.RecordBatch]:
    """What the node has under a receipt's bundle id."""
    topic, core, segment_seq, bundle_index = receipt.bundle_id
    client.flush(topic)
    return client.read_segment(core, topic, segment_seq).bundle(bundle_index)


def check_equal(found: Mapping[int, pa.RecordBatch], pushed: Mapping[int, pa.RecordBatch]) -> None:
    assert found.keys() == pushed.keys()
    for slot_id, batch in pushed.items():
        found[slot_id].validate(full=True)
        assert found[slot_id].schema.equals(batch.schema, check_metadata=True)
        assert found[slot_id].equals(batch)


@pytest.mark.parametrize("batch", ONE_SLOT.values(), ids=ONE_SLOT.keys())
def test_what_is_pushed_is_what_is_stored(client: Client, batch: pa.RecordBatch) -> None:
    check_equal(stored(client, client.push(batch)), {0: batch})


def test_sixty_four_slots_and_absent_ones_are_stored(client: Client) -> None:
    bundles = [{slot_id: numbers(slot_id) for slot_id in range(64)}, {5: numbers(1), 63: numbers(2)}, {0: numbers(3)}]
    for bundle, receipt in zip(bundles, client.push_many(bundles, topic="other"), strict=True):
        check_equal(stored(client, receipt), bundle)


def test_schema_drift_is_stored_bundle_by_bundle(client: Client) -> None:
    drifting = [pa.record_batch({f"c{n % 7}": pa.array([n], pa.int64() if n % 2 else pa.int32())}) for n in range(50)]
    for batch, receipt in zip(drifting, client.push_many(drifting), strict=True):
        check_equal(stored(client, receipt), {0: batch})


def test_all_kinds_in_one_call_are_stored(client: Client) -> None:
    bundles = [{30: batch, 31: numbers(1)} for batch in ONE_SLOT.values()]
    for bundle, receipt in zip(bundles, client.push_many(bundles), strict=True):
        check_equal(stored(client, receipt), bundle)


def test_receipts_name_topic_core_place_and_durability(client: Client) -> None:
    receipts = client.push_many([{"flights": numbers(n)} for n in range(300)], topic="travel", key="one")
    assert len({receipt.bundle_id for receipt in receipts}) == 300
    assert {(receipt.bundle_id.topic, receipt.durability) for receipt in receipts} == {("travel", Durability.SYNCED)}
    assert len({receipt.bundle_id.core for receipt in receipts}) == 1
    sequences = [receipt.sequence for receipt in receipts]
    assert sequences == list(range(sequences[0], sequences[0] + 300))
    places = [receipt.bundle_id[2:] for receipt in receipts]
    assert places == sorted(places)


def test_segment_only_says_so_in_its_receipt(client: Client) -> None:
    assert client.push(numbers(1), topic="quick").durability is Durability.OPEN_SEGMENT


def test_keys_spread_over_the_workers(client: Client) -> None:
    cores = {client.push(numbers(1), key=str(n)).bundle_id.core for n in range(32)}
    assert cores == {0, 1}


def test_named_slots_and_tables_are_stored_under_their_ids(client: Client) -> None:
    flights = pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2]})])
    receipt = client.push({"flights": flights, "weather": numbers(9)}, topic="travel", item_count=2)
    check_equal(stored(client, receipt), {3: flights.combine_chunks().to_batches()[0], 7: numbers(9)})
    topic, core, segment_seq, bundle_index = receipt.bundle_id
    reader = client.read_segment(core, topic, segment_seq)
    assert (reader.item_count(bundle_index), reader.sequence(bundle_index)) == (2, receipt.sequence)


def test_two_hundred_megabytes_are_one_bundle(client: Client) -> None:
    large = pa.record_batch({"n": np.arange(25_000_000)})
    small = numbers(1)
    receipts = client.push_many([small, large, small])
    assert len(receipts) == 3
    check_equal(stored(client, receipts[1]), {0: large})
    check_equal(stored(client, receipts[2]), {0: small})


def test_bundle_over_the_limit_names_the_limit_and_the_client_goes_on(client: Client) -> None:
    column = pa.array(np.zeros(12 << 20, np.int64))
    with pytest.raises(BundleTooLarge, match="256 MiB"):
        client.push({slot: pa.record_batch({"a": column}) for slot in range(3)})
    client.push(numbers(1))


def test_segments_are_listed_by_core_and_read_without_a_subscriber(client: Client) -> None:
    receipts = [client.push(numbers(n), topic="other", key=str(n)) for n in range(20)]
    client.flush("other")
    listed = client.segments("other")
    assert listed.keys() == {0, 1}
    known = {(core, info.segment_seq): info for core, infos in listed.items() for info in infos}
    for receipt in receipts:
        _, core, segment_seq, bundle_index = receipt.bundle_id
        assert bundle_index < known[core, segment_seq].bundle_count
    for infos in listed.values():
        assert [info.segment_seq for info in infos] == sorted(info.segment_seq for info in infos)


def test_segment_that_is_not_there_is_an_error(client: Client) -> None:
    with pytest.raises(QuiverError, match="999"):
        client.read_segment(0, "default", 999)
    with pytest.raises(UnknownTopic):
        client.segments("nosuch")
    with pytest.raises(UnknownTopic):
        client.flush("nosuch")


def test_flush_of_an_empty_topic_returns(client: Client) -> None:
    client.flush("quick")
    client.flush("quick")


def test_topics_are_the_configured_ones(client: Client) -> None:
    topics = client.topics()
    assert topics.keys() == {"default", "travel", "other", "quick"}
    assert topics["travel"].slots == {"flights": 3, "weather": 7}
    assert topics["quick"].durability == "segment_only"


def test_four_forked_producers_share_nothing_but_the_node(client: Client) -> None:
    with client.subscribe("forks") as subscription:
        children = []
        for number in range(4):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    client.push_many([numbers(1000 * number + n) for n in range(150)])
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4
        client.push(numbers(9999))
        found = [first_id(delivery) for delivery in take(subscription, 601)]
    assert sorted(found) == sorted([1000 * number + n for number in range(4) for n in range(150)] + [9999])
