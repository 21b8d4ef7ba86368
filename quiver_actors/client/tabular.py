"""What counts as a batch: Arrow's own classes, and whatever hands its rows over by Arrow's protocols.

Polars, pandas, DuckDB, nanoarrow, arro3 and others have `__arrow_c_array__` or `__arrow_c_stream__`. Buffers are taken as they are; only
chunks are put together, and a view that shows little of a large buffer is cut down to what it shows. One push is one bundle; a reader,
which has as many batches as come, is for `push_many`, where each batch becomes a bundle.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import types

from quiver_actors.base.model import ENTRY_BODY_BYTES_MAX
from quiver_actors.base.units import KIB, format_size
from quiver_actors.errors import BundleTooLarge, InvalidBundle, QuiverError


class ArrowStream(Protocol):
    """Anything that gives its rows as a stream of batches."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The stream, as a PyCapsule."""


class ArrowArray(Protocol):
    """Anything that gives its rows as one struct array."""

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Schema and array, as PyCapsules."""


Batch: TypeAlias = "pa.RecordBatch | pa.Table | ArrowStream | ArrowArray | list[dict[str, Any]]"

WHAT_IS_EXPECTED = (
    "expected a pyarrow.RecordBatch or Table, a DataFrame, anything with __arrow_c_stream__ or __arrow_c_array__, a list of dicts with "
    "a row each, or a mapping of slot name or id to one of them"
)
_EXCESS_BYTES_MAX = 64 * KIB
"""Bytes of a view's buffers that may be stored although no value shows them."""
_VIEW_BYTES = 16
_UNREADABLE = (pa.ArrowException, TypeError, ValueError, OverflowError)


def batch_of(content: object) -> pa.RecordBatch:
    """The one batch that some content of a slot is.

    Raises:
        InvalidBundle: it is nothing that has rows and named columns, or a reader.
        BundleTooLarge: it is longer than any bundle.
    """
    if isinstance(content, pa.RecordBatch):
        return content
    if isinstance(content, pa.Table):
        return _one_batch(content)
    if _is_reader(content):
        raise InvalidBundle(
            f"cannot push a {type_name(content)}, whose batches are not counted before it ends: "
            "push_many(reader) stores each batch as a bundle, push(reader.read_all()) all of them as one"
        )
    if is_rows(content):
        return _of_rows(content)
    if isinstance(content, type) or not _has_protocol(content):
        raise InvalidBundle(f"cannot push a {type_name(content)}: {_advice(content)}{WHAT_IS_EXPECTED}")
    try:
        return _of_protocol(content)
    except (QuiverError, MemoryError):
        raise
    except Exception as error:  # whatever a library raises while it makes its rows
        raise InvalidBundle(f"cannot push this {type_name(content)}: {error}; {WHAT_IS_EXPECTED}") from error


def bundles_of(bundles: Iterable[Any]) -> Iterable[Any]:
    """What `push_many` was given, as its bundles: each batch of a reader, a table or a frame is one.

    Raises:
        InvalidBundle: it gives no batches with named columns.
    """
    if isinstance(bundles, (list, tuple)):
        return bundles
    if not hasattr(bundles, "__arrow_c_stream__"):
        if not isinstance(bundles, Iterable):
            raise InvalidBundle(
                f"cannot push the bundles of a {type_name(bundles)}: expected a list or another iterable of bundles"
            )
        return bundles
    if _is_frame_of_pandas(bundles):
        return [batch_of(bundles)]
    _check_no_objects(bundles)
    try:
        reader = pa.RecordBatchReader.from_stream(bundles)
    except _UNREADABLE as error:
        raise InvalidBundle(f"cannot push the batches of this {type_name(bundles)}: {error}") from error
    return map(_without_excess, reader)


def is_rows(content: object) -> bool:
    """Whether it is a list of dicts, each of them a row."""
    return isinstance(content, list) and bool(content) and all(type(row) is dict for row in content)


def type_name(content: object) -> str:
    """The name of its class, with the module where that is not Python's own."""
    kind = type(content)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _has_protocol(content: object) -> bool:
    return hasattr(content, "__arrow_c_array__") or hasattr(content, "__arrow_c_stream__")


def _advice(content: object) -> str:
    """What to do with something that is not accepted as it is; empty: nothing special."""
    if isinstance(content, type):
        return f"{content.__name__} is a class and has no rows; "
    if isinstance(content, (list, tuple)) and content:
        return _advice_for_items(content)
    if isinstance(content, Iterator):
        return "push_many() stores each of its items as a bundle; "
    for method in ("collect", "to_table", "fetch_arrow_table"):
        if callable(getattr(content, method, None)):
            return f"push what its {method}() returns; "
    return ""


def _advice_for_items(items: list[object] | tuple[object, ...]) -> str:
    strange = next((place for place, item in enumerate(items) if type(item) is not dict), None)
    if strange is None:
        return "rows come in a list: push list(rows); "
    if type(items[0]) is dict:
        return f"item {strange} is a {type_name(items[strange])}, and not a dict as the rows before it; "
    if isinstance(items[0], (pa.RecordBatch, pa.Table)) or _has_protocol(items[0]):
        return "push_many() stores each of its items as a bundle; "
    return ""


def _is_reader(content: object) -> bool:
    """Whether its batches are used up by reading them."""
    has_stream = hasattr(content, "__arrow_c_stream__") and not hasattr(content, "__arrow_c_array__")
    return has_stream and any(hasattr(content, name) for name in ("__next__", "read_next_batch", "iter_chunks"))


def _check_no_objects(content: Any) -> None:
    """Refuse a frame of Polars with objects of Python, whose addresses Polars gives out in place of values."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(content, polars.DataFrame):
        objects = [name for name, kind in content.schema.items() if kind == polars.Object]
        if objects:
            raise InvalidBundle(
                f"cannot push this {type_name(content)}: the columns {objects} hold objects of Python, for which Arrow has no type; "
                "cast them"
            )


def _is_frame_of_pandas(content: object) -> bool:
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(content, pandas.DataFrame)


def _of_protocol(content: Any) -> pa.RecordBatch:
    if hasattr(content, "__arrow_c_array__"):
        return _without_excess(pa.record_batch(content))
    if _is_frame_of_pandas(content):
        # What pandas notes of its index differs from frame to frame, and each schema would be a stream of its own.
        return _one_batch(pa.Table.from_pandas(content).replace_schema_metadata(None))
    _check_no_objects(content)
    reader = pa.RecordBatchReader.from_stream(content)
    return _without_excess(_one_batch(pa.Table.from_batches(_counted(reader, content), reader.schema)))


def _counted(reader: Iterable[pa.RecordBatch], content: object) -> Iterator[pa.RecordBatch]:
    """The batches, as long as they may fit into one bundle."""
    rows_bytes = 0
    for batch in reader:
        rows_bytes += sum(map(_shown_bytes, batch.columns))
        if rows_bytes > ENTRY_BODY_BYTES_MAX:
            raise BundleTooLarge(
                f"the {type_name(content)} has more than {format_size(ENTRY_BODY_BYTES_MAX)}, the limit of a bundle: push it in parts, "
                "or each of its batches as a bundle with push_many"
            )
        yield batch


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.to_batches()
    if len(batches) > 1:
        batches = _combined(table)
    if not batches:
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in table.schema], schema=table.schema)
    return batches[0]


def _combined(table: pa.Table) -> list[pa.RecordBatch]:
    try:
        batches: list[pa.RecordBatch] = table.combine_chunks().to_batches()
    except pa.ArrowException as error:
        raise InvalidBundle(f"the table's chunks cannot be combined into one batch: {error}") from error
    if len(batches) > 1:
        raise InvalidBundle(f"the table does not fit into one batch: it keeps {len(batches)} chunks; push it in parts")
    return batches


# --- rows ----------------------------------------------------------------------------------------------------------------


def _of_rows(rows: Any) -> pa.RecordBatch:
    """Rows as columns; a key that a row lacks is null there."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidBundle(f"the rows have the keys {names[:3]}: expected the names of columns")
    return pa.RecordBatch.from_arrays([_column(name, rows) for name in names], names=names)


def _column(name: str, rows: list[dict[str, Any]]) -> pa.Array:
    values = [row.get(name) for row in rows]
    _check_unambiguous(name, values)
    try:
        return pa.array(values)
    except _UNREADABLE as error:
        raise InvalidBundle(
            f"the values of {name!r} in the rows do not make one column: {error}; push a pyarrow.RecordBatch with a schema of your own"
        ) from error


def _check_unambiguous(name: str, values: list[Any]) -> None:
    """Refuse values that Arrow would put into one column by a guess: texts among bytes, times without a zone among those with one."""
    kinds = set(map(type, values))
    are_times = any(issubclass(kind, datetime.datetime) for kind in kinds)
    what = ""
    if kinds >= {str, bytes}:
        what = "both texts and bytes"
    elif are_times and len({each.tzinfo is None for each in values if isinstance(each, datetime.datetime)}) > 1:
        what = "times with and without a time zone"
    if what:
        raise InvalidBundle(
            f"the values of {name!r} in the rows do not make one column: they are {what}; push a pyarrow.RecordBatch with a schema of "
            "your own"
        )


# --- views ---------------------------------------------------------------------------------------------------------------


def _without_excess(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows. A view is stored with the whole of its buffers, also where it is a few rows of a large frame."""
    columns = [_cut_down(column) if _is_view(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _cut_down(column: pa.Array) -> pa.Array:
    stored_bytes = sum(buffer.size for buffer in column.buffers()[2:])
    if stored_bytes <= 2 * _shown_bytes(column) + _EXCESS_BYTES_MAX:
        return column
    plain = pa.large_string() if types.is_string_view(column.type) else pa.large_binary()
    return column.cast(plain).cast(column.type)


def _is_view(kind: pa.DataType) -> bool:
    return bool(types.is_string_view(kind) or types.is_binary_view(kind))


def _shown_bytes(column: pa.Array) -> int:
    """Bytes of the values: of a view those that it shows, without what else lies in its buffers."""
    if not _is_view(column.type):
        return int(column.nbytes)
    views = np.frombuffer(column.buffers()[1], np.int32, 4 * (column.offset + len(column)))
    lengths = views.reshape(-1, 4)[column.offset :, 0]
    return _VIEW_BYTES * len(column) + int(np.maximum(lengths, 0).sum(dtype=np.int64))
