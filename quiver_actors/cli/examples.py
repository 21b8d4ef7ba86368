"""Text printed below the options of commands that bring no text of their own: examples, and the exit codes of their group.

A test runs every example of every command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

EXAMPLES: dict[str, tuple[str, ...]] = {
    "quiver": ("quiver up --data-dir /var/lib/quiver", "quiver status"),
    "quiver up": ("quiver up --data-dir /var/lib/quiver --cores 2", "quiver up --config quiver.toml"),
    "quiver status": (
        "quiver status",
        "quiver status --check healthy",
        "quiver status --wait ready --timeout 10s --json",
    ),
    "quiver drain": ("quiver drain --timeout 10s",),
    "quiver serve": ("quiver serve --listen 127.0.0.1:8815",),
    "quiver version": ("quiver version",),
    "quiver subscribers": ("quiver subscribers list",),
    "quiver subscribers list": ("quiver subscribers list --json",),
    "quiver subscribers lag": ("quiver subscribers lag --topic clicks --max 100000",),
    "quiver subscribers orphans": ("quiver subscribers orphans",),
    "quiver subscribers drop": ("quiver subscribers drop exporter --topic clicks --dry-run",),
    "quiver subscribers seek": ("quiver subscribers seek exporter latest --topic clicks --dry-run",),
    "quiver subscribers share": ("quiver subscribers share exporter --topic clicks --with 1002",),
    "quiver subscribers replay-dead-letters": ("quiver subscribers replay-dead-letters clicks-dead --dry-run",),
    "quiver transactions": ("quiver transactions list",),
    "quiver transactions list": ("quiver transactions list --json",),
    "quiver transactions publish": ("quiver transactions publish nightly-2026-01-31",),
    "quiver transactions drop": ("quiver transactions drop nightly-2026-01-31 --dry-run",),
    "quiver archive": ("quiver archive ls --archive file:///srv/archive --node worker-1",),
    "quiver archive ls": ("quiver archive ls --archive file:///srv/archive --node worker-1 --json",),
    "quiver archive status": ("quiver archive status --archive file:///srv/archive --node worker-1",),
    "quiver archive verify": ("quiver archive verify --archive file:///srv/archive --node worker-1",),
    "quiver archive get": ("quiver archive get taken-out --archive file:///srv/archive --node worker-1",),
    "quiver archive expire": (
        "quiver archive expire --archive file:///srv/archive --node worker-1 --older-than 30d --dry-run",
    ),
    "quiver archive repair": ("quiver archive repair --archive file:///srv/archive --node worker-1 --dry-run",),
    "quiver archive take-over": (
        "quiver archive take-over --archive file:///srv/archive --node worker-1 --data-dir /var/lib/quiver --dry-run",
    ),
    "quiver deploy print": ("quiver deploy print systemd",),
}
_HEADING = "examples:\n"
_EXIT_CODES = "exit codes:\n"


def add_examples(parser: argparse.ArgumentParser) -> None:
    """Put the examples of the table in front of what is printed below the options, for a parser and all below it."""
    for each in all_parsers(parser):
        lines = EXAMPLES.get(each.prog)
        if lines and _HEADING not in (each.epilog or ""):
            text = _HEADING + "".join(f"  {line}\n" for line in lines)
            each.epilog = text + (f"\n{each.epilog}" if each.epilog else "")
            each.formatter_class = argparse.RawDescriptionHelpFormatter
        for inner in _commands_of(each):
            _inherit_exit_codes(inner, each)


def _inherit_exit_codes(command: argparse.ArgumentParser, group: argparse.ArgumentParser) -> None:
    own, (_, heading, codes) = command.epilog or "", (group.epilog or "").partition(_EXIT_CODES)
    if heading and _EXIT_CODES not in own:
        command.epilog = (f"{own.rstrip()}\n\n" if own else "") + heading + codes
        command.formatter_class = argparse.RawDescriptionHelpFormatter


def _commands_of(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in actions_of(parser):
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options and arguments of a parser, and its commands, in the order in which they were added."""
    return parser._actions


def all_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser and those of all its commands, in the order in which they were added."""
    yield parser
    for inner in _commands_of(parser):
        yield from all_parsers(inner)


def examples_of(parser: argparse.ArgumentParser) -> list[str]:
    """The command lines that a parser's help shows."""
    text = (parser.epilog or "").partition(_HEADING)[2].partition("\n\n")[0]
    return [line.strip() for line in text.splitlines() if line.strip().startswith("quiver")]
