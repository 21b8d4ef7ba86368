"""`quiver tail`: the bundles of a topic as soon as they are durable. Reads as a subscriber of its own, which goes when the command does."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quiver_actors.base.model import ONLOOKER_PREFIX
from quiver_actors.cli import run_dir
from quiver_actors.cli.durations import duration_seconds
from quiver_actors.cli.older_bundles import older_bundles, older_segments
from quiver_actors.cli.times import moment, unix_ns
from quiver_actors.cli.values import json_text, value_of
from quiver_actors.errors import DataLost, FormatError, QuiverError, UnknownSubscriber, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from quiver_actors.client import Client
    from quiver_actors.client.bundle import StoredBundle
    from quiver_actors.query.conditions import Term

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1
ORPHAN_TTL_SECONDS = 60.0
"""Should the command be killed, its subscriber holds nothing for longer."""
_IDLE_SECONDS = 0.5

_DESCRIPTION = """\
Print bundles as soon as they are durable, until interrupted: one line a bundle, and the first rows of each slot with --rows. It takes
nothing from other subscribers, and leaves nothing behind; a topic that has no others keeps everything.

--where prints only rows, and bundles with such rows, for which all conditions are true: comparisons of a column with literals (= != > >=
< <= IN, IS NULL, IS NOT NULL), joined by AND, as Spark's option `where` takes them. Texts and times stand in single quotes, odd column
names in backticks. A slot that lacks one of the columns has no such rows.
"""
_EPILOG = """\
examples:
  quiver tail clicks --rows 3
  quiver tail clicks --from earliest --until-idle 2 --json
  quiver tail clicks --from 2026-01-31T12:00Z --until-idle 2
  quiver tail clicks --from earliest --until-idle 2 --where "id >= 2 AND id IS NOT NULL" --rows 3

exit codes:
  0    interrupted, or --count or --until-idle has come
  1    unexpected error
  2    wrong arguments, no such topic, or a condition that does not fit the type of its column
  3    not running
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver tail` with its options to the command line."""
    parser = subparsers.add_parser(
        "tail",
        help="print bundles as soon as they are durable",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    run_dir.add_data_dir(parser)
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "--from",
        dest="start",
        metavar="POSITION",
        type=_position,
        help="where to begin: latest, earliest (what is on the disk), or a time with its zone, archived bundles included (latest; with "
        "--data-dir earliest)",
    )
    parser.add_argument(
        "--slot", metavar="SLOT", action="append", help="only this slot, by name or number; may be repeated"
    )
    parser.add_argument(
        "--where", metavar="CONDITIONS", help="only rows like these, such as \"id >= 100 AND kind IN ('a', 'b')\""
    )
    parser.add_argument("--rows", metavar="N", type=int, default=0, help="rows of each slot to print (0)")
    parser.add_argument("--count", metavar="N", type=int, help="end after so many bundles")
    parser.add_argument(
        "--until-idle",
        metavar="DURATION",
        type=duration_seconds,
        help="end when nothing came for so long (never; with --data-dir at the end)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a bundle, one a line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UnknownTopic, UnknownSlot, NotRunning, ConfigError (conditions that are not understood), UsageError (that do not fit)."""
    from quiver_actors.query.conditions import parse_terms

    _fill_in(arguments)
    terms = () if arguments.where is None else parse_terms(arguments.where)
    slots = None if arguments.slot is None else [int(slot) if slot.isdecimal() else slot for slot in arguments.slot]
    subscriber = f"{ONLOOKER_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    printer = Printer(arguments, Wanted(terms))
    with run_dir.connect_to_node(arguments) as client:
        try:
            with client.subscribe(
                subscriber,
                topic=arguments.topic,
                start=_start(client, arguments, printer.since_unix_ns),
                slots=slots,
                orphan_ttl=ORPHAN_TTL_SECONDS,
            ) as deliveries:
                if printer.since_unix_ns:
                    # After the subscriber has begun: nothing leaves the disk now that it has not got.
                    _print_older(older_bundles(client, arguments.topic, printer.since_unix_ns, slots), printer)
                _print_all(deliveries, arguments, printer)
        except KeyboardInterrupt:
            return 0
        finally:
            # What went wrong before must not be hidden: where it has not begun, nobody knows it.
            with contextlib.suppress(UnknownSubscriber):
                client.unsubscribe(subscriber, topic=arguments.topic)
    return 0


def _fill_in(arguments: argparse.Namespace) -> None:
    """Decide where to begin and end where nobody has said it. Into a directory that this command has open, nobody pushes."""
    is_stored_only = arguments.data_dir is not None
    if is_stored_only and arguments.start == "latest":
        raise UsageError(
            "--from latest waits for what comes, and nothing comes into a directory that this command has open: leave it out"
        )
    if arguments.start is None:
        arguments.start = "earliest" if is_stored_only else "latest"
    if arguments.until_idle is None and is_stored_only:
        arguments.until_idle = 0.0


def _position(text: str) -> Any:
    """Read a position. Raises argparse.ArgumentTypeError."""
    return text if text in ("latest", "earliest") else moment(text)


def _start(client: Client, arguments: argparse.Namespace, since_unix_ns: int) -> Any:
    """Where the subscriber begins: with all that is on the disk if something that is wanted has left it."""
    if since_unix_ns and older_segments(client, arguments.topic, since_unix_ns):
        return "earliest"
    return arguments.start


def _print_older(bundles: Iterable[StoredBundle], printer: Printer) -> None:
    for bundle in bundles:
        try:
            printer.show(bundle)
        except (FormatError, DataLost) as error:
            printer.leave_out(bundle, error)
        if printer.is_done:
            return


def _print_all(deliveries: Any, arguments: argparse.Namespace, printer: Printer) -> None:
    heard_at = time.monotonic()
    while not printer.is_done:
        delivery = deliveries.get(_IDLE_SECONDS)
        if delivery is None:
            if not has_reader():
                return
            if arguments.until_idle is not None and time.monotonic() - heard_at >= arguments.until_idle:
                return
            continue
        heard_at = time.monotonic()
        try:
            with delivery:
                printer.show(delivery)
        except FormatError as error:
            # The worker has been told: it saves what it can, and what is whole comes again.
            printer.leave_out(delivery, error)


class Printer:
    """Prints bundles until there were as many as `--count` says."""

    def __init__(self, arguments: argparse.Namespace, wanted: Wanted) -> None:
        self.since_unix_ns = 0 if isinstance(arguments.start, str) else unix_ns(arguments.start)
        """Older bundles are not printed; 0: all are."""
        self._rows = arguments.rows
        self._left = arguments.count
        self._show = _show_json if arguments.json else _show
        self._wanted = wanted

    @property
    def is_done(self) -> bool:
        """Whether it prints no more."""
        return self._left is not None and self._left <= 0

    def show(self, bundle: StoredBundle) -> None:
        """Print what is wanted of a bundle. Raises FormatError, DataLost: it cannot be read."""
        if self.is_done or 0 < (bundle.ingestion_unix_ns or 0) < self.since_unix_ns:
            return
        slots = self._wanted.of(bundle)
        if slots is not None:
            self._show(bundle, slots, self._rows)
            self._count()

    def leave_out(self, bundle: StoredBundle, error: QuiverError) -> None:
        """Name a bundle that cannot be read."""
        print(f"{bundle.bundle_id} is left out: {error}", file=sys.stderr)
        self._count()

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1
        sys.stdout.flush()


class Rows(NamedTuple):
    """Rows of one slot of a bundle."""

    batch: pa.RecordBatch
    indexes: Sequence[int]
    """Which rows of the batch, ascending."""


class Wanted:
    """The conditions of `--where`, and what they leave of each bundle."""

    def __init__(self, terms: tuple[Term, ...]) -> None:
        self._terms = terms
        self._has_warned = False

    def of(self, delivery: StoredBundle) -> dict[str | int, Rows] | None:
        """Return the rows that are wanted, by slot; None if the bundle has none.

        Raises:
            UsageError: a condition does not fit the type of its column.
        """
        named = _named(delivery)
        if not self._terms:
            return {name: Rows(batch, range(batch.num_rows)) for name, batch in named.items()}
        columns = {term.column for term in self._terms}
        fitting = {name: batch for name, batch in named.items() if columns <= {*batch.schema.names}}
        if not fitting:
            self._warn(delivery, columns, named)
        found = {name: Rows(batch, self._indexes(batch)) for name, batch in fitting.items()}
        return {name: rows for name, rows in found.items() if rows.indexes} or None

    def _indexes(self, batch: pa.RecordBatch) -> list[int]:
        from quiver_actors.query.conditions import wanted_mask

        for term in self._terms:
            term.check(batch.schema.field(term.column).type)
        mask = wanted_mask(batch, self._terms).to_pylist()
        return [index for index, is_wanted in enumerate(mask) if is_wanted]

    def _warn(self, delivery: StoredBundle, columns: set[str], named: dict[str | int, pa.RecordBatch]) -> None:
        """Say once that a bundle cannot have wanted rows: a column may be misspelt."""
        if not self._has_warned:
            self._has_warned = True
            there = "; ".join(f"{name}: {', '.join(batch.schema.names)}" for name, batch in named.items())
            print(
                f"{delivery.bundle_id} is left out: no slot of it has the columns {', '.join(sorted(columns))} of --where, it has {there}."
                " Others like it are left out without a word",
                file=sys.stderr,
            )


def _show(delivery: StoredBundle, found: dict[str | int, Rows], rows: int) -> None:
    bundle = delivery.bundle_id
    taken_in = delivery.ingestion_unix_ns
    when = "-" if not taken_in else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(taken_in / 1e9))
    slots = ", ".join(f"{name}: {len(wanted.indexes):,} rows" for name, wanted in found.items())
    print(f"{when}  {bundle.core}/{bundle.segment_seq}/{bundle.bundle_index}  {slots}{_trace(delivery)}")
    if rows > 0:
        for name, wanted in found.items():
            for row in _values(wanted, rows):
                print(f"    {name}  {row}")


def _trace(delivery: StoredBundle) -> str:
    traceparent = delivery.trace_context.get("traceparent")
    return f"  trace {traceparent}" if traceparent else ""


def _show_json(delivery: StoredBundle, found: dict[str | int, Rows], rows: int) -> None:
    bundle = delivery.bundle_id
    slots = {
        str(name): {
            "rows": len(wanted.indexes),
            "columns": wanted.batch.schema.names,
            **({"values": _values(wanted, rows)} if rows > 0 else {}),
        }
        for name, wanted in found.items()
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        **bundle._asdict(),
        "ingestion_unix_ns": delivery.ingestion_unix_ns,
        "trace_context": delivery.trace_context,
        "slots": slots,
    }
    print(json_text(document))


def _values(wanted: Rows, rows: int) -> list[dict[str, Any]]:
    """The first rows that are wanted."""
    columns = dict(zip(wanted.batch.schema.names, wanted.batch.columns, strict=True))
    return [{name: value_of(column, row) for name, column in columns.items()} for row in wanted.indexes[:rows]]


def _named(delivery: StoredBundle) -> dict[str | int, pa.RecordBatch]:
    """Batches by the slot's name, or its number where it has none."""
    table = delivery.slot_table
    return {table.name_of(slot_id) or slot_id: batch for slot_id, batch in delivery.slots.items()}


def has_reader() -> bool:
    """Whether standard output has a reader. The reader of a pipe may have left, as `head` does after its last line.

    A command that waits for events has to ask: it would learn of it only by its next line, which may never come.
    """
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return True
    poll = select.poll()
    poll.register(descriptor, 0)
    return not any(events & select.POLLERR for _, events in poll.poll(0))
