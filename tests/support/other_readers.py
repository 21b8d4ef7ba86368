"""Arrow files as arrow-rs (through arro3) and polars read them, and which types each of the two cannot read at all.

A reader is passed over for a schema only because of a field in its table, with the reason; everything else must have the rows that
pyarrow sees.

Both are imported when they are first needed: polars starts threads, and other tests of the same run fork.
"""

from __future__ import annotations

import datetime
import io
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

Rows = list[tuple[Any, ...]]
Refusal = Callable[[pa.Field, bool], str | None]
"""Asked with each field of a schema, and whether it stands below another one."""


def arrow_rs_rows(file: bytes) -> Rows:
    import arro3.io

    return rows_of(pa.table(arro3.io.read_ipc(io.BytesIO(file)).read_all()))


def polars_rows(file: bytes) -> Rows:
    import polars

    return rows_of(polars.read_ipc(io.BytesIO(file)).to_arrow())


def why_not_arrow_rs(schema: pa.Schema) -> str | None:
    """The reason for which a file of that schema is not compared with what arrow-rs reads; None if it is."""
    return _first_reason(schema, _arrow_rs_refuses)


def why_not_polars(schema: pa.Schema) -> str | None:
    """The reason for which a file of that schema is not compared with what polars reads; None if it is."""
    if len(set(schema.names)) != len(schema):
        return "a frame has no two columns of one name"
    return _first_reason(schema, _polars_refuses)


def _arrow_rs_refuses(field: pa.Field, is_nested: bool) -> str | None:
    """It reads every type; what is missing is a way to compare."""
    if pa.types.is_struct(field.type) and len({inner.name for inner in field.type}) != field.type.num_fields:
        return "Python cannot show a struct with two fields of one name"
    return None


def _polars_refuses(field: pa.Field, is_nested: bool) -> str | None:
    types, data_type = pa.types, field.type
    if types.is_decimal256(data_type):
        return "panics: operator does not support primitive `Int256`"
    if types.is_interval(data_type):
        return "panics: could not import from `month_day_nano_interval` type"
    if types.is_list_view(data_type) or types.is_large_list_view(data_type):
        return "panics: list views are not yet implemented"
    if types.is_run_end_encoded(data_type):
        return "panics: run-end encoding is not yet implemented"
    if types.is_union(data_type):
        return "panics: Arrow datatype Union is not supported"
    if types.is_fixed_size_list(data_type) and data_type.list_size == 0:
        return "Cannot read zero sized arrays from IPC"
    if types.is_fixed_size_binary(data_type) and data_type.byte_width == 0:
        return "FixedSizeBinaryArray expects a positive size"
    if is_nested and (types.is_decimal32(data_type) or types.is_decimal64(data_type)):
        return "takes nested decimals of 32 and 64 bits for plain integers of 128"
    if types.is_dictionary(data_type) and b"ARROW:extension:name" in (field.metadata or {}):
        return "gives back dictionaries of an extension type without their values"
    return _arrow_rs_refuses(field, is_nested)


def _first_reason(schema: pa.Schema, refuses: Refusal) -> str | None:
    found = (refuses(field, is_nested) for column in schema for field, is_nested in _walk(column, False))
    return next((reason for reason in found if reason is not None), None)


def _walk(field: pa.Field, is_nested: bool) -> Iterator[tuple[pa.Field, bool]]:
    """The field and everything below it."""
    yield field, is_nested
    data_type = field.type
    if isinstance(data_type, pa.BaseExtensionType):
        yield from _walk(field.with_type(data_type.storage_type), is_nested)
    elif pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        yield from _walk(pa.field("values", data_type.value_type), True)
    else:
        for index in range(data_type.num_fields):
            yield from _walk(data_type.field(index), True)


def rows_of(table: pa.Table | pa.RecordBatch) -> Rows:
    """The values of all rows as Python has them, whatever they are stored as."""
    if not table.num_columns:
        return [()] * table.num_rows
    columns = [list(map(_plain, column.to_pylist())) for column in table.columns]
    return list(zip(*columns, strict=True))


def _plain(value: Any) -> Any:
    """One spelling for what the readers spell differently: UUIDs as their bytes, dates as times."""
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, uuid.UUID):
        return value.bytes
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return datetime.datetime(value.year, value.month, value.day)
    return value
