from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.base.protocol.messages import TopicInfo
from quiver_actors.client.slots import TopicSlots
from quiver_actors.errors import InvalidBundle, UnknownSlot
from quiver_actors.store.staged.keys import with_key

BATCH = pa.record_batch({"a": [1, 2]})
TABLE = pa.table({"a": [1, 2]})


def topic(**slots: int) -> TopicSlots:
    return TopicSlots(TopicInfo("travel", slots, "wal", 0))


def test_batch_alone_goes_to_slot_zero_of_an_undeclared_topic() -> None:
    assert topic().batches_of(BATCH) == [(0, BATCH)]


def test_batch_alone_goes_to_the_only_declared_slot() -> None:
    assert topic(flights=5).batches_of(BATCH)[0][0] == 5


def test_batch_alone_is_refused_where_the_slot_is_not_clear() -> None:
    """A batch alone went to slot 0 of a topic of two slots, whatever it held."""
    for slots in ({"flights": 4, "weather": 5}, {"flights": 0, "weather": 1}):
        for alone in (BATCH, TABLE):
            with pytest.raises(UnknownSlot, match=r"has the slots flights, weather, .*push \{'flights': batch\}"):
                topic(**slots).batches_of(alone)


@pytest.mark.parametrize("column", [[1, 2], (1, 2), np.array([1, 2]), pa.array([1, 2]), pa.chunked_array([[1, 2]])])
def test_a_mapping_of_columns_is_answered_with_what_to_write(column: Any) -> None:
    with pytest.raises(InvalidBundle, match=r"write pa\.record_batch\(\{'a': \.\.\.\}\)"):
        topic(flights=3).batches_of({"a": column})


def test_mapping_by_name_and_id_comes_out_in_slot_order() -> None:
    found = topic(weather=7, flights=3).batches_of({7: BATCH, "flights": TABLE})
    assert [slot_id for slot_id, _ in found] == [3, 7]
    assert all(isinstance(batch, pa.RecordBatch) for _, batch in found)


def test_otap_names_are_known_without_a_slot_table() -> None:
    assert topic().batches_of({"log_attrs": BATCH, "logs": BATCH}) == [(30, BATCH), (31, BATCH)]


def test_two_keys_for_one_slot_are_refused() -> None:
    with pytest.raises(InvalidBundle, match="slot 3 twice"):
        topic(flights=3).batches_of({"flights": BATCH, 3: BATCH})


@pytest.mark.parametrize("slot", ["nosuch", 64, -1, True, 2.5])
def test_unknown_slots_are_refused(slot: Any) -> None:
    with pytest.raises(UnknownSlot):
        topic().batches_of({slot: BATCH})


def test_undeclared_id_of_a_declared_topic_is_refused() -> None:
    with pytest.raises(UnknownSlot, match="not in the topic's slot table"):
        topic(flights=3).batches_of({4: BATCH})


@pytest.mark.parametrize("bundle", [{}, {"logs": None}, {"logs": [1, 2]}, None, 3, [BATCH], "logs"])
def test_what_is_no_bundle_is_refused(bundle: Any) -> None:
    with pytest.raises(InvalidBundle):
        topic().batches_of(bundle)


def test_empty_mapping_says_that_a_slot_is_needed() -> None:
    with pytest.raises(InvalidBundle, match="at least one slot"):
        topic().batches_of({})


def test_chunked_table_becomes_one_batch() -> None:
    table = pa.concat_tables([TABLE, pa.table({"a": [3]}), TABLE])
    ((_, batch),) = topic().batches_of(table)
    assert batch.to_pydict() == {"a": [1, 2, 3, 1, 2]}


def test_chunks_with_different_dictionaries_become_one_batch() -> None:
    parts = [pa.table({"w": pa.array(words).dictionary_encode()}) for words in (["a", "b"], ["c", "a"])]
    ((_, batch),) = topic().batches_of(pa.concat_tables(parts))
    assert batch.column(0).to_pylist() == ["a", "b", "c", "a"]


def test_table_of_one_chunk_is_not_copied() -> None:
    ((_, batch),) = topic().batches_of(TABLE)
    assert batch.column(0).buffers()[1].address == TABLE.column(0).chunk(0).buffers()[1].address


@pytest.mark.parametrize(
    "table", [TABLE.slice(0, 0), pa.schema([("a", pa.string())], metadata={"k": "v"}).empty_table()]
)
def test_table_without_rows_keeps_its_schema(table: pa.Table) -> None:
    ((_, batch),) = topic().batches_of(table)
    assert batch.num_rows == 0
    assert batch.schema.equals(table.schema, check_metadata=True)


def test_table_without_columns_or_rows_is_a_bundle() -> None:
    ((_, batch),) = topic().batches_of(pa.table({}))
    assert (batch.num_rows, batch.num_columns) == (0, 0)


def test_a_bundle_that_is_handed_on_leaves_the_key_of_its_idempotent_push_behind() -> None:
    own = pa.record_batch({"note": ["mine"]})
    assert topic().batches_of({0: BATCH, ENVELOPE_SLOT: with_key(own, "p", 7)}) == [(0, BATCH), (ENVELOPE_SLOT, own)]
    assert topic().batches_of({0: BATCH, ENVELOPE_SLOT: with_key(None, "p", 7)}) == [(0, BATCH)]
