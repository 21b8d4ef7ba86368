"""Whether a segment of another writer holds the entries of a log: told by values, and in doubt it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from quiver_actors.store.recovery.same_bundles import same_bundles
from tests.disks.simulated import SimDisk
from tests.support.engine_driver import numbered_batch
from tests.support.other_writer import SLOT_HEADER, WAL_HEADER, Bundle, OtherWriter, entries_of, segment_bytes


def bodies(*bundles: Bundle) -> Iterator[bytes]:
    """Return the bodies of a log's entries."""
    disk = SimDisk()
    other = OtherWriter(disk, "core_0")
    for bundle in bundles:
        other.append(bundle)
    log = disk.contents()["core_0/wal/quiver.wal"]
    return iter([log[start + 4 : end - 4] for start, end in entries_of(log, WAL_HEADER.size)[0]])


def numbered(*numbers: int) -> list[Bundle]:
    return [{0: numbered_batch(number)} for number in numbers]


def column(values: pa.Array, name: str = "v") -> Bundle:
    return {0: pa.RecordBatch.from_arrays([values], names=[name])}


@pytest.mark.parametrize(
    ("sealed", "logged", "found"),
    [
        ([1, 2], [1, 2], (2, True)),
        ([1, 2], [1, 2, 3], (2, True)),
        ([1, 2, 3], [1, 2], (2, False)),
        ([1, 9, 3], [1, 2, 3], (1, False)),
        ([9], [1], (0, False)),
        ([1], [], (0, False)),
        ([], [1], (0, False)),
    ],
)
def test_bundles_are_counted_up_to_the_first_that_differs(
    sealed: list[int], logged: list[int], found: tuple[int, bool]
) -> None:
    assert same_bundles(segment_bytes(numbered(*sealed)), bodies(*numbered(*logged))) == found


def test_a_segment_that_cannot_be_read_holds_nothing() -> None:
    whole = segment_bytes(numbered(1))
    assert same_bundles(whole[:100], bodies(*numbered(1))) == (0, False)


def test_an_entry_that_cannot_be_decoded_is_in_no_segment() -> None:
    (body,) = bodies(*numbered(1))
    payload_start = 25 + SLOT_HEADER.size
    cut = body[:payload_start] + bytes(len(body) - payload_start)
    whole = segment_bytes(numbered(1))
    assert same_bundles(whole, iter([body])) == (1, True)
    assert same_bundles(whole, iter([cut])) == (0, False)


NAN, OTHER_NAN = (pa.array([bits], pa.uint64()).view(pa.float64()) for bits in (0x7FF8 << 48, 0x7FF9 << 48))
WITH_NAN = pa.StructArray.from_arrays([NAN, pa.array(["a"])], names=["x", "y"])
NO_VALUE = pa.array([None], WITH_NAN.type)
NONE_INSIDE = pa.array([{"x": None, "y": None}], WITH_NAN.type)
WORDS = pa.array(["a", "b", "a"])
SAME = {
    "not a number": (NAN, NAN),
    "not a number, half": (NAN.cast(pa.float16()), NAN.cast(pa.float16())),
    "not a number in a struct": (WITH_NAN, WITH_NAN),
    "no struct": (NO_VALUE, NO_VALUE),
    "dictionary that was resolved": (WORDS, WORDS.dictionary_encode()),
    "dictionary that was widened": (
        pa.DictionaryArray.from_arrays(pa.array([1, 2, 1], pa.int32()), pa.array(["z", "a", "b"])),
        WORDS.dictionary_encode(),
    ),
}
DIFFERENT = {
    "value": (pa.array([1]), pa.array([2])),
    "type": (pa.array([1], pa.int64()), pa.array([1], pa.int32())),
    "rows": (pa.array([1]), pa.array([1, 1])),
    "sign of zero": (pa.array([0.0]), pa.array([-0.0])),
    "bits of what is not a number": (NAN, OTHER_NAN),
    "null for a number": (NAN, pa.array([None], pa.float64())),
    "struct that is null": (NO_VALUE, NONE_INSIDE),
    "value in a struct": (pa.array([{"x": 1}]), pa.array([{"x": 2}])),
    "entry of a dictionary": (WORDS.dictionary_encode(), pa.array(["a", "b", "b"]).dictionary_encode()),
}


@pytest.mark.parametrize("name", SAME)
def test_equal_values_are_the_same_bundle(name: str) -> None:
    one, other = SAME[name]
    assert same_bundles(segment_bytes([column(one)]), bodies(column(other))) == (1, True)


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_value_is_another_bundle(name: str) -> None:
    one, other = DIFFERENT[name]
    assert same_bundles(segment_bytes([column(one)]), bodies(column(other))) == (0, False)
    assert same_bundles(segment_bytes([column(other)]), bodies(column(one))) == (0, False)


def test_other_columns_and_other_slots_are_another_bundle() -> None:
    values = pa.array([1])
    segment = segment_bytes([column(values)])
    assert same_bundles(segment, bodies(column(values, "w"))) == (0, False)
    assert same_bundles(segment, bodies({1: column(values)[0]})) == (0, False)
    assert same_bundles(segment, bodies({**column(values), 1: column(values)[0]})) == (0, False)
