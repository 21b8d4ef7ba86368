"""`quiver version`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quiver_actors import __version__
from quiver_actors.cli.documents.json_document import print_json

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver version` with its options to the command line."""
    parser = subparsers.add_parser(
        "version",
        help="print the version",
        description="Print the version.",
        epilog="exit codes:\n  0    printed\n  2    wrong arguments\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the version; exit code 0."""
    if arguments.json:
        print_json({"version": __version__})
    else:
        print(f"quiver {__version__}")
    return 0
