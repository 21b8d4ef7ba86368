"""`quiver inspect`: what stored files hold, and where they break."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quiver_actors.cli.storage import EXIT_CODES, StorageExit, add_command, opened, print_json

if TYPE_CHECKING:
    from quiver_actors.cli.storage import Subparsers
    from quiver_actors.store.inspection.source import Tree
    from quiver_actors.store.inspection.views import FileView

_ENTRIES_SHOWN = 20

_DESCRIPTION = """\
Show what a file holds: header, log entries, streams, manifest, footer, progress bitmap, gap notices, cursor, core file. The kind of
a file is told by its content. Damage never stops it: it shows where the file breaks, what was expected there and what was found, and
goes on.

A FILE is read whole and its checksums are compared; of the files of a DIR only the structures are read.
"""
_EPILOG = """\
examples:
  quiver inspect /var/lib/quiver/default/core_0/segments/0000000000000000.qseg
  quiver inspect /var/lib/quiver/default/core_0 --limit 3
  quiver inspect /var/lib/quiver/default/core_0/quiver.core --json

""" + EXIT_CODES.format(ok="shown", more="", damage="shown, and something is damaged")


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver inspect` with its options to the command line."""
    parser = add_command(subparsers, "inspect", "show what a stored file holds", _DESCRIPTION, _EPILOG, run)
    parser.add_argument("path", metavar="FILE|DIR", help="any file of a data directory, or a directory with such files")
    parser.add_argument(
        "--limit",
        metavar="N",
        type=_count,
        default=_ENTRIES_SHOWN,
        help=f"show at most N entries, streams, bundles and messages of a file ({_ENTRIES_SHOWN})",
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of entries: expected 0 or more")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Raises DiskError where there is nothing to read, or this user may not."""
    from quiver_actors.cli.commands.inspect_text import render
    from quiver_actors.store.inspection.findings import has_damage

    views, is_damaged, is_empty = [], False, True
    with opened(arguments.path) as (tree, place):
        for view in _views(tree, place, arguments.limit):
            is_damaged, is_empty = is_damaged or has_damage(view.findings), False
            if arguments.json:
                views.append(view)
            else:
                print(render(view), end="\n\n" if place == "." else "\n", flush=True)
    if arguments.json:
        print_json({"path": arguments.path, "files": views})
    elif is_empty:
        print(f"there is no file in {arguments.path}")
    return StorageExit.DAMAGE if is_damaged else StorageExit.OK


def _views(tree: Tree, place: str, limit: int) -> Iterator[FileView]:
    from quiver_actors.errors import DiskError
    from quiver_actors.store.inspection.directory import files_below
    from quiver_actors.store.inspection.look import look_at, unreadable_view
    from quiver_actors.store.inspection.source import Vanished, is_about_access

    paths = [place] if place != "." else files_below(tree.disk)
    for path in paths:
        try:
            with tree.open(path) as source:
                yield look_at(source, deep=place != ".", limit=limit)
        except Vanished:
            continue
        except DiskError as error:
            if is_about_access(error) and place != ".":
                raise
            yield unreadable_view(tree.named(path), error)
