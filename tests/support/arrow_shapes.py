"""Seeded random Arrow batches over every type that an IPC stream can carry, as pyarrow can build them.

Nulls wherever the schema allows them, slices with offsets at every level, empty and repeated field names, metadata on schemas and
fields, extension types known to pyarrow and unknown ones (storage with metadata). No NaN: it equals nothing, itself included. Times
stay where `datetime` can show them.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from random import Random

import pyarrow as pa

_WORDS = ("", "a", "ash", "birch", "Ölbaum", "a word that is too long to be kept inside a view", "\0", "…")
_NAMES = ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "Größe", "a b", "", "x.y")

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
LEAVES: tuple[pa.DataType, ...] = (
    *INTEGERS,
    pa.null(),
    pa.bool_(),
    pa.float16(),
    pa.float32(),
    pa.float64(),
    pa.decimal32(7, 2),
    pa.decimal64(15, 0),
    pa.decimal128(30, 7),
    pa.decimal256(60, 9),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", tz="UTC"),
    pa.timestamp("ms", tz="Europe/Berlin"),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.month_day_nano_interval(),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
    pa.binary(3),
    pa.binary(0),
)
EXTENSIONS: tuple[pa.DataType, ...] = (
    pa.uuid(),
    pa.bool8(),
    pa.json_(pa.string()),
    pa.opaque(pa.int32(), "type", "vendor"),
    pa.fixed_shape_tensor(pa.int16(), [2, 2]),
)
_DICTIONARY_VALUES: tuple[pa.DataType, ...] = (
    pa.string(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.int64(),
    pa.uint8(),
    pa.float64(),
    pa.timestamp("us"),
    pa.decimal128(30, 7),
    pa.bool_(),
    pa.binary(3),
    pa.string_view(),
)
_UNIT_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_MS = 86_400_000


class ArrowShapes:
    """One source of random schemas and batches: the same seed gives the same ones."""

    def __init__(self, random: Random, depth_max: int = 3) -> None:
        self._random = random
        self._depth_max = depth_max

    # --- schemas ----------------------------------------------------------------------------------------------------------

    def schema(self, columns_max: int = 5) -> pa.Schema:
        count = self._random.choice((0, *range(1, columns_max + 1), *range(1, columns_max + 1)))
        return pa.schema(self._fields(count, 0), metadata=self._metadata(0.4))

    def _fields(self, count: int, depth: int) -> list[pa.Field]:
        if self._random.random() < 0.9:
            names = self._random.sample(_NAMES, count)
        else:
            names = self._random.choices(_NAMES[:3], k=count)
        return [self._field(name, depth) for name in names]

    def _field(self, name: str, depth: int) -> pa.Field:
        data_type = self.data_type(depth)
        # Neither can say of itself that it holds no nulls: arrow-rs looks for nulls in the children of a union.
        has_own_nulls = pa.types.is_null(data_type) or pa.types.is_union(data_type)
        nullable = has_own_nulls or self._random.random() < 0.7
        metadata = self._metadata(0.2)
        if self._random.random() < 0.1 and not isinstance(data_type, pa.BaseExtensionType):
            metadata = {"ARROW:extension:name": "tests.unknown", "ARROW:extension:metadata": "v1", **(metadata or {})}
        return pa.field(name, data_type, nullable=nullable, metadata=metadata)

    def _metadata(self, share: float) -> dict[str, str] | None:
        if self._random.random() >= share:
            return None
        return {self._random.choice(_WORDS): self._random.choice(_WORDS) for _ in range(self._random.randint(1, 3))}

    def data_type(self, depth: int = 0) -> pa.DataType:
        if depth >= self._depth_max or self._random.random() < 0.5:
            return self._random.choice(EXTENSIONS if self._random.random() < 0.08 else LEAVES)
        makers: tuple[Callable[[int], pa.DataType], ...] = (
            self._dictionary_type,
            self._dictionary_type,
            lambda d: pa.list_(self._field("item", d)),
            lambda d: pa.large_list(self._field("item", d)),
            lambda d: pa.list_(self._field("item", d), self._random.randint(0, 3)),
            lambda d: pa.list_view(self._field("item", d)),
            lambda d: pa.large_list_view(self._field("item", d)),
            lambda d: pa.struct(self._fields(self._random.randint(0, 3), d)),
            lambda d: pa.map_(pa.string(), self.data_type(d), keys_sorted=self._random.random() < 0.3),
            self._union_type,
            self._run_end_type,
        )
        return self._random.choice(makers)(depth + 1)

    def _dictionary_type(self, depth: int) -> pa.DataType:
        values = self._random.choice(_DICTIONARY_VALUES)
        if self._random.random() < 0.25:
            values = pa.struct(self._fields(2, depth)) if self._random.random() < 0.5 else pa.list_(pa.int16())
        return pa.dictionary(self._random.choice(INTEGERS), values, ordered=self._random.random() < 0.2)

    def _union_type(self, depth: int) -> pa.DataType:
        count = self._random.randint(1, 3)
        fields = [pa.field(f"{number}", self.data_type(depth)) for number in range(count)]
        codes = self._random.sample(range(8), count)
        make = self._random.choice((pa.sparse_union, pa.dense_union))
        return make(fields, type_codes=codes)

    def _run_end_type(self, depth: int) -> pa.DataType:
        values = self._random.choice((pa.string(), pa.int32(), pa.bool_(), pa.dictionary(pa.int8(), pa.string())))
        return pa.run_end_encoded(self._random.choice((pa.int16(), pa.int32(), pa.int64())), values)

    # --- values -----------------------------------------------------------------------------------------------------------

    def batch(self, schema: pa.Schema, rows: int | None = None) -> pa.RecordBatch:
        """A batch of that schema; a slice of a longer one now and then."""
        if rows is None:
            rows = self._random.choice((0, 1, 2, 5, 9, 70))
        if not len(schema):
            structs = pa.array([{}] * rows, pa.struct([]))
            return pa.RecordBatch.from_struct_array(structs).replace_schema_metadata(schema.metadata)
        lead, tail = self._around()
        columns = [self.array(field.type, lead + rows + tail, field.nullable) for field in schema]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return batch.slice(lead, rows) if lead or tail else batch

    def _around(self) -> tuple[int, int]:
        if self._random.random() < 0.6:
            return 0, 0
        return self._random.choice((0, 1, 3, 8, 13)), self._random.randint(0, 3)

    def array(self, data_type: pa.DataType, length: int, nullable: bool = True) -> pa.Array:
        lead, tail = self._around()
        whole = self._whole(data_type, lead + length + tail, nullable)
        return whole.slice(lead, length)

    def _whole(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        types = pa.types
        if isinstance(data_type, pa.BaseExtensionType):
            return pa.ExtensionArray.from_storage(data_type, self._whole(data_type.storage_type, length, nullable))
        if types.is_dictionary(data_type):
            return self._dictionary(data_type, length, nullable)
        if types.is_run_end_encoded(data_type):
            return self._run_ends(data_type, length, nullable)
        if types.is_union(data_type):
            return self._union(data_type, length)
        if types.is_struct(data_type):
            return self._struct(data_type, length, nullable)
        if types.is_map(data_type):
            return self._map(data_type, length, nullable)
        if types.is_fixed_size_list(data_type):
            return self._fixed_size_list(data_type, length, nullable)
        if types.is_list_view(data_type) or types.is_large_list_view(data_type):
            return self._list_view(data_type, length, nullable)
        if types.is_list(data_type) or types.is_large_list(data_type):
            return self._list(data_type, length, nullable)
        return self._leaves(data_type, length, nullable)

    def _mask(self, length: int, nullable: bool) -> pa.Array | None:
        """True where null."""
        share = self._random.choice((0.0, 0.3, 1.0)) if nullable else 0.0
        if not share:
            return None
        return pa.array([self._random.random() < share for _ in range(length)], pa.bool_())

    def _leaves(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        if pa.types.is_null(data_type):
            return pa.nulls(length)
        mask = self._mask(length, nullable)
        nulls = mask.to_pylist() if mask is not None else [False] * length
        return pa.array([None if null else self._value(data_type) for null in nulls], data_type)

    def _value(self, data_type: pa.DataType) -> object:
        types, random = pa.types, self._random
        if types.is_boolean(data_type):
            return random.random() < 0.5
        if types.is_integer(data_type):
            bits = data_type.bit_width
            low = -(1 << bits - 1) if types.is_signed_integer(data_type) else 0
            return random.choice((0, 1, low, low + (1 << bits) - 1, random.randrange(1 << bits) + low))
        if types.is_floating(data_type):
            return random.choice((0.0, -0.0, float("inf"), random.randint(-2000, 2000) / 8))
        if types.is_decimal(data_type):
            digits = random.randrange(1, data_type.precision + 1)
            unscaled = random.choice((-1, 1)) * random.randrange(10**digits)
            return decimal.Decimal(unscaled).scaleb(-data_type.scale, decimal.Context(prec=80))
        if types.is_temporal(data_type):
            return self._time(data_type)
        word = random.choice(_WORDS) * random.choice((0, 1, 1, 2))
        if types.is_fixed_size_binary(data_type):
            return random.randbytes(data_type.byte_width)
        is_text = types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
        return word if is_text else word.encode() + random.randbytes(random.randrange(3))

    def _time(self, data_type: pa.DataType) -> object:
        types, random = pa.types, self._random
        if types.is_interval(data_type):
            return pa.MonthDayNano(
                [random.randint(-99, 99), random.randint(-99, 99), random.randint(-(10**12), 10**12)]
            )
        if types.is_date(data_type):
            days = random.randint(-40_000, 40_000)
            return days * _DAY_MS if types.is_date64(data_type) else days
        per_second = _UNIT_PER_SECOND[data_type.unit]
        step = 1000 if data_type.unit == "ns" else 1
        if types.is_time(data_type):
            return random.randrange(0, 86_400 * per_second, step)
        return random.randrange(-(10**9) * per_second, 4 * 10**9 * per_second, step)

    def _lengths(self, count: int) -> list[int]:
        return [self._random.choice((0, 1, 1, 2, 3)) for _ in range(count)]

    def _list(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        is_large = pa.types.is_large_list(data_type)
        offsets = _offsets(self._lengths(length), pa.int64() if is_large else pa.int32())
        values = self.array(data_type.value_type, offsets[-1].as_py(), data_type.value_field.nullable)
        make = pa.LargeListArray if is_large else pa.ListArray
        return make.from_arrays(offsets, values, type=data_type, mask=self._mask(length, nullable))

    def _list_view(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        is_large = pa.types.is_large_list_view(data_type)
        index = pa.int64() if is_large else pa.int32()
        values = self.array(data_type.value_type, 3 + length, data_type.value_field.nullable)
        starts = [self._random.randrange(length + 1) for _ in range(length)]
        sizes = [self._random.randint(0, 3) for _ in range(length)]
        make = pa.LargeListViewArray if is_large else pa.ListViewArray
        mask = self._mask(length, nullable)
        return make.from_arrays(pa.array(starts, index), pa.array(sizes, index), values, type=data_type, mask=mask)

    def _fixed_size_list(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        size = data_type.list_size
        if size == 0:
            # Its length cannot be told from its values.
            mask = self._mask(length, nullable)
            nulls = mask.to_pylist() if mask is not None else [False] * length
            validity = pa.array([not null for null in nulls]).buffers()[1] if any(nulls) else None
            child = self.array(data_type.value_type, 0, data_type.value_field.nullable)
            return pa.Array.from_buffers(data_type, length, [validity], children=[child])
        values = self.array(data_type.value_type, size * length, data_type.value_field.nullable)
        return pa.FixedSizeListArray.from_arrays(values, type=data_type, mask=self._mask(length, nullable))

    def _map(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        offsets = _offsets(self._lengths(length), pa.int32())
        entries = offsets[-1].as_py()
        keys = self.array(data_type.key_type, entries, nullable=False)
        items = self.array(data_type.item_type, entries)
        mask = self._mask(length, nullable)
        return pa.MapArray.from_arrays(offsets, keys, items, type=data_type, mask=mask)

    def _struct(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        mask = self._mask(length, nullable)
        fields = list(data_type)
        if not fields:
            nulls = mask.to_pylist() if mask is not None else [False] * length
            return pa.array([None if null else {} for null in nulls], data_type)
        children = [self.array(field.type, length, field.nullable) for field in fields]
        return pa.StructArray.from_arrays(children, fields=fields, mask=mask)

    def _union(self, data_type: pa.DataType, length: int) -> pa.Array:
        codes, names = data_type.type_codes, [field.name for field in data_type]
        chosen = [self._random.randrange(len(codes)) for _ in range(length)]
        types = pa.array([codes[child] for child in chosen], pa.int8())
        if data_type.mode == "sparse":
            children = [self.array(field.type, length) for field in data_type]
            return pa.UnionArray.from_sparse(types, children, names, codes)
        counts = [0] * len(codes)
        offsets = []
        for child in chosen:
            offsets.append(counts[child])
            counts[child] += 1
        children = [self.array(field.type, count) for field, count in zip(data_type, counts, strict=True)]
        return pa.UnionArray.from_dense(types, pa.array(offsets, pa.int32()), children, names, codes)

    def _dictionary(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        values = self.array(data_type.value_type, self._random.randint(1, 6), nullable=nullable)
        mask = self._mask(length, nullable)
        nulls = mask.to_pylist() if mask is not None else [False] * length
        indices = [None if null else self._random.randrange(len(values)) for null in nulls]
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, data_type.index_type), values, ordered=data_type.ordered
        )

    def _run_ends(self, data_type: pa.DataType, length: int, nullable: bool) -> pa.Array:
        ends: list[int] = []
        while (end := ends[-1] if ends else 0) < length:
            ends.append(min(length, end + self._random.randint(1, 4)))
        values = self.array(data_type.value_type, len(ends), nullable)
        return pa.RunEndEncodedArray.from_arrays(pa.array(ends, data_type.run_end_type), values, type=data_type)


def _offsets(lengths: Sequence[int], data_type: pa.DataType) -> pa.Array:
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    return pa.array(offsets, data_type)
