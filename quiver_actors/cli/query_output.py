"""The result of a statement as a table, JSON lines, CSV, or a file. Rows are written as they are computed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiver_actors.cli.values import json_text, value_of
from quiver_actors.errors import UnsupportedType, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

WIDTH_MAX = 60
"""Most characters of a value in a table."""


def print_table(reader: pa.RecordBatchReader, limit: int | None) -> None:
    """Print the first rows as a table, and how many there are; all of them are computed. `limit`: most rows; None: all."""
    shown: list[list[str]] = []
    row_count = 0
    for batch in reader:
        wanted = batch.num_rows if limit is None else min(batch.num_rows, limit - len(shown))
        shown += [[_cell(column, row) for column in batch.columns] for row in range(wanted)]
        row_count += batch.num_rows
    numbers = [_is_number(field.type) for field in reader.schema]
    for line in _lines(reader.schema.names, shown, numbers):
        print(line)
    left_out = f", the first {len(shown):,} are shown: --limit 0 shows all" if len(shown) < row_count else ""
    print(f"({row_count:,} {'row' if row_count == 1 else 'rows'}{left_out})")


def print_json(reader: pa.RecordBatchReader, limit: int | None) -> None:
    """Print each row as one JSON object on a line."""
    for batch in limited(reader, limit):
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        for row in range(batch.num_rows):
            print(json_text({name: value_of(column, row) for name, column in columns}))
        sys.stdout.flush()


def write_file(reader: pa.RecordBatchReader, limit: int | None, file_format: str, path: str | None) -> int:
    """Write the rows to a file, which has its name once it is whole, or as CSV to standard output; returns their number.

    Raises:
        UsageError: the file exists already, or no file is named for a format that is not text.
        UnsupportedType: the format has no form for a column.
    """
    import pyarrow as pa

    if path is None:
        if file_format != "csv":
            raise UsageError(f"--format {file_format} needs --output FILE")
        with pa.PythonFile(sys.stdout.buffer, mode="w") as sink:
            return _write(reader, limit, file_format, sink)
    with _new_file(path) as place:
        return _write(reader, limit, file_format, place)


def limited(reader: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches of the first rows. Rows behind them are not computed."""
    left = limit
    for batch in reader:
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        yield batch
        if left == 0:
            return


def _write(reader: pa.RecordBatchReader, limit: int | None, file_format: str, sink: Any) -> int:
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    opened = {"csv": pyarrow.csv.CSVWriter, "arrow": pa.ipc.new_file, "parquet": pq.ParquetWriter}[file_format]
    row_count = 0
    try:
        with opened(sink, reader.schema) as writer:
            for batch in limited(reader, limit):
                writer.write_batch(batch)
                row_count += batch.num_rows
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UnsupportedType(f"the rows cannot be written as {file_format}: {error}; use another --format") from error
    return row_count


@contextmanager
def _new_file(path: str) -> Iterator[str]:
    if os.path.exists(path):
        raise UsageError(f"{path} exists already: choose another name with --output, or remove it")
    unfinished = f"{path}.tmp"
    try:
        yield unfinished
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.unlink(unfinished)


def _is_number(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _cell(column: pa.Array, row: int) -> str:
    value = value_of(column, row)
    text = "" if value is None else value if isinstance(value, str) else str(value)
    # A value stays on its line, and cannot move the cursor of a terminal.
    text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
    return text if len(text) <= WIDTH_MAX else text[: WIDTH_MAX - 1] + "…"


def _lines(names: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[bool]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
    for row in (names, *rows):
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, numbers, strict=True)
        ]
        yield "  ".join(cells).rstrip()
