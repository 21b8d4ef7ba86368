"""`quiver transactions`: what is staged on a node and waits for its decision, and ending it by hand.

Talks to the workers: what they hold is not in the counters page one by one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from quiver_actors.base.units import SECOND_NS, format_size
from quiver_actors.cli import run_dir
from quiver_actors.cli.consent import add_consent
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.watch import add_watch, watching
from quiver_actors.errors import UsageError
from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.base.protocol.messages import StageInfo
    from quiver_actors.client import Client

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
exit codes:
  0    shown or done
  1    unexpected error, or the decision log cannot be read or written
  2    wrong arguments, nothing is staged for that transaction, or it was decided otherwise
  3    not running
"""
_HEADINGS = (
    "TRANSACTION",
    "EPOCH",
    "TOPIC",
    "CORE",
    "STAGE",
    "PART",
    "STATE",
    "BUNDLES",
    "ROWS",
    "SIZE",
    "AGE",
    "ASKS IN",
    "NOTE",
)
_TEXT_COLUMNS = (0, 2, 6, 12)


class _Staged(NamedTuple):
    topic: str
    core: int
    incarnation: str
    info: StageInfo


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver transactions` with its options to the command line."""
    parser = subparsers.add_parser(
        "transactions",
        help="list staged bundles that are not decided yet, publish or drop them by hand",
        description="Look at the staged bundles of transactions, and end a transaction by hand.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _add(commands, "list", "what is staged on this node, oldest first", _list)
    add_watch(listing)
    publish = _add(
        commands, "publish", "make the prepared bundles of a transaction visible, as its driver has decided", _publish
    )
    drop = _add(commands, "drop", "drop the staged bundles of a transaction that was never committed", _drop)
    for command in (publish, drop):
        command.add_argument("transaction", help="its id")
        command.add_argument(
            "--decisions", metavar="PLACE", help="its decision log (default: the one that its stages name)"
        )
    drop.add_argument("--force", action="store_true", help="also when the decision log cannot be asked")
    add_consent(drop)


def _add(
    commands: Subparsers, name: str, help_text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
    run_dir.add_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_all(arguments))


def _look_at_all(arguments: argparse.Namespace) -> int:
    with _connect(arguments) as client:
        found = sorted(_staged(client), key=lambda each: each.info.begun_unix_ns)
    now_ns = time.time_ns()
    if arguments.json:
        stages = [_as_json(each, now_ns) for each in found]
        print_json({"stages": stages})
    elif found:
        _print_table([_row(each, now_ns) for each in found])
    else:
        print("nothing is staged")
    return ExitCode.CLEAN


def _publish(arguments: argparse.Namespace) -> int:
    """Publish only what the decision log says: publishing anything else could show bundles twice."""
    with _connect(arguments) as client:
        found = _of_transaction(client, arguments.transaction)
        decision = _decision(client, arguments, found)
        if decision is None or not decision.is_commit:
            raise UsageError(
                f"transaction {arguments.transaction!r} was not committed: nothing is published; drop it, or let its driver decide"
            )
        here = {(each.incarnation, each.info.number) for each in found}
        tokens = [token for token in decision.tokens if (token.incarnation, token.number) in here]
        client.publish(tokens)
    if arguments.json:
        print_json({"transaction": arguments.transaction, "published": len(tokens), "stages": len(found)})
    else:
        print(f"quiver: published {len(tokens)} of {len(found)} stages of transaction {arguments.transaction}")
    return ExitCode.CLEAN


def _drop(arguments: argparse.Namespace) -> int:
    from quiver_actors.errors import DecisionUnavailable

    with _connect(arguments) as client:
        found = _of_transaction(client, arguments.transaction)
        if arguments.dry_run:
            return _say_dropped(arguments, len(found))
        try:
            decision = _abort(client, arguments, found)
        except DecisionUnavailable as error:
            if not arguments.force:
                raise UsageError(
                    f"{error}; if the log is lost for ever, give --force to drop the transaction anyway"
                ) from error
            decision = None
        if decision is not None and decision.is_commit:
            raise UsageError(f"transaction {arguments.transaction!r} was committed: publish it, it cannot be dropped")
        for each in found:
            client.drop_stages(each.topic, each.core, each.incarnation, [each.info.number], "dropped by an operator")
    return _say_dropped(arguments, len(found))


def _say_dropped(arguments: argparse.Namespace, stages: int) -> int:
    if arguments.json:
        print_json({"transaction": arguments.transaction, "dry_run": arguments.dry_run, "dropped": stages})
    else:
        done = "would decide against it and drop" if arguments.dry_run else "dropped"
        print(f"quiver: {done} {stages} stages of transaction {arguments.transaction}")
    return ExitCode.CLEAN


def _decision(client: Client, arguments: argparse.Namespace, found: Sequence[_Staged]) -> Any:
    from quiver_actors.transactions import Decisions

    place = arguments.decisions or found[0].info.decisions
    return Decisions(place).newest(arguments.transaction) if place else client.find_decision(arguments.transaction)


def _abort(client: Client, arguments: argparse.Namespace, found: Sequence[_Staged]) -> Any:
    """Decide against it, so that a driver that is only slow learns of it."""
    from quiver_actors.transactions import Decisions

    place, epoch = arguments.decisions or found[0].info.decisions, max(each.info.epoch for each in found)
    log = Decisions(place) if place else None
    return log.abort(arguments.transaction, epoch) if log else client.decide(arguments.transaction, epoch, None)


def _of_transaction(client: Client, txn_id: str) -> list[_Staged]:
    found = [each for each in _staged(client) if each.info.txn_id == txn_id]
    if not found:
        raise UsageError(f"nothing is staged here for transaction {txn_id!r}; `quiver transactions list` shows what is")
    return found


def _staged(client: Client) -> Iterator[_Staged]:
    for topic in client.topics():
        for core, (incarnation, infos) in client.staged_of(topic).items():
            yield from (_Staged(topic, core, incarnation, info) for info in infos)


def _connect(arguments: argparse.Namespace) -> Client:
    # Imported here: the client loads pyarrow.

    return run_dir.connect_to_node(arguments)


def _as_json(each: _Staged, now_ns: int) -> dict[str, object]:
    info = each.info
    return {
        "transaction": info.txn_id,
        "epoch": info.epoch,
        "partition": info.partition,
        "attempt": info.attempt,
        "topic": each.topic,
        "core": each.core,
        "stage": info.number,
        "state": info.state,
        "bundles": info.bundles,
        "rows": info.rows,
        "size_bytes": info.size_bytes,
        "age_seconds": (now_ns - info.begun_unix_ns) / SECOND_NS,
        "expires_unix_ns": info.expires_unix_ns,
        "decisions": info.decisions,
        "note": info.note,
    }


def _row(each: _Staged, now_ns: int) -> list[str]:
    info = each.info
    asks_in = max(0, info.expires_unix_ns - now_ns) // SECOND_NS if info.expires_unix_ns else None
    return [
        info.txn_id,
        str(info.epoch),
        each.topic,
        str(each.core),
        str(info.number),
        f"{info.partition}.{info.attempt}",
        info.state,
        f"{info.bundles:,}",
        f"{info.rows:,}",
        format_size(info.size_bytes),
        f"{(now_ns - info.begun_unix_ns) // SECOND_NS} s",
        "-" if asks_in is None else f"{asks_in} s",
        info.note,
    ]


def _print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[column]) for row in [list(_HEADINGS), *rows]) for column in range(len(_HEADINGS))]
    for row in [list(_HEADINGS), *rows]:
        cells = [
            cell.ljust(width) if column in _TEXT_COLUMNS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
