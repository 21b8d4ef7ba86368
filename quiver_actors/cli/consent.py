"""Consent to what a command does for good: a required option where something is destroyed, a question where something is changed."""

from __future__ import annotations

import argparse
import sys

from quiver_actors.errors import UsageError


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add the options `--dry-run` and `--yes`, one of which must be given, to a command that destroys something."""
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--dry-run", action="store_true", help="say what would be lost, change nothing")
    mode.add_argument("--yes", action="store_true", help="do it")


def add_confirmation(parser: argparse.ArgumentParser) -> None:
    """Add the options `--dry-run` and `--yes`; without either of them the command asks."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--dry-run", action="store_true", help="only show what would be done")
    group.add_argument("--yes", action="store_true", help="do it without asking")


def is_confirmed(arguments: argparse.Namespace, question: str) -> bool:
    """Whether the command may go on: `--yes`, or the answer at the terminal.

    Raises:
        UsageError: nobody can be asked.
    """
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(
            f"{question} Standard input is not a terminal, so nobody can answer: give --yes, or --dry-run to look first"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
