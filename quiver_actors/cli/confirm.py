"""Asking before something is changed that cannot be taken back."""

from __future__ import annotations

import argparse
import sys

from quiver_actors.errors import UsageError


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--dry-run` and `--yes`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--dry-run", action="store_true", help="only show what would be done")
    group.add_argument("--yes", action="store_true", help="do it without asking")


def is_confirmed(arguments: argparse.Namespace, question: str) -> bool:
    """Whether to go on: `--yes`, or the answer of whoever sits at the terminal.

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
