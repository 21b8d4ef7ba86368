"""The options of commands that can read an archive instead of a node."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from quiver_actors.archive.reading.archive import Archive


def add_options(parser: argparse.ArgumentParser, verb: str) -> None:
    """Add `--archive` and `--node`; `verb` says what the command does with the archive."""
    parser.add_argument("--archive", metavar="URL", help=f"{verb} this archive instead, as of the setting archive.url")
    parser.add_argument(
        "--node", metavar="NAME", help="with --archive: the node whose archive it is, if it has several"
    )


def opened_archive(arguments: argparse.Namespace) -> Archive | None:
    """Open the archive that the arguments name; None: they name none.

    Raises:
        UsageError: options that do not go together.
        And as `open_archive`.
    """
    if arguments.archive is None:
        if arguments.node is not None:
            raise UsageError("--node names a node's archive: it goes with --archive")
        return None
    if arguments.data_dir is not None:
        raise UsageError("--archive reads what was archived: it does not go with --data-dir")
    from quiver_actors.archive.reading.archive import open_archive

    return open_archive(arguments.archive, node=arguments.node)
