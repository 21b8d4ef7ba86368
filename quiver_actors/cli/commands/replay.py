"""`quiver subscribers replay-dead-letters`: bundles of a dead letter topic go back to where they came from."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from quiver_actors.cli import run_dir
from quiver_actors.cli.consent import add_confirmation, is_confirmed
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.progress_bar import StatusLine

if TYPE_CHECKING:
    from quiver_actors.client import Client
    from quiver_actors.client.replay import ReplayReport
    from quiver_actors.store.subscriber.dead_letters import Origin

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Send the bundles of a dead letter topic back to the topics that they came from, as they were before: durable there first, then done with
here. They get new bundle ids there and go to all subscribers of the topic. What was sent back is remembered by the subscriber
`replay-dead-letters` of the dead letter topic; an interrupted command may send up to 64 bundles twice.
"""


def add_parser(commands: Subparsers) -> None:
    """Add `quiver subscribers replay-dead-letters` with its options to the command line."""
    parser = commands.add_parser(
        "replay-dead-letters",
        help="send the bundles of a dead letter topic back to where they came from",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("topic", help="the dead letter topic, such as default-dead")
    parser.add_argument("--subscriber", metavar="ID", help="only what this subscriber could not take")
    parser.add_argument("--origin", metavar="TOPIC", help="only what came from this topic")
    add_confirmation(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object that says what was done")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning, UnknownTopic, WorkerUnavailable; UsageError where nobody can be asked."""
    # Imported here: the client loads pyarrow, which most commands do not need.
    from quiver_actors.client.replay import ReplayReport, count_letters, replay

    def wants(origin: Origin) -> bool:
        is_subscribers = arguments.subscriber in (None, origin.subscriber)
        return is_subscribers and arguments.origin in (None, origin.topic)

    with run_dir.connect_to_node(arguments) as client:
        if arguments.dry_run:
            report = count_letters(client, arguments.topic, wants)
        elif arguments.yes or _agrees(arguments, client, wants):
            with StatusLine() as line:
                report = replay(
                    client, arguments.topic, wants, lambda now: line.say(f"{_sent(now):,} bundles sent back")
                )
        else:
            report = ReplayReport()
    _show(report, arguments)
    return 1 if report.failed else 0


def _sent(report: ReplayReport) -> int:
    return sum(report.replayed.values())


def _agrees(arguments: argparse.Namespace, client: Client, wants: Callable[[Origin], bool]) -> bool:
    from quiver_actors.client.replay import count_letters

    report = count_letters(client, arguments.topic, wants)
    letters = _sent(report)
    return letters == 0 or is_confirmed(arguments, f"Send {letters:,} bundles back to their topics?")


def _show(report: ReplayReport, arguments: argparse.Namespace) -> None:
    if arguments.json:
        document = {
            "dry_run": arguments.dry_run,
            "replayed": [
                {"topic": key.topic, "subscriber": key.subscriber, "bundles": count}
                for key, count in sorted(report.replayed.items())
            ],
            "not_wanted": report.not_wanted,
            "no_letters": report.no_letters,
            "failed": report.failed,
            "error": report.error,
        }
        print_json(document)
        return
    verb = "would send" if arguments.dry_run else "sent"
    for key, count in sorted(report.replayed.items()):
        print(f"quiver: {verb} {count:,} bundles back to topic {key.topic}, which {key.subscriber} could not take")
    if not report.replayed:
        print(f"quiver: {verb} nothing back")
    for count, what in ((report.not_wanted, "are of others"), (report.no_letters, "do not say where they come from")):
        if count:
            print(f"quiver: {count:,} bundles of topic {arguments.topic} {what} and stay")
    if report.failed:
        print(f"quiver: {report.failed:,} bundles could not be sent back and stay: {report.error}")
