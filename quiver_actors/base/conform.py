"""Batches in exactly the columns and types of a wanted schema, without a copy of values wherever the layouts agree.

Only indexes, widths and units are rewritten. No cast changes a value: one that does not fit is an error. The only exception is what Spark
needs: nanoseconds are cut where the wanted unit is coarser.

`pyarrow.compute` is loaded when it is first needed, which takes a twentieth of the time of a command.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from quiver_actors.base.widening import AmbiguousColumns, ambiguous_columns, is_large_list, is_list, plain_type
from quiver_actors.errors import UnsupportedType


def conform(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The rows of `batch` in exactly the columns and types of `target`: by name, missing columns null, others dropped.

    Returns:
        The same batch where nothing differs; value buffers are shared wherever the layouts agree.

    Raises:
        UnsupportedType: a value does not fit, or a null where `target` allows none.
        AmbiguousColumns: two columns, or two fields of a struct, have the name of one that is wanted.
    """
    if batch.schema.equals(target):
        return batch
    columns = [_column(batch, field) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target) if columns else batch.select([])


def _column(batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
    found = batch.schema.get_all_field_indices(field.name)
    if len(found) > 1:
        raise AmbiguousColumns(f"{len(found)} columns are called {field.name!r}: no reader can tell them apart")
    try:
        array = _cast(batch.column(found[0]), field.type) if found else _nulls(batch.num_rows, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if ambiguous_columns(pa.schema([batch.schema.field(index) for index in found])):
            raise AmbiguousColumns(
                f"column {field.name!r} has a struct with several fields of one name: no reader can tell them apart"
            ) from error
        raise UnsupportedType(f"column {field.name!r} cannot be read as {field.type}: {error}") from error
    if not field.nullable and array.null_count:
        raise UnsupportedType(f"column {field.name!r} holds nulls, but the schema asked for says NOT NULL")
    return array


def _nulls(count: int, kind: pa.DataType) -> pa.Array:
    try:
        return pa.nulls(count, kind)
    except pa.ArrowNotImplementedError:
        pass  # Arrow makes none of types that have extensions in them (pyarrow 26).
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _nulls(count, kind.storage_type))
    if types.is_struct(kind):
        children = [_nulls(count, field.type) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=pa.array([True] * count, pa.bool_()))
    if types.is_list(kind) or types.is_large_list(kind):
        offsets_bytes = (count + 1) * (8 if is_large_list(kind) else 4)
        buffers = [pa.py_buffer(bytes(-(-count // 8))), pa.py_buffer(bytes(offsets_bytes))]
        return pa.Array.from_buffers(kind, count, buffers, children=[_nulls(0, kind.value_type)])
    return pa.nulls(count, kind)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if source == target:
        return array
    if types.is_null(source):
        return _nulls(len(array), target)
    if isinstance(source, pa.BaseExtensionType):
        return _cast(array.storage, target)
    if types.is_dictionary(source):
        return _taken(array.dictionary, array.indices, target)
    if types.is_run_end_encoded(source):
        import pyarrow.compute as pc

        # Arrow decodes few types itself (pyarrow 26): not views, nor dictionaries.
        places = pa.RunEndEncodedArray.from_arrays(array.run_ends, pa.array(range(len(array.values)), pa.int64()))
        return _taken(array.values, pc.run_end_decode(places.slice(array.offset, len(array))), target)
    if types.is_struct(source) and types.is_struct(target):
        return _cast_struct(array, target)
    if types.is_map(source) and types.is_map(target):
        return _cast_map(array, target)
    if is_list(source) and (types.is_list(target) or types.is_large_list(target)):
        return _cast_list(array, target)
    found = array.cast(target, safe=not _cuts_nanoseconds(source))
    if _may_change(source, target) and not _is_same(array, found.cast(source)):
        raise pa.ArrowInvalid(f"not every value is one of {target}")
    return found


def _may_change(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether Arrow casts between the two without a word about values that do not fit (pyarrow 26)."""
    if types.is_floating(target):
        return bool(types.is_decimal(source) or (types.is_floating(source) and source.bit_width > target.bit_width))
    if types.is_boolean(target):
        return bool(types.is_integer(source) or types.is_floating(source) or types.is_decimal(source))
    return bool(types.is_timestamp(source) and types.is_date(target))


def _is_same(one: pa.Array, other: pa.Array) -> bool:
    import pyarrow.compute as pc

    same = pc.equal(one, other)
    if types.is_floating(one.type):
        same = pc.or_(same, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    return bool(pc.all(same).as_py() is not False)


def _taken(values: pa.Array, places: pa.Array, target: pa.DataType) -> pa.Array:
    """Values by their places, decoded first: Arrow takes nothing out of views and run-ends. One that nobody takes need not fit."""
    return _cast(_cast(values, plain_type(values.type)).take(places), target)


def _cuts_nanoseconds(source: pa.DataType) -> bool:
    return bool((types.is_timestamp(source) or types.is_duration(source)) and source.unit == "ns")


def _cast_struct(array: pa.StructArray, target: pa.StructType) -> pa.Array:
    children = []
    for field in target:
        found = array.type.get_all_field_indices(field.name)
        if len(found) > 1:
            raise pa.ArrowInvalid(f"{len(found)} fields are called {field.name!r}")
        children.append(_cast(array.field(found[0]), field.type) if found else _nulls(len(array), field.type))
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(target), mask=mask)


def _cast_list(array: pa.Array, target: pa.ListType | pa.LargeListType) -> pa.Array:
    """Keeps offsets and validity, casts the values."""
    plain = _plain_list(array, is_large=is_large_list(target))
    values = _cast(plain.values, target.value_type)
    return pa.Array.from_buffers(target, len(plain), plain.buffers()[:2], offset=plain.offset, children=[values])


def _plain_list(array: pa.Array, *, is_large: bool) -> pa.ListArray | pa.LargeListArray:
    source = array.type
    if types.is_large_list(source) if is_large else types.is_list(source):
        return array
    if types.is_fixed_size_list(source) and types.is_fixed_size_list(source.value_type):
        return _unsized(array, is_large=is_large)
    if not (types.is_list_view(source) or types.is_large_list_view(source)):
        return array.cast((pa.large_list if is_large else pa.list_)(source.value_field))
    import pyarrow.compute as pc

    # Arrow's own cast from a view leaves the last offset out (pyarrow 26): its result points outside its buffers.
    kind, offset_type = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(offset_type)
    offsets = pa.concat_arrays([pa.array([0], offset_type), pc.cumulative_sum(lengths)])
    # Where all lists are null or empty, list_flatten refuses some types that it takes otherwise.
    values = pc.list_flatten(array) if offsets[-1].as_py() else array.values.slice(0, 0)
    return kind.from_arrays(offsets, values, mask=array.is_null())


def _unsized(array: pa.FixedSizeListArray, *, is_large: bool) -> pa.ListArray | pa.LargeListArray:
    """The same lists. Arrow's own cast refuses some of fixed-size lists, such as of nulls (pyarrow 26)."""
    size = array.type.list_size
    starts = [size * number for number in range(len(array) + 1)]
    kind, offset_type = (pa.LargeListArray, pa.int64()) if is_large else (pa.ListArray, pa.int32())
    values = array.values.slice(array.offset * size, len(array) * size)
    make = pa.large_list if is_large else pa.list_
    offsets = pa.array(starts, offset_type)
    return kind.from_arrays(offsets, values, type=make(array.type.value_field), mask=array.is_null())


def _cast_map(array: pa.MapArray, target: pa.MapType) -> pa.Array:
    keys = _cast(array.keys, target.key_type)
    items = _cast(array.items, target.item_type)
    entries = pa.StructArray.from_arrays([keys, items], fields=[target.key_field, target.item_field])
    return pa.Array.from_buffers(target, len(array), array.buffers()[:2], offset=array.offset, children=[entries])
