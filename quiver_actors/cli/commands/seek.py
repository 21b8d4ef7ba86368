"""`quiver subscribers seek`: move a subscriber to another position."""

from __future__ import annotations

import argparse
import datetime
from typing import TYPE_CHECKING

from quiver_actors.base.model import DEFAULT_TOPIC, BundleId
from quiver_actors.cli import run_dir
from quiver_actors.cli.consent import add_confirmation, is_confirmed
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from quiver_actors.client.subscribe_request import SeekReport, Start

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Move a subscriber to another position. Everything before counts as done: what it was owed of it is dropped, and its consumers are told so by
gap notices. Everything from there on is owed, also what it had acknowledged before, as far as it is still stored. Claims of its consumers
end: what they hold may still be worked on, but their acknowledgements are refused.

  earliest             the oldest bundle that is stored
  latest               behind everything that was pushed until now
  2026-01-31T12:00Z    the first bundle taken in at or after that time; a time zone is needed
  CORE/SEGMENT/BUNDLE  that bundle; on other cores what was taken in since then
"""


def add_parser(commands: Subparsers) -> None:
    """Add `quiver subscribers seek` with its options to the command line."""
    parser = commands.add_parser(
        "seek",
        help="move a subscriber to another position",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("subscriber")
    parser.add_argument("position", help="earliest, latest, a time, or a bundle: see above")
    parser.add_argument("--topic", metavar="TOPIC", default=DEFAULT_TOPIC, help=f"of this topic ({DEFAULT_TOPIC})")
    add_confirmation(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object that says what was done")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning, UnknownTopic, UnknownSubscriber, WorkerUnavailable; UsageError for an invalid position."""
    start = parse_position(arguments.position, arguments.topic)
    # Imported here: the client loads pyarrow, which most commands do not need.

    subscriber, topic = arguments.subscriber, arguments.topic
    with run_dir.connect_to_node(arguments) as client:
        report = client.seek(subscriber, start, topic=topic, dry_run=True)
        question = f"Let {subscriber} skip {report.skipped:,} bundles for good, and get {report.again:,} again?"
        is_done = not arguments.dry_run and is_confirmed(arguments, question)
        if is_done:
            report = client.seek(subscriber, start, topic=topic)
    _show(report, is_done, arguments)
    return 0


def parse_position(text: str, topic: str) -> Start:
    """
    Raises:
        UsageError: it is no position.
    """
    if text in ("earliest", "latest"):
        return text
    numbers = text.split("/")
    if len(numbers) == 3 and all(number.isascii() and number.isdigit() for number in numbers):
        return BundleId(topic, *map(int, numbers))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise UsageError(
            f"position {text!r} is not understood: expected earliest, latest, a time with its zone such as "
            "2026-01-31T12:00Z, or core/segment/bundle"
        )
    return moment


def _show(report: SeekReport, is_done: bool, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"done": is_done, "skipped": report.skipped, "again": report.again})
        return
    skips, gets = ("skips", "gets") if is_done else ("would skip", "would get")
    who = f"subscriber {arguments.subscriber} of topic {arguments.topic}"
    print(f"quiver: {who} {skips} {report.skipped:,} bundles and {gets} {report.again:,} again")
