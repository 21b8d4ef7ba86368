"""Arrow data in exactly the types that Spark takes, and Spark's data in the one form that a topic stores.

Spark maps each of its types to one Arrow type and accepts nothing else, nullability of every field included; it checks the first batch
only and misreads a later one. So every batch is conformed. Value buffers stay where they are wherever Spark's layout is the
same; only indexes, widths and units are rewritten.

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
import pyarrow.compute as pc
from pyarrow import types

from quiver_actors.errors import UnsupportedType

DECIMAL_DIGITS_MAX = 38

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
_LISTS = (
    types.is_list,
    types.is_large_list,
    types.is_fixed_size_list,
    types.is_list_view,
    types.is_large_list_view,
)


def spark_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The one schema, in Spark's types, that holds rows of all of these: the union of their columns in order of first sight, widest types.

    Raises:
        UnsupportedType: a type that Spark does not have, or two types of one column that no type holds.
    """
    mapped = [pa.schema([_nullable(field, spark_type(field.type)) for field in schema]) for schema in schemas]
    try:
        union = pa.unify_schemas(mapped, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise UnsupportedType(f"the stored schemas have no common one: {error}; read with .schema(...)") from error
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
    if types.is_decimal(source) and source.precision <= DECIMAL_DIGITS_MAX:
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
    if any(is_kind(source) for is_kind in _LISTS):
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


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The rows of `batch` in exactly the columns and types of `target`: by name, missing columns null, others dropped.

    Returns:
        The same batch where nothing differs; value buffers are shared wherever the layouts agree.

    Raises:
        UnsupportedType: a value does not fit, a null where `target` allows none, or two columns of one name.
    """
    if batch.schema.equals(target):
        return batch
    columns = [_column(batch, field) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target) if columns else batch.select([])


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    found = batch.schema.get_all_field_indices(field.name)
    if len(found) > 1:
        raise UnsupportedType(f"{len(found)} columns are called {field.name!r}: Spark cannot tell them apart")
    try:
        array = _cast(batch.column(found[0]), field.type) if found else pa.nulls(batch.num_rows, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnsupportedType(f"column {field.name!r} cannot be read as {field.type}: {error}") from error
    if not field.nullable and array.null_count:
        raise UnsupportedType(f"column {field.name!r} holds nulls, but the schema asked for says NOT NULL")
    return array


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if source == target:
        return array
    if isinstance(source, pa.BaseExtensionType):
        return _cast(array.storage, target)
    if types.is_dictionary(source):
        return _taken(array.dictionary, array.indices, target)
    if types.is_run_end_encoded(source):
        # Arrow decodes few types itself (pyarrow 26): not views, nor dictionaries.
        places = pa.RunEndEncodedArray.from_arrays(array.run_ends, pa.array(range(len(array.values)), pa.int64()))
        return _taken(array.values, pc.run_end_decode(places.slice(array.offset, len(array))), target)
    if types.is_struct(source) and types.is_struct(target):
        return _cast_struct(array, target)
    if types.is_map(source) and types.is_map(target):
        return _cast_map(array, target)
    if any(is_kind(source) for is_kind in _LISTS) and types.is_list(target):
        return _cast_list(array, target)
    return array.cast(target, safe=not _cuts_nanoseconds(source))


def _taken(values: pa.Array, places: pa.Array, target: pa.DataType) -> pa.Array:
    """Values by their places, in Spark's type first: Arrow takes nothing out of views and run-ends. One that nobody takes need not fit."""
    return _cast(_cast(values, spark_type(values.type)).take(places), target)


def _cuts_nanoseconds(source: pa.DataType) -> bool:
    return bool((types.is_timestamp(source) or types.is_duration(source)) and source.unit == "ns")


def _cast_struct(array: pa.StructArray, target: pa.StructType) -> pa.Array:
    children = []
    for field in target:
        index = array.type.get_field_index(field.name)
        children.append(_cast(array.field(index), field.type) if index >= 0 else pa.nulls(len(array), field.type))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _cast_list(array: pa.Array, target: pa.ListType) -> pa.Array:
    """Keeps offsets and validity, casts the values."""
    plain = _plain_list(array)
    values = _cast(plain.values, target.value_type)
    return pa.Array.from_buffers(target, len(plain), plain.buffers()[:2], offset=plain.offset, children=[values])


def _plain_list(array: pa.Array) -> pa.ListArray:
    if types.is_list(array.type):
        return array
    if not (types.is_list_view(array.type) or types.is_large_list_view(array.type)):
        return array.cast(pa.list_(array.type.value_type))
    # Arrow's own cast from a view leaves the last offset out (pyarrow 26): its result points outside its buffers.
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, pc.list_flatten(array), mask=array.is_null())


def _cast_map(array: pa.MapArray, target: pa.MapType) -> pa.Array:
    keys = _cast(array.keys, target.key_type)
    items = _cast(array.items, target.item_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    return pa.Array.from_buffers(target, len(array), array.buffers()[:2], offset=array.offset, children=[entries])
