"""`quiver push`: a file, or standard input, into a topic."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from quiver_actors.base.units import format_duration
from quiver_actors.cli import run_dir
from quiver_actors.cli.durations import duration_seconds
from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.cli.storage import counted
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1

_DESCRIPTION = """\
Push the rows of a file into a topic, a bundle for every --rows rows. What is printed is durable as it says. If it is interrupted, the
bundles before are stored; pushed again, they are stored again.
"""
_EPILOG = """\
examples:
  quiver push flights.parquet --topic travel --slot flights
  quiver push - --format jsonl --topic clicks --rows 1000

exit codes:
  0    everything was pushed
  1    unexpected error, or the node took no more (what was pushed before is stored)
  2    wrong arguments, no such topic or slot, or the file is not what it should be
  3    not running
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver push` with its options to the command line."""
    parser = subparsers.add_parser(
        "push",
        help="push a file into a topic",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("file", metavar="FILE", help="Parquet, Arrow, CSV or JSON lines; - for standard input")
    parser.add_argument("--topic", metavar="TOPIC", default="default", help="where it goes (default)")
    parser.add_argument("--slot", metavar="SLOT", help="name or number of the slot (the topic's only one)")
    parser.add_argument(
        "--format", choices=("parquet", "arrow", "csv", "tsv", "jsonl"), help="of the file (by its name or beginning)"
    )
    parser.add_argument("--rows", metavar="N", type=_at_least_one, default=10_000, help="rows of a bundle (10000)")
    parser.add_argument("--key", metavar="KEY", help="bundles of one key go to one worker, in order")
    parser.add_argument(
        "--timeout", metavar="DURATION", type=duration_seconds, default=30.0, help="longest wait for the node (30s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def _at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError, OSError for the file; what `Client.push_many` raises."""
    import time

    from quiver_actors.cli.tables_in import read_batches

    size_bytes = _size_of(arguments.file)
    rows = 0
    started_ns = time.monotonic_ns()
    with run_dir.connect_to_node(arguments) as client, ProgressBar(size_bytes) as bar:

        def bundles() -> Iterator[Any]:
            nonlocal rows
            for batch in read_batches(arguments.file, arguments.format, arguments.rows, bar.advance):
                rows += batch.num_rows
                yield _bundle(batch, arguments.slot)

        receipts = client.push_many(bundles(), topic=arguments.topic, key=arguments.key, timeout=arguments.timeout)
    durabilities = sorted({receipt.durability.name.lower() for receipt in receipts})
    took_ns = time.monotonic_ns() - started_ns
    if arguments.json:
        import msgspec

        document = {"schema_version": SCHEMA_VERSION, "topic": arguments.topic, "bundles": len(receipts), "rows": rows}
        ids = [receipts[0].bundle_id, receipts[-1].bundle_id] if receipts else []
        document |= {"durability": durabilities, "first_and_last": ids, "took_ns": took_ns}
        print(msgspec.json.encode(document).decode())
    else:
        durable = f", {', '.join(durabilities)}" if durabilities else ""
        what = f"{counted(rows, 'row')} in {counted(len(receipts), 'bundle')} to topic {arguments.topic}"
        print(f"quiver: pushed {what} in {format_duration(took_ns)}{durable}")
    return 0


def _size_of(path: str) -> int:
    """0 for standard input and pipes. Raises UsageError where there is no such file, or it is a directory."""
    if os.path.isdir(path):
        raise UsageError(f"{path} is a directory: name its files one after the other")
    try:
        return 0 if path == "-" else os.path.getsize(path)
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}; `-` is standard input") from error


def _bundle(batch: pa.RecordBatch, slot: str | None) -> Any:
    if slot is None:
        return batch
    return {int(slot) if slot.isdecimal() else slot: batch}
