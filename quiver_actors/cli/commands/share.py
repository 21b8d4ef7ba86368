"""`quiver subscribers share`: let other users join a subscriber, or nobody any more."""

from __future__ import annotations

import argparse
import pwd
from typing import TYPE_CHECKING

from quiver_actors.base.model import DEFAULT_TOPIC
from quiver_actors.cli import run_dir
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Let other users of the topic join a subscriber: they take bundles of it and resolve those that they were given. It stays its owner's: nobody
else moves or drops it, or sets terms that drop bundles. The list replaces the one before. Users that are not on it any more are detached.
For the subscriber's owner, the topic's owner and the node's user.
"""


def add_parser(commands: Subparsers) -> None:
    """Add `quiver subscribers share` with its options to the command line."""
    parser = commands.add_parser(
        "share",
        help="let other users join a subscriber",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("subscriber")
    parser.add_argument("--topic", metavar="TOPIC", default=DEFAULT_TOPIC, help=f"of this topic ({DEFAULT_TOPIC})")
    users = parser.add_mutually_exclusive_group(required=True)
    users.add_argument("--with", metavar="USER", nargs="+", dest="users", help="names or numbers of users")
    users.add_argument("--nobody", action="store_true", help="share it with nobody any more")
    parser.add_argument("--json", action="store_true", help="one JSON object that says what was done")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises NotRunning, UnknownTopic, UnknownSubscriber, NotAllowed, WorkerUnavailable; UsageError for a user that is none."""
    uids = sorted({_uid_of(user) for user in arguments.users or ()})
    # Imported here: the client loads pyarrow, which most commands do not need.

    subscriber, topic = arguments.subscriber, arguments.topic
    with run_dir.connect_to_node(arguments) as client:
        client.share_subscriber(subscriber, uids, topic=topic)
    if arguments.json:
        print_json({"topic": topic, "subscriber": subscriber, "users": uids})
    else:
        with_whom = f"users {', '.join(map(str, uids))}" if uids else "nobody"
        print(f"quiver: subscriber {subscriber} of topic {topic} is shared with {with_whom}")
    return 0


def _uid_of(user: str) -> int:
    if user.isascii() and user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        raise UsageError(f"user {user!r} does not exist on this machine: expected a name or a number") from None
