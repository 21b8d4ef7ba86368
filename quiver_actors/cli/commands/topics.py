"""`quiver topics`: list, show, create, change and delete topics of a running node."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from quiver_actors.base.topic_hints import unknown_topic
from quiver_actors.base.units import format_size
from quiver_actors.cli import run_dir
from quiver_actors.cli.commands.topic_schemas import look_at_schemas
from quiver_actors.cli.consent import add_consent
from quiver_actors.cli.documents.json_document import print_json
from quiver_actors.cli.durations import duration_seconds
from quiver_actors.cli.watch import add_watch, watching
from quiver_actors.errors import ConfigError, NotAllowed

if TYPE_CHECKING:
    from quiver_actors.base.protocol.topic_requests import Request, TopicReply
    from quiver_actors.base.topics import Topic

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_EXIT_CODES = """
exit codes:
  0    shown or done, and every worker that serves follows
  1    unexpected error, or some worker has not followed in time (the change is durable)
  2    wrong arguments or settings, no such topic, or one that exists already
  3    not running
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver topics` with its options to the command line."""
    parser = subparsers.add_parser(
        "topics",
        help="list, show, create, change and delete topics",
        description="Topics of a running node. Changes are durable when the command ends and need no restart.",
        epilog=f"examples:\n  quiver topics list\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add(commands, "list", "all topics", _list, "quiver topics list --json")
    show = _add(
        commands,
        "show",
        "one topic with all its settings and where they come from",
        _show,
        "quiver topics show clicks --schema",
    )
    show.add_argument("topic", metavar="TOPIC")
    show.add_argument(
        "--schema", action="store_true", help="the columns of what is stored, by slot, instead of the settings"
    )
    create = _add(
        commands,
        "create",
        "create a topic",
        _create,
        "quiver topics create clicks segment.target_size=8MiB slots=page=0,user=1",
    )
    create.add_argument("topic", metavar="TOPIC")
    create.add_argument(
        "settings",
        metavar="KEY=VALUE",
        nargs="*",
        default=[],
        help="see docs/configuration.md; the rest is as configured",
    )
    create.add_argument("--if-missing", action="store_true", help="no error if it exists already")
    change = _add(
        commands, "set", "change settings of a topic", _set, "quiver topics set clicks wal.flush_interval=25ms"
    )
    change.add_argument("topic", metavar="TOPIC")
    change.add_argument("settings", metavar="KEY=VALUE", nargs="*", default=[])
    change.add_argument("--unset", metavar="KEY", action="append", default=[], help="let it be again as configured")
    delete = _add(
        commands,
        "delete",
        "delete a topic with all its bundles and subscribers",
        _delete,
        "quiver topics delete clicks --dry-run",
    )
    delete.add_argument("topic", metavar="TOPIC")
    add_consent(delete)


def _add(commands: Subparsers, name: str, summary: str, run: Any, example: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n  {example}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_dir.add_options(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    if name in ("list", "show"):
        add_watch(parser)
    else:
        parser.add_argument(
            "--timeout",
            metavar="DURATION",
            type=duration_seconds,
            default=30.0,
            help="how long to wait for the workers (30s)",
        )
    parser.set_defaults(run=run)
    return parser


def _list(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_all(arguments))


def _look_at_all(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.protocol.topic_requests import list_topics

    reply = list_topics(run_dir.find_run_dir(arguments))
    if arguments.json:
        _print_json(reply, {"topics": [_as_json(name, topic, reply) for name, topic in reply.topics.items()]})
        return 0
    rows = [_row(name, topic) for name, topic in sorted(reply.topics.items())]
    print(_table(("TOPIC", "DURABILITY", "FLUSH", "SEGMENT", "SLOTS", "PRIORITY", "FROM"), rows))
    for deletion in reply.deletions:
        print(f"quiver: topic {deletion.topic} is being deleted", file=sys.stderr)
    return 0


def _row(name: str, topic: Topic) -> tuple[str, ...]:
    from quiver_actors.base.config.kinds import duration_text, size_text

    settings = topic.settings
    flush = duration_text(settings.wal.flush_interval_ns) if settings.is_synced else "-"
    slots = str(len(settings.slots)) if settings.slots else "-"
    size = size_text(settings.segment.target_size_bytes)
    return name, settings.durability, flush, size, slots, str(settings.priority), topic.source


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in [headings, *rows]) for column in range(len(headings))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [headings, *rows]
    ]
    return "\n".join(lines)


def _show(arguments: argparse.Namespace) -> int:
    return watching(arguments, lambda: _look_at_one(arguments))


def _look_at_one(arguments: argparse.Namespace) -> int:
    return look_at_schemas(arguments) if arguments.schema else _look_at_settings(arguments)


def _look_at_settings(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.config.table import Scope, settings_of, value_at
    from quiver_actors.base.protocol.topic_requests import list_topics

    reply = list_topics(run_dir.find_run_dir(arguments))
    topic = _topic_in(reply, arguments.topic)
    disk_bytes, cap_bytes = _disk_of(arguments)
    if arguments.json:
        found = _as_json(arguments.topic, topic, reply) | {"disk_bytes": disk_bytes, "cap_bytes": cap_bytes}
        _print_json(reply, {"topic": found})
        return 0
    origins = reply.origins.get(arguments.topic, {})
    print(f"# topic {arguments.topic}, incarnation {topic.incarnation}, created by {topic.source}")
    if disk_bytes is not None:
        of_cap = "" if cap_bytes is None else f" of the {format_size(cap_bytes)} that it may have"
        print(f"# {format_size(disk_bytes)} on disk{of_cap}")
    for key, setting in settings_of(Scope.TOPIC).items():
        line = f"{key} = {setting.kind.write(value_at(topic.settings, setting.field))}"
        print(f"{line:40}  # {origins.get(key, 'default')}")
    return 0


def _disk_of(arguments: argparse.Namespace) -> tuple[int | None, int | None]:
    """Disk usage of a topic, and its limit. None: not for this user to see; no limit of its own."""
    from quiver_actors.store.status.status_view import take_status

    try:
        status = take_status(run_dir.find_run_dir(arguments))
    except NotAllowed:
        return None, None
    cap_bytes = next((share.limit_bytes for share in status.shares if share.topic == arguments.topic), None)
    return sum(engine.disk_bytes for engine in status.engines if engine.topic == arguments.topic), cap_bytes


def _create(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.config.topic_values import texts_by_key
    from quiver_actors.base.protocol.topic_requests import Create, list_topics
    from quiver_actors.errors import TopicExists

    try:
        return _carry_out(arguments, Create(topic=arguments.topic, values=texts_by_key(arguments.settings)), "created")
    except TopicExists:
        if not arguments.if_missing:
            raise
    if arguments.json:
        reply = list_topics(run_dir.find_run_dir(arguments))
        _print_json(reply, {"topic": _as_json(arguments.topic, _topic_in(reply, arguments.topic), reply)})
    else:
        print(f"quiver: topic {arguments.topic} exists")
    return 0


def _set(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.config.topic_values import texts_by_key
    from quiver_actors.base.protocol.topic_requests import Change

    if not arguments.settings and not arguments.unset:
        raise ConfigError("nothing to change: name settings as KEY=VALUE, or with --unset KEY")
    values = texts_by_key(arguments.settings)
    return _carry_out(arguments, Change(topic=arguments.topic, values=values, unset=arguments.unset), "changed")


def _delete(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.protocol.topic_requests import Delete, list_topics
    from quiver_actors.store.status.status_view import take_status

    where = run_dir.find_run_dir(arguments)
    reply = list_topics(where)
    _topic_in(reply, arguments.topic)
    try:
        status = take_status(where)
    except NotAllowed:
        # The figures are for the node's own user; this is another one, who owns the topic.
        engines, subscribers = [], set()
    else:
        engines = [engine for engine in status.engines if engine.topic == arguments.topic]
        subscribers = {each.subscriber for each in status.subscribers if each.topic == arguments.topic}
    bundles = sum(engine.segment_bundles + engine.open_segment_bundles for engine in engines)
    lost = f"{bundles:,} bundles and {len(subscribers)} subscribers" if engines else "all its bundles and subscribers"
    if arguments.dry_run:
        if arguments.json:
            found = {"topic": arguments.topic, "bundles": bundles, "subscribers": sorted(subscribers)}
            _print_json(reply, {"would_delete": found})
        else:
            print(f"quiver: would delete topic {arguments.topic} with {lost}")
        return 0
    return _carry_out(arguments, Delete(topic=arguments.topic), f"deleted with {lost}", gone=arguments.topic)


def _carry_out(arguments: argparse.Namespace, request: Request, done: str, gone: str = "") -> int:
    from quiver_actors.base.protocol.topic_requests import ask, until_applied

    where = run_dir.find_run_dir(arguments)
    reply = ask(where, request)
    until_applied(where, reply, arguments.timeout, gone)
    if arguments.json:
        found = reply.topics.get(arguments.topic)
        _print_json(reply, {"topic": None if found is None else _as_json(arguments.topic, found, reply)})
    else:
        print(f"quiver: topic {arguments.topic} {done}")
    return 0


def _topic_in(reply: TopicReply, name: str) -> Topic:
    topic = reply.topics.get(name)
    if topic is None:
        raise unknown_topic(name, reply.topics)
    return topic


def _as_json(name: str, topic: Topic, reply: TopicReply) -> dict[str, Any]:
    from quiver_actors.base.config.table import Scope, settings_of, value_at

    settings = {key: value_at(topic.settings, setting.field) for key, setting in settings_of(Scope.TOPIC).items()}
    head = {
        "name": name,
        "incarnation": topic.incarnation,
        "created_unix_ns": topic.created_unix_ns,
        "source": topic.source,
    }
    return {**head, "settings": settings, "origins": reply.origins.get(name, {})}


def _print_json(reply: TopicReply, document: dict[str, Any]) -> None:
    print_json({"version": reply.version, "applied": reply.applied, **document})
