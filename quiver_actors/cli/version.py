"""`quiver version`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quiver_actors import __version__

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("version", help="print the version", description="Print the version.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    del arguments
    print(f"quiver {__version__}")
    return 0
