"""The Arrow types that lake tables (Delta, Iceberg) store, and the rows of bundles in them. Pure.

| type in a bundle | type in the table |
|---|---|
| bool, signed integers, float32, float64, string, binary, date32 | the same |
| dictionary, run-end encoded, extension, view, large and fixed-size types | their values |
| uint8, uint16, uint32, uint64 | int16, int32, int64, decimal(20,0) |
| float16 | float32 |
| decimals of up to 38 digits | decimal128 |
| date64 | date32 |
| timestamps | microseconds; with a zone: UTC |
| times | microseconds, in tables that have times |
| lists, structs, maps | the same of these types |
| null | no column, until a bundle has values for it |

Every value stays what it was: one with nanoseconds is refused, and so are durations, intervals and whatever the table does not name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types

from quiver_actors.base.conform import conform
from quiver_actors.base.widening import AmbiguousColumns, SchemaConflict, ambiguous_columns, is_list, plain_type, widen
from quiver_actors.errors import UnsupportedType

_DECIMAL_DIGITS_MAX = 38
_LIST_FIELD = "element"
_NUMBERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64())
_SAME = frozenset((pa.bool_(), *_NUMBERS, pa.string(), pa.binary(), pa.date32()))
_OTHER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.date64(): pa.date32(),
}


def storable(schema: pa.Schema, *, has_times: bool) -> pa.Schema:
    """The schema under which a table stores rows of `schema`; every column may be null. Columns of nulls are left out.

    Raises:
        UnsupportedType: a column has a type that no table stores, or a name that another one has.
    """
    for name in ambiguous_columns(schema):
        raise AmbiguousColumns(
            f"several columns are called {name!r}, or fields of a struct in it: a table cannot tell them apart"
        )
    fields = []
    for field in schema:
        if types.is_null(field.type):
            continue
        try:
            fields.append(pa.field(field.name, _stored(plain_type(field.type), has_times)))
        except UnsupportedType as error:
            raise UnsupportedType(
                f"column {field.name!r} of type {field.type} has no type in the table: {error}"
            ) from None
    return pa.schema(fields)


def _stored(source: pa.DataType, has_times: bool) -> pa.DataType:
    if source in _SAME:
        return source
    if source in _OTHER:
        return _OTHER[source]
    if types.is_fixed_size_binary(source):
        return pa.binary()
    if types.is_timestamp(source):
        return pa.timestamp("us", "UTC" if source.tz else None)
    if types.is_decimal(source) and 0 <= source.scale <= source.precision <= _DECIMAL_DIGITS_MAX:
        return pa.decimal128(source.precision, source.scale)
    if types.is_time(source) and has_times:
        return pa.time64("us")
    return _nested(source, lambda each: _stored(each, has_times))


def _nested(source: pa.DataType, stored: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if types.is_struct(source) and source.num_fields:
        return pa.struct([pa.field(each.name, stored(each.type)) for each in source])
    if types.is_map(source):
        return pa.map_(stored(source.key_type), stored(source.item_type))
    if is_list(source):
        return pa.list_(pa.field(_LIST_FIELD, stored(source.value_type)))
    raise UnsupportedType(f"{source} is not one of the types that docs/delivery.md lists")


def evolved(
    table: pa.Schema, rows: pa.Schema, *, has_times: bool, promotes: Callable[[pa.DataType, pa.DataType], bool]
) -> pa.Schema:
    """The schema that the table must have to take such rows as well: columns are added, and widened as far as the table allows.

    Args:
        table, rows: both storable.
        promotes: whether a column of the table may change from one type to another.

    Raises:
        SchemaConflict: a column would have to become what the table does not allow.
    """
    wanted = storable(widen([table, rows], ("the table", "the bundle")), has_times=has_times)
    for field in table:
        type_wanted = wanted.field(field.name).type
        if type_wanted != field.type and not promotes(field.type, type_wanted):
            raise SchemaConflict(
                f"column {field.name!r} is {field.type} in the table, which cannot become the {type_wanted} that the bundle needs: "
                "write the table anew with that type, or have the forwarder drop such bundles (permanent=)"
            )
    return wanted


def stored_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows of a batch in the table's schema.

    Raises:
        UnsupportedType: a value does not fit: too large, finer than microseconds, or a null where the table has none.
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for leaf in _leaves(column):
            if types.is_timestamp(leaf.type) or types.is_time(leaf.type):
                _check_microseconds(name, leaf)
    return conform(batch, schema)


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    kind = array.type
    if types.is_dictionary(kind):
        return _leaves(array.dictionary)
    if types.is_run_end_encoded(kind):
        return _leaves(array.values)
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves(array.storage)
    if types.is_struct(kind):
        return itertools.chain.from_iterable(map(_leaves, array.flatten()))
    if types.is_map(kind):
        return itertools.chain(_leaves(array.keys), _leaves(array.items))
    return _leaves(array.flatten()) if is_list(kind) else iter((array,))


def _check_microseconds(name: str, leaf: pa.Array) -> None:
    if leaf.type.unit == "ns":
        target = pa.timestamp("us", leaf.type.tz) if types.is_timestamp(leaf.type) else pa.time64("us")
        try:
            leaf.cast(target)
        except pa.ArrowInvalid as error:
            raise UnsupportedType(
                f"column {name!r} holds values finer than microseconds, which the table has not: {error}"
            ) from None
