"""The types that Spark takes for what is stored, and the one form in which a topic stores what Spark hands over.

Spark maps each of its types to one Arrow type and accepts nothing else, nullability of every field included; it checks the first batch
only and misreads a later one. So every batch is conformed (`base.conform`). Several stored schemas become one by `base.widening` first.

| Arrow | Spark |
|---|---|
| bool, int8 to int64, float32, float64, string, binary, date32, null, struct, map | the same |
| uint8, uint16, uint32 | the next wider signed integer |
| uint64 | decimal(20,0) |
| float16 | float |
| decimal32, 64, 128, 256 up to 38 digits | decimal(p,s) |
| large and view strings and binaries, fixed-size binary | string, binary |
| date64 | date |
| timestamp of any unit, with a zone | timestamp: the same instant, microseconds |
| timestamp of any unit, without a zone | timestamp_ntz, microseconds |
| duration of any unit | day-time interval, microseconds |
| time32, time64 | time |
| list, large, view and fixed-size list | array |
| dictionary, run-end encoded, extension | the type of its values |

Nanoseconds are cut to microseconds, the finest that Spark has. No other cast loses anything: a value that does not fit is an error.
Refused: decimals over 38 digits, month-day-nano intervals, unions.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyarrow import types

from quiver_actors.base.widening import DECIMAL128_DIGITS_MAX, SchemaConflict, is_list, unambiguous, widen
from quiver_actors.errors import UnsupportedType

_SAME = (
    types.is_boolean,
    types.is_signed_integer,
    types.is_float32,
    types.is_float64,
    types.is_string,
    types.is_binary,
    types.is_date32,
    types.is_null,
)
_UNSIGNED = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}
_TEXT = (types.is_large_string, types.is_string_view)
_BYTES = (types.is_large_binary, types.is_binary_view, types.is_fixed_size_binary)


def spark_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The one schema, in Spark's types, that holds rows of all of these: the union of their columns in order of first sight, widest types.

    A column that bundles have several of has a type only where others have it once; reading it from those is an error.

    Raises:
        UnsupportedType: a type that Spark does not have, or two types of one column that no type holds.
    """
    try:
        union = widen(map(unambiguous, schemas))
    except SchemaConflict as error:
        raise SchemaConflict(f"the stored schemas have no common one: {error}; read with .schema(...)") from error
    return pa.schema([_nullable(field, spark_type(field.type)) for field in union])


def spark_type(source: pa.DataType) -> pa.DataType:
    """The Arrow type that Spark takes for values of `source` (the table above).

    Raises:
        UnsupportedType: there is none.
    """
    if any(is_kind(source) for is_kind in _SAME):
        return source
    if source in _UNSIGNED:
        return _UNSIGNED[source]
    if types.is_float16(source):
        return pa.float32()
    if types.is_decimal(source) and source.precision <= DECIMAL128_DIGITS_MAX:
        return pa.decimal128(source.precision, source.scale)
    if any(is_kind(source) for is_kind in _TEXT):
        return pa.string()
    if any(is_kind(source) for is_kind in _BYTES):
        return pa.binary()
    return _spark_time(source) or _spark_nested(source)


def _spark_time(source: pa.DataType) -> pa.DataType | None:
    if types.is_date64(source):
        return pa.date32()
    if types.is_timestamp(source):
        return pa.timestamp("us", tz="UTC" if source.tz is not None else None)
    if types.is_duration(source):
        return pa.duration("us")
    if types.is_time(source):
        return pa.time64("ns")
    return None


def _spark_nested(source: pa.DataType) -> pa.DataType:
    if is_list(source):
        return pa.list_(pa.field("element", spark_type(source.value_type)))
    if types.is_struct(source):
        return pa.struct([_nullable(field, spark_type(field.type)) for field in source])
    if types.is_map(source):
        key = pa.field("key", spark_type(source.key_type), nullable=False)
        return pa.map_(key, pa.field("value", spark_type(source.item_type)))
    if types.is_dictionary(source) or types.is_run_end_encoded(source):
        return spark_type(source.value_type)
    if isinstance(source, pa.BaseExtensionType):
        return spark_type(source.storage_type)
    raise UnsupportedType(f"Spark has no type for Arrow's {source}: cast the column before it is pushed")


def storable_schema(schema: pa.Schema) -> pa.Schema:
    """What a topic stores for a batch that Spark hands over: every field nullable, instants in UTC.

    Spark says `not null` where it happens to know and names the session's time zone, so the same table would have other schemas
    from job to job.
    """
    return pa.schema([_nullable(field, _storable(field.type)) for field in schema], metadata=schema.metadata)


def _storable(source: pa.DataType) -> pa.DataType:
    if types.is_timestamp(source) and source.tz is not None:
        return pa.timestamp(source.unit, tz="UTC")
    if types.is_list(source):
        return pa.list_(_nullable(source.value_field, _storable(source.value_type)))
    if types.is_struct(source):
        return pa.struct([_nullable(field, _storable(field.type)) for field in source])
    if types.is_map(source):
        key = source.key_field.with_type(_storable(source.key_type))
        return pa.map_(key, _nullable(source.item_field, _storable(source.item_type)))
    return source


def _nullable(field: pa.Field, type_: pa.DataType) -> pa.Field:
    return field.with_type(type_).with_nullable(True)
