"""`quiver tail`: the bundles of a topic as they are sealed. Reads as a subscriber of its own, which goes when the command does."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from quiver_actors.cli import run_dir
from quiver_actors.errors import UnknownSubscriber
from quiver_actors.model import ONLOOKER_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from quiver_actors.client import Delivery

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1
ORPHAN_TTL_SECONDS = 60.0
"""Should the command be killed, its subscriber holds nothing for longer."""
_IDLE_SECONDS = 0.5

_DESCRIPTION = """\
Print bundles as they are sealed, until interrupted: one line a bundle, and the first rows of each slot with --rows. It takes nothing from
other subscribers, and leaves nothing behind; a topic that has no others keeps everything.
"""
_EPILOG = """\
examples:
  quiver tail clicks --rows 3
  quiver tail clicks --from earliest --until-idle 2 --json

exit codes:
  0    interrupted, or --count or --until-idle has come
  1    unexpected error
  2    wrong arguments, or no such topic
  3    not running
"""


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "tail",
        help="print bundles as they are sealed",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from", dest="start", choices=("latest", "earliest"), default="latest", help="where to begin (latest)"
    )
    parser.add_argument(
        "--slot", metavar="SLOT", action="append", help="only this slot, by name or number; may be repeated"
    )
    parser.add_argument("--rows", metavar="N", type=int, default=0, help="rows of each slot to print (0)")
    parser.add_argument("--count", metavar="N", type=int, help="end after so many bundles")
    parser.add_argument("--until-idle", metavar="SECONDS", type=float, help="end when nothing came for so long")
    parser.add_argument("--json", action="store_true", help="one JSON object a bundle, one a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UnknownTopic, UnknownSlot, NotRunning."""
    from quiver_actors.client import connect

    slots = None if arguments.slot is None else [int(slot) if slot.isdecimal() else slot for slot in arguments.slot]
    subscriber = f"{ONLOOKER_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    with connect(run_dir.find_run_dir(arguments)) as client:
        try:
            with client.subscribe(
                subscriber, topic=arguments.topic, start=arguments.start, slots=slots, orphan_ttl=ORPHAN_TTL_SECONDS
            ) as deliveries:
                _print_all(deliveries, arguments)
        except KeyboardInterrupt:
            return 0
        finally:
            # What went wrong before must not be hidden: where it has not begun, nobody knows it.
            with contextlib.suppress(UnknownSubscriber):
                client.unsubscribe(subscriber, topic=arguments.topic)
    return 0


def _print_all(deliveries: Any, arguments: argparse.Namespace) -> None:
    printed, heard_at = 0, time.monotonic()
    show = _show_json if arguments.json else _show
    while arguments.count is None or printed < arguments.count:
        delivery = deliveries.get(_IDLE_SECONDS)
        if delivery is None:
            if arguments.until_idle is not None and time.monotonic() - heard_at >= arguments.until_idle:
                return
            continue
        with delivery:
            show(delivery, arguments.rows)
        printed, heard_at = printed + 1, time.monotonic()
        sys.stdout.flush()


def _show(delivery: Delivery, rows: int) -> None:
    bundle = delivery.bundle_id
    taken_in = delivery.ingestion_unix_ns
    when = "-" if not taken_in else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(taken_in / 1e9))
    slots = ", ".join(f"{name}: {batch.num_rows:,} rows" for name, batch in _named(delivery).items())
    print(f"{when}  {bundle.core}/{bundle.segment_seq}/{bundle.bundle_index}  {slots}{_trace(delivery)}")
    if rows > 0:
        for name, batch in _named(delivery).items():
            for row in _values(batch, rows):
                print(f"    {name}  {row}")


def _trace(delivery: Delivery) -> str:
    traceparent = delivery.trace_context.get("traceparent")
    return f"  trace {traceparent}" if traceparent else ""


def _show_json(delivery: Delivery, rows: int) -> None:
    import json

    bundle = delivery.bundle_id
    slots = {
        str(name): {
            "rows": batch.num_rows,
            "columns": batch.schema.names,
            **({"values": _values(batch, rows)} if rows > 0 else {}),
        }
        for name, batch in _named(delivery).items()
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        **bundle._asdict(),
        "ingestion_unix_ns": delivery.ingestion_unix_ns,
        "trace_context": delivery.trace_context,
        "slots": slots,
    }
    text = json.dumps(document, default=str)
    if "NaN" in text or "Infinity" in text:
        # JSON has no such numbers: null, as in the other commands.
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    print(text)


def _values(batch: pa.RecordBatch, rows: int) -> list[dict[str, Any]]:
    """The first rows."""
    shown = batch.slice(0, rows)
    columns = dict(zip(shown.schema.names, shown.columns, strict=True))
    return [{name: _value(column, row) for name, column in columns.items()} for row in range(shown.num_rows)]


def _value(column: pa.Array, row: int) -> Any:
    """As Python has it; where it has no such value, such as a time after the year 9999, as Arrow writes it."""
    try:
        return column[row].as_py()
    except (ArithmeticError, LookupError, ValueError):
        return column.slice(row, 1).to_string(skip_new_lines=True)[1:-1].strip()


def _named(delivery: Delivery) -> dict[str | int, Any]:
    """Batches by the slot's name, or its number where it has none."""
    table = delivery.slot_table
    return {table.name_of(slot_id) or slot_id: batch for slot_id, batch in delivery.slots.items()}
