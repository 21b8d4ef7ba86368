"""One record batch for each thing that must come back as it was pushed."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence

import pyarrow as pa


def dictionary(
    values: Sequence[object], indices: Sequence[int | None], key: pa.DataType | None = None
) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, key or pa.int32()), pa.array(values))


def one_column(array: pa.Array, *, nullable: bool = True) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([array], schema=pa.schema([pa.field("c", array.type, nullable=nullable)]))


def plain(rows: int = 5, start: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "id": pa.array(range(start, start + rows), pa.int64()),
            "ratio": pa.array([n / 7 for n in range(rows)], pa.float64()),
            "text": pa.array([None if n % 4 == 3 else f"text-{start + n}" for n in range(rows)], pa.string()),
        }
    )


def scalars() -> pa.RecordBatch:
    day = datetime.date(2024, 2, 29)
    columns: dict[str, pa.Array] = {
        "null": pa.nulls(3),
        "bool": pa.array([True, None, False]),
        "half": pa.array([1.5, None, -2.25], pa.float16()),
        "decimal128": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-9.99")], pa.decimal128(9, 2)),
        "decimal256": pa.array([decimal.Decimal(10) ** 40, None, decimal.Decimal(-1)], pa.decimal256(50, 0)),
        "date32": pa.array([day, None, day]),
        "time64": pa.array([1, None, 3], pa.time64("ns")),
        "timestamp": pa.array([1, None, 2**60], pa.timestamp("ns", tz="Europe/Berlin")),
        "duration": pa.array([1, None, 3], pa.duration("us")),
        "interval": pa.array([pa.MonthDayNano([1, -15, 30]), None, pa.MonthDayNano([0, 0, 1])]),
        "binary": pa.array([b"\0\xff", None, b""]),
        "large": pa.array(["a", None, "ß€"], pa.large_string()),
        "fixed": pa.array([b"abc", None, b"\0\0\0"], pa.binary(3)),
    }
    integers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    columns |= {str(kind): pa.array([0, None, 2 ** (kind.bit_width - 1) - 1], kind) for kind in integers}
    return pa.record_batch(columns)


def nested() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "list": pa.array([[1, 2], None, [], [None]], pa.list_(pa.int32())),
            "large_list": pa.array([["a"], None, [], [None]], pa.large_list(pa.string())),
            "fixed_list": pa.array([[1, 2], None, [3, 4], [5, None]], pa.list_(pa.int8(), 2)),
            "struct": pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}, {"x": 2, "y": []}]),
            "map": pa.array([[("k", 1)], None, [], [("a", None), ("b", 2)]], pa.map_(pa.string(), pa.int64())),
            "deep": pa.array([[{"m": [[1], []]}], None, [], [None]]),
        }
    )


def unions() -> pa.RecordBatch:
    types = pa.array([0, 1, 0], pa.int8())
    children = [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
    dense = pa.UnionArray.from_dense(types, pa.array([0, 0, 1], pa.int32()), children)
    return pa.record_batch({"sparse": pa.UnionArray.from_sparse(types, children), "dense": dense})


def views() -> pa.RecordBatch:
    long = "long enough to be kept out of line " * 3
    return pa.record_batch(
        {
            "string_view": pa.array(["short", None, long], pa.string_view()),
            "binary_view": pa.array([b"short", None, long.encode()], pa.binary_view()),
            "list_view": pa.array([[1, 2], None, [3]], pa.list_view(pa.int32())),
            "large_list_view": pa.array([["a"], None, []], pa.large_list_view(pa.string())),
        }
    )


def run_end_encoded() -> pa.RecordBatch:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([3, 5], pa.int32()), pa.array(["a", None]))
    return one_column(runs)


def run_end_encoded_dictionary() -> pa.RecordBatch:
    return one_column(pa.RunEndEncodedArray.from_arrays(pa.array([3, 5], pa.int16()), dictionary(["a", "b"], [1, 0])))


def extensions() -> pa.RecordBatch:
    uuids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(range(16)), None], pa.binary(16)))
    tensors = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2]), pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    )
    return pa.record_batch({"uuid": uuids, "tensor": tensors})


def metadata() -> pa.RecordBatch:
    fields = [
        pa.field("a", pa.int32(), nullable=False, metadata={"unit": "ms", "empty": ""}),
        pa.field("s", pa.struct([pa.field("x", pa.int8(), nullable=False, metadata={b"\xff": b"\0"})]), nullable=False),
    ]
    schema = pa.schema(fields, metadata={"owner": "tests", "": "no key", "again": "ü"})
    return pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int32()), pa.array([{"x": 1}, {"x": 2}], fields[1].type)], schema=schema
    )


def same_names() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"]), pa.array([2.0])], names=["a", "a", ""])


def no_columns() -> pa.RecordBatch:
    return pa.record_batch([], schema=pa.schema([]))


def no_columns_with_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_struct_array(pa.array([{}, {}, {}], pa.struct([])))


def no_rows() -> pa.RecordBatch:
    return plain().slice(0, 0)


def no_rows_dictionary() -> pa.RecordBatch:
    return one_column(dictionary(["a"], [0])).slice(0, 0)


def sliced() -> pa.RecordBatch:
    return pa.record_batch({**dict(zip(nested().schema.names, nested().columns, strict=True))}).slice(1, 2)


def sliced_dictionary() -> pa.RecordBatch:
    return one_column(dictionary(["a", "b", "c"], [2, 1, None, 0], pa.uint8())).slice(1, 2)


def dictionary_keys() -> pa.RecordBatch:
    keys = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
    return pa.record_batch({str(key): dictionary(["x", None, "z"], [0, 1, None, 2], key) for key in keys})


def dictionary_values() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "ints": dictionary([5, 6], [1, 0]),
            "floats": dictionary([0.5, -0.0], [1, 0]),
            "structs": dictionary([{"x": 1}, {"x": None}], [1, 0]),
            "lists": dictionary([[1], []], [1, 0]),
            "ordered": pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(["lo", "hi"]), ordered=True),
        }
    )


def nested_dictionaries() -> pa.RecordBatch:
    inner = dictionary(["a", "b"], [0, 1, None, 1], pa.int8())
    keys = pa.array(["k", "l", "m", "n"])
    return pa.record_batch(
        {
            "struct": pa.StructArray.from_arrays([inner, keys], names=["d", "k"]),
            "list": pa.ListArray.from_arrays([0, 1, 1, 4, 4], dictionary(["p", "q"], [1, 0, 1, 0])),
            "map": pa.MapArray.from_arrays([0, 2, 2, 4, 4], keys, dictionary(["r"], [0, None, 0, 0])),
            "in_dictionary": pa.DictionaryArray.from_arrays(
                pa.array([2, 1, 0, 3], pa.int8()), pa.StructArray.from_arrays([inner], names=["d"])
            ),
            "in_union": pa.UnionArray.from_sparse(pa.array([0, 0, 0, 0], pa.int8()), [dictionary(["u"], [0, 0, 0, 0])]),
            "in_view": pa.ListViewArray.from_arrays([0, 0, 1, 1], [1, 0, 1, 1], dictionary(["v", "w"], [1, 0])),
        }
    )


def large() -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(range(300_000), pa.int64()), "t": pa.array(["t" * (n % 9) for n in range(300_000)])}
    )


EVERY: list[Callable[[], pa.RecordBatch]] = [
    plain,
    scalars,
    nested,
    unions,
    views,
    run_end_encoded,
    run_end_encoded_dictionary,
    extensions,
    metadata,
    same_names,
    no_columns,
    no_columns_with_rows,
    no_rows,
    no_rows_dictionary,
    sliced,
    sliced_dictionary,
    dictionary_keys,
    dictionary_values,
    nested_dictionaries,
    large,
]
