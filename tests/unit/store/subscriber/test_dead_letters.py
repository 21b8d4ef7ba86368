"""A dead letter says where it comes from, and turns back into the very bundle."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver_actors.base.model import ENVELOPE_SLOT
from quiver_actors.store.subscriber.dead_letters import COLUMNS, Origin, envelope_of, origin_of, restored

ORIGIN = Origin("orders", 3, 1 << 40, 65_534, "exporter", 5, ingestion_ts_nanos=123)
FULL = pa.schema([pa.field("trace", pa.string()), pa.field("trace", pa.int8())], {"who": "producer"})

ENVELOPES = {
    "none": None,
    "one row": pa.record_batch({"key": ["a"]}),
    "many rows": pa.record_batch({"key": ["a", None, "c"], "n": [1, 2, 3]}),
    "one name twice, with metadata": pa.record_batch([["x", "y"], pa.array([1, 2], pa.int8())], schema=FULL),
}


def letter(envelope: pa.RecordBatch | None, origin: Origin = ORIGIN) -> dict[int, pa.RecordBatch]:
    return {0: pa.record_batch({"x": [1, 2]}), ENVELOPE_SLOT: envelope_of(origin, envelope)}


@pytest.mark.parametrize("envelope", ENVELOPES.values(), ids=ENVELOPES.keys())
def test_letter_turns_back_into_its_bundle(envelope: pa.RecordBatch | None) -> None:
    found = letter(envelope)
    assert origin_of(found) == ORIGIN
    expected = {0: found[0]} if envelope is None else {0: found[0], ENVELOPE_SLOT: envelope}
    back = restored(found)
    assert back.keys() == expected.keys()
    assert all(back[slot].equals(batch, check_metadata=True) for slot, batch in expected.items())


def test_letter_of_a_letter_names_its_own_origin_only() -> None:
    again = Origin("orders-dead", 0, 1, 2, "undertaker", 1)
    found = letter(letter(ENVELOPES["many rows"])[ENVELOPE_SLOT], again)
    assert origin_of(found) == again
    assert restored(found)[ENVELOPE_SLOT].equals(ENVELOPES["many rows"])


def test_envelope_without_rows_has_nothing_to_keep() -> None:
    found = letter(pa.record_batch({"key": pa.array([], pa.string())}))
    assert origin_of(found) == ORIGIN
    assert list(restored(found)) == [0]


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        pa.record_batch({"key": ["a"]}),
        pa.record_batch([pa.array([], field.type) for field in COLUMNS], schema=COLUMNS),
        pa.record_batch({field.name: ["text"] for field in COLUMNS}),
        pa.record_batch([pa.array([None], field.type) for field in COLUMNS], names=COLUMNS.names),
        envelope_of(ORIGIN, None).drop_columns(["dead_letter.core"]),
    ],
)
def test_what_does_not_say_where_it_comes_from_is_no_letter(envelope: pa.RecordBatch | None) -> None:
    slots = {0: pa.record_batch({"x": [1]})}
    assert origin_of(slots if envelope is None else {**slots, ENVELOPE_SLOT: envelope}) is None
