"""The demo's source data, read without Spark."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import pyarrow as pa

from quiver_actors.cli.demo import tables
from quiver_actors.cli.demo.progress import ProgressBar


def test_the_tables_are_complete_and_cut_by_day(tmp_path: Path) -> None:
    files = tables.unpack_tables(tmp_path)
    flights = tables.read_table(files["flights"], tables.FLIGHTS)
    weather = tables.read_table(files["weather"], tables.WEATHER)
    assert (flights.num_rows, weather.num_rows) == (336_776, 26_115)
    assert flights["dep_time"].null_count > 0
    first = tables.first_days(flights, 1)
    assert 0 < first.num_rows < 1_000
    assert max(first["time_hour"].to_pylist()) < datetime.datetime(2013, 1, 2, tzinfo=datetime.UTC)


def test_blocks_are_counted_over_all_tables() -> None:
    def at(*hours: int) -> pa.Table:
        return pa.table({"time_hour": pa.array([hour * 3_600_000_000 for hour in hours], pa.timestamp("us", "UTC"))})

    assert tables.count_blocks([at(0, 1, 2, 3), at(5, 6, 9)]) == 4
    assert tables.hours_block(at(7, 6).to_batches()[0]) == 2


def test_without_a_terminal_the_bar_prints_a_line_for_every_tenth() -> None:
    stream = io.StringIO()
    bar = ProgressBar("bundles", 200, stream)
    for done in range(201):
        bar.update(done)
    bar.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 11
    assert lines[-1].endswith("200/200 bundles")
