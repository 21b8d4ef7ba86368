"""`--watch`: a command that only looks, looks again and again. On a terminal each look takes the place of the one before."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

from quiver_actors.cli.durations import positive_duration_seconds
from quiver_actors.errors import NotRunning

WATCH_SECONDS = 2.0
_CLEAR_SCREEN = "\x1b[H\x1b[2J"


def add_watch(parser: argparse._ActionsContainer) -> None:
    """Add the option `--watch DURATION`, by which a command shows its result again and again."""
    parser.add_argument(
        "--watch",
        metavar="DURATION",
        nargs="?",
        type=positive_duration_seconds,
        const=WATCH_SECONDS,
        help="show again and again (2 s); with --json an object a line",
    )


def watching(arguments: argparse.Namespace, look: Callable[[], int]) -> int:
    """Look once, or again and again until interrupted; `look` prints, and returns the exit code.

    Raises:
        NotRunning: from `look`, where it looks once. Who watches is told, and goes on: the node may be started, or started again.
    """
    if arguments.watch is None:
        return look()
    try:
        while True:
            _look(look, as_json=arguments.json)
            time.sleep(arguments.watch)
    except KeyboardInterrupt:
        return 0


def _look(look: Callable[[], int], *, as_json: bool) -> None:
    is_drawn = sys.stdout.isatty() and not as_json
    if is_drawn:
        print(_CLEAR_SCREEN, end="", flush=True)
    try:
        look()
    except NotRunning as error:
        print(f"quiver: {error}", file=sys.stderr)
    else:
        # Looks that stay are kept apart by an empty line.
        print(end="" if as_json or is_drawn else "\n", flush=True)
