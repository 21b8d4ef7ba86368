"""`quiver query`: one SQL statement over what is stored now, what was pushed a moment ago included."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import format_size
from quiver_actors.cli import archives, run_dir
from quiver_actors.cli.durations import positive_duration_seconds
from quiver_actors.cli.lean_arrow import load_lean_arrow
from quiver_actors.cli.progress_bar import StatusLine
from quiver_actors.cli.times import moment
from quiver_actors.errors import DataLost, FormatError, UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

DAMAGE = 5
LIMIT_ON_TERMINALS = 100
_FORMATS = ("table", "json", "csv", "arrow", "parquet")

_DESCRIPTION = """\
Run one SQL statement that reads over what is stored now, sealed or not. A table is a slot of a topic (travel.flights), or a topic that has
one slot (clicks); names with hyphens or capitals stand in double quotes. A statement that names _quiver_core, _quiver_segment,
_quiver_bundle or _quiver_ingestion_time sees where its rows are stored. The tables quiver.topics, quiver.segments, quiver.subscribers and
quiver.gaps describe the node. The statement takes nothing from subscribers, changes nothing, and reaches neither files nor the network.

Topics hold what is on the disk. With --from they hold what was ingested since, also where that is only in the node's archive. With
--archive the statement asks what a node has archived in an object store, and no node needs to run.
"""
_EPILOG = """\
examples:
  quiver query "SELECT count(*) FROM travel.flights"
  quiver query "SELECT id % 10 AS digit, count(*) FROM travel.flights WHERE _quiver_ingestion_time >= now() - INTERVAL 5 MINUTE GROUP BY 1"
  quiver query "SELECT topic, sum(size_bytes) AS size_bytes FROM quiver.segments GROUP BY 1" --json
  quiver query "FROM travel.flights" --format parquet --output flights-now.parquet
  quiver query "SELECT max(id) AS newest FROM travel.flights" --engine datafusion
  quiver query "SELECT count(*) FROM travel.flights" --from 2026-01-31T12:00Z
  quiver query "SELECT count(*) FROM travel" --archive file:///var/lib/quiver-archive --node worker-7

exit codes:
  0    done, or --follow was interrupted
  1    unexpected error
  2    wrong arguments or statement, a topic that has no common schema, or the extra `query` is not installed
  3    not running
  5    a bundle that the statement reads is damaged, lost, or has two columns of a name that it reads; --skip-damaged leaves it out
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver query` with its options to the command line."""
    parser = subparsers.add_parser(
        "query",
        help="ask what is stored, in SQL",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    run_dir.add_data_dir(parser)
    archives.add_options(parser, "ask")
    parser.add_argument("statement", metavar="SQL")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="TIME",
        type=moment,
        help="only what was ingested since, archived bundles included",
    )
    parser.add_argument("--engine", choices=("duckdb", "datafusion"), default="duckdb", help="what runs it (duckdb)")
    parser.add_argument("--format", choices=_FORMATS, default="table", help="of the result (table)")
    parser.add_argument("--json", action="store_true", help="as --format json: one JSON object a row, one a line")
    parser.add_argument("--output", metavar="FILE", help="write the result there; for csv, arrow and parquet")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_row_count,
        help=f"most rows of the result; 0: all ({LIMIT_ON_TERMINALS} on a terminal, else 0)",
    )
    parser.add_argument(
        "--follow", metavar="DURATION", type=positive_duration_seconds, help="run it again and again, so far apart"
    )
    parser.add_argument("--skip-damaged", action="store_true", help="leave out bundles that are damaged or lost")
    parser.set_defaults(run=run)


def _row_count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows: expected 0 or more")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError, UnsupportedType, NotRunning, ArchiveError."""
    form = "json" if arguments.json else arguments.format
    if arguments.output is not None and (form in ("table", "json") or arguments.follow):
        raise UsageError("--output is for one result in --format csv, arrow or parquet")
    load_lean_arrow()
    # What is loaded until the first statement runs is no garbage: looking for some takes a tenth of a short statement's time.
    gc.disable()
    from quiver_actors.base.widening import AmbiguousColumns

    try:
        archive = archives.opened_archive(arguments)
        with archive or run_dir.connect_to_node(arguments) as client:
            while True:
                if archive is not None:
                    archive.refresh()
                _show(client, arguments, form)
                if arguments.follow is None:
                    return 0
                print(end="\n" if form == "table" else "", flush=True)
                time.sleep(arguments.follow)
    except (FormatError, DataLost, AmbiguousColumns) as error:
        print(f"quiver: {error} (--skip-damaged)", file=sys.stderr)
        return DAMAGE
    except KeyboardInterrupt:
        if arguments.follow is None:
            raise
        return 0


def _show(client: Any, arguments: argparse.Namespace, form: str) -> None:
    from quiver_actors.cli.query_output import print_json, print_table, write_file

    choice = {"engine": arguments.engine, "start": arguments.start, "skip_damaged": arguments.skip_damaged}
    limit = arguments.limit
    if limit is None and arguments.output is None and sys.stdout.isatty():
        limit = LIMIT_ON_TERMINALS
    limit = limit or None
    # Rows that come to the terminal as they are computed would stand in the line.
    is_quiet = form in ("json", "csv") and arguments.output is None and sys.stdout.isatty()
    with StatusLine() as line:
        reader = client.sql(arguments.statement, **choice, progress=None if is_quiet else partial(_say, line))
        gc.enable()
        if form == "table":
            print_table(_until_read(reader, line), limit)
        elif form == "json":
            print_json(reader, limit)
        else:
            row_count = write_file(reader, limit, form, arguments.output)
    if arguments.output is not None:
        print(f"{arguments.output}: {row_count:,} rows")


def _say(line: StatusLine, done_bytes: int, total_bytes: int) -> None:
    line.say(f"{format_size(done_bytes)} of {format_size(total_bytes)} read")


def _until_read(reader: Any, line: StatusLine) -> Any:
    """The same rows. The line is gone when all of them have been computed."""
    import pyarrow as pa

    def batches() -> Iterator[Any]:
        yield from reader
        line.clear()

    return pa.RecordBatchReader.from_batches(reader.schema, batches())
