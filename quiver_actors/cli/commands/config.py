"""`quiver config`: what the settings are, where they come from, whether a file is right, a file to begin with, and reloading."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from quiver_actors.cli import run_dir
from quiver_actors.errors import ConfigError

if TYPE_CHECKING:
    from quiver_actors.base.config.reading import Resolved
    from quiver_actors.base.config.table import Setting

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1
_PATIENCE_SECONDS = 30.0

_EXIT_CODES = """
exit codes:
  0    shown, or the settings are right
  1    unexpected error
  2    wrong arguments or wrong settings: each problem is one line on stderr
  3    reload: not running
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver config` with its options to the command line."""
    parser = subparsers.add_parser(
        "config",
        help="show, check or write settings",
        description="Settings of a node: show what holds, check a file, write one to begin with.",
        epilog=f"examples:\n  quiver config show --origin\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    show = _add(
        commands, "show", "what holds, from file, environment and defaults", _show, "quiver config show --origin"
    )
    show.add_argument("--config", metavar="FILE", help="TOML file")
    show.add_argument("--origin", action="store_true", help="where each value comes from")
    show.add_argument("--json", action="store_true", help="one JSON object")
    check = _add(
        commands, "check", "find everything that is wrong with a file", _check, "quiver config check quiver.toml"
    )
    check.add_argument("file", metavar="FILE", nargs="?", help="TOML file; without one only the environment is checked")
    check.add_argument("--json", action="store_true", help="one JSON object")
    reload = _add(commands, "reload", "have a running node read its file again", _reload, "quiver config reload")
    run_dir.add_options(reload)
    reload.add_argument("--json", action="store_true", help="one JSON object")
    _add(commands, "init", "print a file with every setting and its default", _init, "quiver config init > quiver.toml")


def _add(commands: Subparsers, name: str, summary: str, run: Any, example: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"examples:\n  {example}\n{_EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=run)
    return parser


def _show(arguments: argparse.Namespace) -> int:
    """Raises ConfigError: the settings are wrong."""
    from quiver_actors.base.config.reading import resolve

    rows = list(_rows(resolve(arguments.config)))
    if arguments.json:
        _print_json({"settings": [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]})
        return 0
    width = max(len(f"{key} = {value}") for key, value, _ in rows)
    for key, value, origin in rows:
        line = f"{key} = {value}"
        print(f"{line:{min(width, 60)}}  # {origin}" if arguments.origin else line)
    return 0


def _rows(resolved: Resolved) -> list[tuple[str, str, str]]:
    """(key, TOML, origin) of every setting, then of what is said for single topics."""
    from quiver_actors.base.config.reading import given_entries
    from quiver_actors.base.config.table import SETTINGS

    rows = [(setting.key, _held(resolved, setting), resolved.origin(setting)) for setting in SETTINGS]
    for entry in given_entries(resolved):
        if entry.topic is not None:
            rows.append((entry.place, entry.setting.kind.write(entry.value), entry.origin))
    return rows


def _held(resolved: Resolved, setting: Setting) -> str:
    given = resolved.entries.get(setting.key)
    return setting.default_text if given is None else setting.kind.write(given.value)


def _check(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.config.reading import examine

    try:
        resolved, problems = examine(arguments.file)
        if resolved is not None:
            problems = _problems_here(resolved)
    except ConfigError as error:
        problems = [str(error)]
    if arguments.json:
        _print_json({"ok": not problems, "problems": problems})
    for problem in problems:
        print(f"quiver: {problem}", file=sys.stderr)
    if not problems and not arguments.json:
        print(f"{arguments.file or 'environment'}: nothing wrong")
    return 2 if problems else 0


def _problems_here(resolved: Resolved) -> list[str]:
    """What `quiver up` refuses on this machine alone: one worker for each of its cores may be too many for the settings."""
    import msgspec

    from quiver_actors.base.config.checks import contradictions

    allowed = len(os.sched_getaffinity(0))
    if resolved.settings.cores:
        return []
    here = msgspec.structs.replace(resolved.settings, cores=allowed)
    return [f"on this machine, where cores = 0 means {allowed}: {problem}" for problem in contradictions(here)]


def _reload(arguments: argparse.Namespace) -> int:
    """Raises NotRunning, ConfigError: the file is wrong, nothing was changed."""
    from quiver_actors.base.protocol.topic_requests import Reload, ask, until_applied

    where = run_dir.find_run_dir(arguments)
    reply = ask(where, Reload())
    until_applied(where, reply, _PATIENCE_SECONDS)
    if arguments.json:
        _print_json({"changes": reply.said})
        return 0
    for line in reply.said or ["nothing has changed"]:
        print(line)
    return 0


def _init(arguments: argparse.Namespace) -> int:
    from quiver_actors.base.config.writing import initial_file

    del arguments
    print(initial_file(), end="")
    return 0


def _print_json(document: dict[str, Any]) -> None:
    import msgspec

    print(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **document}).decode())
