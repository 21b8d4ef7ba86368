"""The one schema that holds the rows of several: the rules by which a column of several types becomes one column.

Everybody who reads bundles of different schemas as one table follows these rules: Spark, datasets, SQL, Parquet files and Flight. The
result is the same in whatever order the schemas come, but for the order of columns, which is that of first sight.

| types of one column | type that holds them |
|---|---|
| all the same | that type |
| null, and others | what the others make |
| dictionary, run-end encoded or extension, and others | what their values make with the others |
| integers | the narrowest integer that holds all; uint64 with a signed one: decimal(20,0) |
| integers and floats, floats | the narrowest float that holds every value of the narrower ones; 64-bit integers: float64 |
| integers and decimals, decimals | the decimal with as many digits before and behind the point, up to 76 |
| string, large string, string view | large string |
| binary, fixed-size and view binaries, or one of them and a string | binary; large binary where one of them is large or a view |
| date32, date64 | date64 |
| timestamps, all with a zone or all without | the finest unit; several zones: UTC |
| durations; times | the finest unit; times: time64 |
| lists of any layout | list, or large list where one is large, of what their values make |
| structs | the fields of all, by name; a field that one of them lacks is nullable |
| maps | map of what keys and values make |

Everything else is a conflict: bool with a number, a decimal with a float, text with a number, a timestamp with a zone and one without.

No cast that follows from the table changes a value: one that does not fit, such as 2^53 + 1 among floats or the year 3000 in
nanoseconds, is an error where it is read (`base.conform`). Columns that a schema lacks are null there. Every column, and every field of
a struct, list or map, is nullable: nobody has proven that a stored NOT NULL column has no nulls. Metadata of a schema or a field is kept
where all say the same. Two columns of one name, or two fields of one struct, cannot be told apart (`AmbiguousColumns`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyarrow import types

from quiver_actors.errors import UnsupportedType

DECIMAL128_DIGITS_MAX = 38
DECIMAL256_DIGITS_MAX = 76

Kind: TypeAlias = Callable[[pa.DataType], bool]
Types: TypeAlias = Sequence[pa.DataType]


class SchemaConflict(UnsupportedType):
    """Stored schemas have no common one. The message names the column, its types, and where each of them is stored."""


class AmbiguousColumns(SchemaConflict):
    """Several columns of one bundle, or several fields of one struct, have the same name. The message names it, and where it is stored."""


class _NoCommonType(Exception):
    """No type holds all of them. Stays in this module."""


def widen(schemas: Iterable[pa.Schema], held_by: Sequence[str] = ()) -> pa.Schema:
    """The one schema to which rows of all these schemas conform, by the table above.

    Args:
        held_by: for each schema who has it, for the message of an error, such as "segments 3 to 9 of core 0".

    Raises:
        SchemaConflict: no type holds all types of a column.
        AmbiguousColumns: one of several schemas has two columns of one name. A schema alone may have them.
    """
    found = list(schemas)
    distinct = list({schema.serialize().to_pybytes(): schema for schema in found}.values())
    if len(distinct) == 1:
        return _nullable(distinct[0])
    for number, schema in enumerate(found):
        _check_names(schema, held_by[number : number + 1])
    columns: dict[str, list[pa.Field]] = {}
    for schema in distinct:
        for field in schema:
            columns.setdefault(field.name, []).append(field)
    fields = [_column(name, fields, found, held_by) for name, fields in columns.items()]
    is_same = distinct and _agree([each.metadata for each in distinct])
    return _nullable(pa.schema(fields, metadata=distinct[0].metadata if is_same else None))


def ambiguous_columns(schema: pa.Schema) -> list[str]:
    """Names that several columns of a schema have, and names of columns with a struct in which several fields have one name."""
    repeated = _repeated(schema.names)
    inside = (field.name for field in schema if field.type.num_fields and _has_ambiguous_fields(field.type))
    return list(dict.fromkeys([*repeated, *inside]))


def unambiguous(schema: pa.Schema) -> pa.Schema:
    """The schema with one column, of no type and at the end, in place of all those that cannot be told apart. Reading it is an error."""
    names = ambiguous_columns(schema)
    if not names:
        return schema
    fields = [field for field in schema if field.name not in names]
    return pa.schema([*fields, *(pa.field(name, pa.null()) for name in names)], metadata=schema.metadata)


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def _has_ambiguous_fields(kind: pa.DataType) -> bool:
    inner = [kind.field(number) for number in range(kind.num_fields)]
    if types.is_struct(kind) and _repeated(field.name for field in inner):
        return True
    return any(_has_ambiguous_fields(field.type) for field in inner)


def _check_names(schema: pa.Schema, held_by: Sequence[str]) -> None:
    for name in _repeated(schema.names):
        what = f"several columns are called {name!r} in {held_by[0] if held_by else 'one of the stored schemas'}"
        raise AmbiguousColumns(f"{what}: no reader can tell them apart. Read these bundles apart")


def _nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with every column and field nullable; itself where they are."""
    fields = [pa.field(each.name, nullable_type(each.type), True, each.metadata) for each in schema]
    found = pa.schema(fields, metadata=schema.metadata)
    return schema if found.equals(schema, check_metadata=True) else found


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values and of nulls at every place, but for keys of maps and what lies below views and dictionaries."""
    if types.is_struct(kind):
        return pa.struct([_nullable_field(field) for field in kind])
    if types.is_map(kind):
        key = kind.key_field.with_type(nullable_type(kind.key_type))
        return pa.map_(key, _nullable_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(_nullable_field(kind.value_field), kind.list_size)
    if types.is_list(kind):
        return pa.list_(_nullable_field(kind.value_field))
    return pa.large_list(_nullable_field(kind.value_field)) if types.is_large_list(kind) else kind


def _nullable_field(field: pa.Field) -> pa.Field:
    return field.with_type(nullable_type(field.type)).with_nullable(True)


def _column(name: str, fields: list[pa.Field], found: list[pa.Schema], held_by: Sequence[str]) -> pa.Field:
    try:
        return _widest_field(fields)
    except _NoCommonType:
        raise SchemaConflict(_conflict(name, found, held_by)) from None


def _conflict(name: str, found: list[pa.Schema], held_by: Sequence[str]) -> str:
    holders: dict[pa.DataType, list[str]] = {}
    for number, schema in enumerate(found):
        if name in schema.names:
            holders.setdefault(schema.field(name).type, []).extend(held_by[number : number + 1])
    kinds = [f"{kind} in {' and '.join(who)}" if who else str(kind) for kind, who in holders.items()]
    what = f"column {name!r} has types that no common type holds: {'; '.join(kinds)}"
    return f"{what}. Read these bundles apart, or with a schema of your own"


def plain_type(source: pa.DataType) -> pa.DataType:
    """The type of the same values without an encoding: no dictionary, run-ends, extension, view or fixed size, also inside nested types."""
    encoded = _decoded(source)
    if encoded is not source:
        return plain_type(encoded)
    if types.is_string_view(source):
        return pa.large_string()
    if types.is_binary_view(source):
        return pa.large_binary()
    if types.is_struct(source):
        return pa.struct([field.with_type(plain_type(field.type)) for field in source])
    if types.is_map(source):
        key, item = source.key_field, source.item_field
        return pa.map_(key.with_type(plain_type(key.type)), item.with_type(plain_type(item.type)))
    if is_list(source):
        make = pa.large_list if is_large_list(source) else pa.list_
        return make(source.value_field.with_type(plain_type(source.value_type)))
    return source


def is_list(source: pa.DataType) -> bool:
    """Whether it is a list of any layout."""
    return bool(
        types.is_list(source)
        or types.is_large_list(source)
        or types.is_fixed_size_list(source)
        or types.is_list_view(source)
        or types.is_large_list_view(source)
    )


def is_large_list(source: pa.DataType) -> bool:
    """Whether it is a list with offsets of 64 bits."""
    return bool(types.is_large_list(source) or types.is_large_list_view(source))


def _agree(values: Sequence[object]) -> bool:
    return all(value == values[0] for value in values)


def _widest_field(fields: Sequence[pa.Field]) -> pa.Field:
    """The field that holds all of these; called as the first of them."""
    metadata = fields[0].metadata if _agree([field.metadata for field in fields]) else None
    is_nullable = any(field.nullable for field in fields)
    return pa.field(fields[0].name, _widest([field.type for field in fields]), is_nullable, metadata)


def _widest(found: Types) -> pa.DataType:
    distinct = [each for each in dict.fromkeys(found) if not types.is_null(each)] or [pa.null()]
    if len(distinct) > 1:
        distinct = list(dict.fromkeys(map(_decoded, distinct)))
    if len(distinct) == 1:
        return distinct[0]
    for is_kind, widest in _RULES:
        if all(map(is_kind, distinct)):
            return widest(distinct)
    raise _NoCommonType


def _decoded(source: pa.DataType) -> pa.DataType:
    """The type of the values of a dictionary, of run-ends, or of an extension; any other type is itself."""
    if types.is_dictionary(source) or types.is_run_end_encoded(source):
        return _decoded(source.value_type)
    if isinstance(source, pa.BaseExtensionType):
        return _decoded(source.storage_type)
    return source


# --- the rules, for two or more different types --------------------------------------------------------------------------


def _is_number(source: pa.DataType) -> bool:
    return bool(types.is_integer(source) or types.is_floating(source))


def _is_exact(source: pa.DataType) -> bool:
    return bool(types.is_integer(source) or types.is_decimal(source))


def _is_text(source: pa.DataType) -> bool:
    return bool(types.is_string(source) or types.is_large_string(source) or types.is_string_view(source))


def _is_bytes(source: pa.DataType) -> bool:
    return bool(
        _is_text(source)
        or types.is_binary(source)
        or types.is_large_binary(source)
        or types.is_binary_view(source)
        or types.is_fixed_size_binary(source)
    )


def _is_large(source: pa.DataType) -> bool:
    return bool(
        types.is_large_string(source)
        or types.is_large_binary(source)
        or types.is_string_view(source)
        or types.is_binary_view(source)
    )


def _integers(found: Types) -> pa.DataType:
    unsigned = max((each.bit_width for each in found if types.is_unsigned_integer(each)), default=0)
    signed = max((each.bit_width for each in found if types.is_signed_integer(each)), default=0)
    if not signed:
        return {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[unsigned]
    width = max(signed, 2 * unsigned)
    return {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(width, pa.decimal128(20, 0))


def _floats(found: Types) -> pa.DataType:
    """A float of 16, 32 or 64 bits holds every integer of 8, 16 or 32 bits."""
    widths = [each.bit_width if types.is_floating(each) else 2 * each.bit_width for each in found]
    return {16: pa.float16(), 32: pa.float32()}.get(max(widths), pa.float64())


def _decimals(found: Types) -> pa.DataType:
    digits = [(each.precision, each.scale) if types.is_decimal(each) else (_DIGITS[each], 0) for each in found]
    scale = max(0, *(scale for _, scale in digits))
    precision = scale + max(precision - scale for precision, scale in digits)
    if precision > DECIMAL256_DIGITS_MAX:
        raise _NoCommonType
    return (pa.decimal128 if precision <= DECIMAL128_DIGITS_MAX else pa.decimal256)(precision, scale)


def _bytes(found: Types) -> pa.DataType:
    return pa.large_binary() if any(map(_is_large, found)) else pa.binary()


def _timestamps(found: Types) -> pa.DataType:
    zones = {each.tz for each in found}
    if len(zones) > 1 and None in zones:
        raise _NoCommonType
    return pa.timestamp(_finest(found), zones.pop() if len(zones) == 1 else "UTC")


def _times(found: Types) -> pa.DataType:
    unit = _finest(found)
    return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)


def _finest(found: Types) -> str:
    return max((str(each.unit) for each in found), key=("s", "ms", "us", "ns").index)


def _lists(found: Types) -> pa.DataType:
    make = pa.large_list if any(map(is_large_list, found)) else pa.list_
    return make(_widest_field([each.value_field for each in found]))


def _structs(found: Types) -> pa.DataType:
    fields: dict[str, list[pa.Field]] = {}
    for each in found:
        for field in each:
            fields.setdefault(field.name, []).append(field)
        if len({field.name for field in each}) != each.num_fields:
            raise _NoCommonType
    widest = {name: _widest_field(those) for name, those in fields.items()}
    return pa.struct(
        [field if len(fields[name]) == len(found) else field.with_nullable(True) for name, field in widest.items()]
    )


def _maps(found: Types) -> pa.DataType:
    return pa.map_(
        _widest_field([each.key_field for each in found]), _widest_field([each.item_field for each in found])
    )


_DIGITS = {
    **dict.fromkeys((pa.int8(), pa.uint8()), 3),
    **dict.fromkeys((pa.int16(), pa.uint16()), 5),
    **dict.fromkeys((pa.int32(), pa.uint32()), 10),
    pa.int64(): 19,
    pa.uint64(): 20,
}
"""Decimal digits that hold every value of an integer type."""

_RULES: tuple[tuple[Kind, Callable[[Types], pa.DataType]], ...] = (
    (types.is_integer, _integers),
    (_is_number, _floats),
    (_is_exact, _decimals),
    (_is_text, lambda _: pa.large_string()),
    (_is_bytes, _bytes),
    (types.is_date, lambda _: pa.date64()),
    (types.is_timestamp, _timestamps),
    (types.is_duration, lambda found: pa.duration(_finest(found))),
    (types.is_time, _times),
    (is_list, _lists),
    (types.is_struct, _structs),
    (types.is_map, _maps),
)
