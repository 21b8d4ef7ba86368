"""`quiver subscribers`: who they are, how far behind, which have nobody, dropping one, and what `seek`, `share`, `replay` and `export` add.

Looking reads the counters page alone, as `quiver status` does; only what changes something talks to the workers.
"""

from __future__ import annotations

import argparse
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.cli import run_dir
from quiver_actors.cli.commands import export_progress, replay, seek, share
from quiver_actors.cli.commands.drop_effect import effect_text, freed_bytes
from quiver_actors.cli.consent import add_consent
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.watch import add_watch, watching
from quiver_actors.errors import NotRunning, UnknownSubscriber, UsageError

if TYPE_CHECKING:
    from quiver_actors.base.protocol.messages import SubscriberInfo
    from quiver_actors.cli.documents.backlog import BehindView
    from quiver_actors.client import Client
    from quiver_actors.store.status.status_document import StatusView

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EPILOG = """\
exit codes:
  0    shown or done
  1    unexpected error, or dead letters that could not be sent back
  2    wrong arguments, no such topic or subscriber, or one that is in use
  3    not running
  4    lag --max: some subscriber is further behind
"""


class SubscribersExit(enum.IntEnum):
    """Exit codes of this command alone; they agree with those of `quiver status`."""

    OK = 0
    TOO_FAR_BEHIND = 4


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver subscribers` with its options to the command line."""
    parser = subparsers.add_parser(
        "subscribers",
        help="list subscribers, show how far behind they are, drop, move or share one, replay dead letters",
        description="List durable subscribers, show how far behind they are, drop those that nobody needs any more.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = _add(commands, "list", "all subscribers with their figures", _list)
    listing.add_argument("--json", action="store_true", help="one JSON object, with one for each subscriber and core")
    lag = _add(commands, "lag", "bundles that each subscriber has not resolved yet, sealed or not", _lag)
    lag.add_argument("subscriber", nargs="?", help="only this one")
    once_or_again = lag.add_mutually_exclusive_group()
    once_or_again.add_argument(
        "--max", metavar="BUNDLES", type=int, help="exit code 4 if some subscriber is further behind"
    )
    add_watch(once_or_again)
    lag.add_argument("--json", action="store_true", help="one JSON object, with one for each subscriber")
    orphans = _add(commands, "orphans", "subscribers that no consumer is connected to", _orphans)
    orphans.add_argument("--json", action="store_true", help="one JSON object, with one for each subscriber")
    drop = _add(commands, "drop", "delete a subscriber: what it has not resolved is never delivered to it", _drop)
    drop.add_argument("subscriber")
    drop.add_argument("--force", action="store_true", help="also when consumers are connected")
    add_consent(drop)
    drop.add_argument("--json", action="store_true", help="one JSON object that says what was done")
    for looking in (listing, orphans):
        add_watch(looking)
    seek.add_parser(commands)
    share.add_parser(commands)
    replay.add_parser(commands)
    export_progress.add_parser(commands)


def _add(
    commands: Subparsers, name: str, help_text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=help_text, description=f"{help_text[0].upper()}{help_text[1:]}.")
    run_dir.add_options(parser)
    run_dir.add_data_dir(parser)
    parser.add_argument("--topic", metavar="TOPIC", help="only of this topic")
    parser.set_defaults(run=run)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_all(arguments))


def _look_at_all(arguments: argparse.Namespace) -> int:
    from quiver_actors.cli.commands.status_table import render_subscribers

    status = _look(arguments)
    found = [each for each in status.subscribers if arguments.topic in (None, each.topic)]
    _show(found, render_subscribers(found), as_json=arguments.json)
    return SubscribersExit.OK


def _lag(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_lag(arguments))


def _look_at_lag(arguments: argparse.Namespace) -> int:
    found = [each for each in _summed(arguments) if arguments.subscriber in (None, each.subscriber)]
    if arguments.subscriber is not None and not found:
        raise _unknown(arguments.subscriber, arguments.topic)
    _show(found, _render(found), as_json=arguments.json)
    too_far = arguments.max is not None and any(each.lag_bundles > arguments.max for each in found)
    return SubscribersExit.TOO_FAR_BEHIND if too_far else SubscribersExit.OK


def _orphans(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_orphans(arguments))


def _look_at_orphans(arguments: argparse.Namespace) -> int:
    found = [each for each in _summed(arguments) if not each.connections]
    _show(found, _render(found), as_json=arguments.json, nobody="no orphans")
    return SubscribersExit.OK


def _drop(arguments: argparse.Namespace) -> int:
    """Asks the workers, not the figures: the topic's owner may do this too, and is not shown the node's figures."""
    # Imported here: the client loads pyarrow, which looking does not need.

    with run_dir.connect_to_node(arguments) as client:
        topic, lag, connections = _found(client, arguments)
        freed = freed_bytes(arguments.subscriber, client.subscribers(topic), client.segments(topic))
        if connections and not arguments.force:
            raise UsageError(
                f"subscriber {arguments.subscriber!r} of topic {topic!r} is in use: {connections} consumers are connected; stop them, "
                "or give --force to drop it anyway"
            )
        if arguments.dry_run:
            return _say_dropped(arguments, topic, lag, freed)
        # A consumer may have come since then: the workers know.
        drop = client.unsubscribe if arguments.force else client.drop_orphan
        return _say_dropped(arguments, topic, drop(arguments.subscriber, topic=topic), freed)


def _found(client: Client, arguments: argparse.Namespace) -> tuple[str, int, int]:
    """The subscriber's topic, the bundles that it is owed, and its consumers.

    Raises:
        UnknownSubscriber: no topic that the user may use has it.
        UsageError: several have, and no --topic says which.
    """
    topics = client.topics() if arguments.topic is None else [arguments.topic]
    found: dict[str, list[SubscriberInfo]] = {}
    for topic in topics:
        cores = [each for infos in client.subscribers(topic).values() for each in infos]
        if own := [each for each in cores if each.subscriber == arguments.subscriber]:
            found[topic] = own
    if not found:
        raise _unknown(arguments.subscriber, arguments.topic)
    if len(found) > 1:
        raise UsageError(
            f"subscriber {arguments.subscriber!r} exists in the topics {', '.join(found)}: choose one with --topic"
        )
    ((topic, infos),) = found.items()
    lag = sum(each.pending + each.claimed + each.deferred + each.blocked + each.unsealed for each in infos)
    # A consumer is connected to every core.
    return topic, lag, max(each.connections for each in infos)


def _say_dropped(arguments: argparse.Namespace, topic: str, bundles: int, freed: int | None) -> int:
    if arguments.json:
        found = {"topic": topic, "subscriber": arguments.subscriber, "bundles": bundles}
        found |= {"freed_bytes": freed or 0, "is_last": freed is None}
        print_json({"dry_run": arguments.dry_run, **found})
    else:
        done = "would drop" if arguments.dry_run else "dropped"
        what = f"subscriber {arguments.subscriber} of topic {topic} and {bundles:,} bundles it is owed"
        print(f"quiver: {done} {what}; {effect_text(freed)}")
    return SubscribersExit.OK


def _look(arguments: argparse.Namespace) -> StatusView:
    status = _taken(arguments)
    topic, known = arguments.topic, status.node.topics
    if topic is not None and topic not in known:
        # A watch over a name that is misspelt would find nobody behind.
        raise unknown_topic(topic, known)
    return status


def _taken(arguments: argparse.Namespace) -> StatusView:
    from quiver_actors.store.status.status_view import take_status

    if arguments.data_dir is not None:
        from quiver_actors.cli.documents.store_status import status_of_directory

        return status_of_directory(arguments.data_dir)
    where = run_dir.find_run_dir(arguments)
    status = take_status(where)
    if not status.node.running:
        raise NotRunning(f"the supervisor of {where} (pid {status.node.pid}) is dead")
    return status


def _summed(arguments: argparse.Namespace) -> list[BehindView]:
    from quiver_actors.cli.documents.backlog import lags_of

    return [each for each in lags_of(_look(arguments).subscribers) if arguments.topic in (None, each.topic)]


def _unknown(subscriber: str, topic: str | None) -> UnknownSubscriber:
    where = "any topic" if topic is None else f"topic {topic!r}"
    return UnknownSubscriber(f"no subscriber {subscriber!r} of {where}: look at `quiver subscribers list`")


def _render(found: Sequence[BehindView]) -> str:
    from quiver_actors.cli.commands.status_table import render_lags

    return render_lags(found)


def _show(found: Sequence[object], text: str, *, as_json: bool, nobody: str = "no subscribers") -> None:
    if as_json:
        print_json({"subscribers": found})
    else:
        print(text or nobody)
