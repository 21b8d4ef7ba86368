"""A table of fields packs, unpacks, checks and restores the structure that it describes."""

from __future__ import annotations

import struct

import pytest

from quiver_actors.store.format.fields import Field, FieldTable, at_least, at_most, one_of, show

TABLE = FieldTable(
    "sample",
    Field("magic", "4s", constant=b"SMP\0"),
    Field("size", "H", constant=21, check=at_least(20)),
    Field("gap", "3x"),
    Field("number", "q"),
    Field("kind", "B", check=one_of(0, 1)),
    Field("count", "B", check=at_most(5)),
    Field("rest", "2x"),
)
DATA = b"SMP\0" + b"\x15\0" + bytes(3) + (-7).to_bytes(8, "little", signed=True) + b"\1\5" + bytes(2)


def test_fields_stand_back_to_back() -> None:
    assert TABLE.offsets == {"magic": 0, "size": 4, "gap": 6, "number": 9, "kind": 17, "count": 18, "rest": 19}
    assert TABLE.size == TABLE.struct.size == 21
    assert TABLE.magic == b"SMP\0"


def test_what_is_packed_is_unpacked() -> None:
    assert TABLE.pack(number=-7, kind=1, count=5) == DATA
    assert TABLE.unpack(b"in front" + DATA, 8) == {
        "magic": b"SMP\0",
        "size": 21,
        "number": -7,
        "kind": 1,
        "count": 5,
    }
    assert TABLE.pack(size=30, number=-7, kind=1, count=5)[4] == 30


def test_a_field_without_a_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        TABLE.pack(number=-7, kind=1)


def test_rows_are_read_one_behind_the_other_and_never_beyond_the_end() -> None:
    row = (b"SMP\0", 21, -7, 1, 5)
    assert TABLE.rows(b"." + DATA * 3, 1, 3) == [row] * 3
    with pytest.raises(struct.error):
        TABLE.rows(DATA * 3, 1, 3)


def test_constants_are_put_right_and_nothing_else() -> None:
    damaged = bytes(byte ^ 0xFF for byte in DATA)
    restored = TABLE.restored(damaged + b"behind")
    assert restored == DATA[:9] + damaged[9:19] + DATA[19:]
    assert TABLE.restored(damaged, "size") == damaged[:4] + DATA[4:6] + damaged[6:]


@pytest.mark.parametrize(
    ("name", "value", "wrong"),
    [
        ("magic", b"SMP\0", None),
        ("magic", b"SMQ\0", r"SMP\x00"),
        ("size", 19, "at least 20"),
        ("size", 22, None),
        ("gap", b"\0\1\0", "zeroes"),
        ("gap", bytes(3), None),
        ("number", 1 << 60, None),
        ("kind", 2, "0 or 1"),
        ("count", 6, "at most 5"),
    ],
)
def test_a_wrong_value_is_told_by_what_should_stand_there(name: str, value: int | bytes, wrong: str | None) -> None:
    (field,) = (field for field in TABLE.fields if field.name == name)
    assert field.wrong(value) == wrong


def test_values_are_shown_as_people_read_them() -> None:
    assert [show(5), show(b"ab\0"), show(bytes(4)), show(b"\xff\1")] == ["5", r"ab\x00", "zeroes", "ff01"]


def test_a_field_reads_its_bytes() -> None:
    fields = {field.name: field for field in TABLE.fields}
    assert fields["number"].read(DATA, 9) == -7
    assert fields["gap"].read(DATA, 6) == bytes(3)
