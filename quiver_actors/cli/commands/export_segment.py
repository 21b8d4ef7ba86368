"""`quiver export-segment`: the streams of a segment or a log as files that every Arrow or Parquet reader opens."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from quiver_actors.cli.storage import EXIT_CODES, StorageExit, add_command, counted, finding_text, opened, print_json
from quiver_actors.errors import UnsupportedType, UsageError

if TYPE_CHECKING:
    from quiver_actors.cli.storage import Subparsers

_DESCRIPTION = """\
Write each stream of a segment (one slot, one schema) as a plain Arrow file or as Parquet, named by slot and stream id. Works on
segments, on log files (quiver.wal*) by their entries, and on either in quarantine/: what is damaged is left out and told.
"""
_EPILOG = """\
examples:
  quiver export-segment /var/lib/quiver/default/core_0/segments/0000000000000000.qseg --out /tmp/exported
  quiver export-segment /var/lib/quiver/default/core_0/wal/quiver.wal --format parquet --out /tmp/exported

""" + EXIT_CODES.format(
    ok="everything was exported", more="", damage="what could be read was exported, something is damaged and missing"
)


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver export-segment` with its options to the command line."""
    parser = add_command(
        subparsers, "export-segment", "write a segment's streams as Arrow or Parquet", _DESCRIPTION, _EPILOG, run
    )
    parser.add_argument("path", metavar="FILE", help="a segment or a log file")
    parser.add_argument("--format", choices=("arrow", "parquet"), default="arrow", help="of the files (arrow)")
    parser.add_argument("--out", metavar="DIR", default=".", help="where they go; created if it is missing (.)")


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError for a file without streams or one that would be overwritten, FormatError where nothing can be read."""
    from quiver_actors.store.inspection.export import export_file

    with opened(arguments.path) as (tree, place):
        if place == ".":
            raise UsageError(f"{arguments.path} is a directory: name one segment or log file")
        with tree.open(place) as source:
            export = export_file(source, arguments.out, arguments.format)
    if arguments.json:
        document = {"path": arguments.path, "format": arguments.format, "streams": export.streams}
        print_json({**document, "findings": export.findings, "unsupported": export.unsupported})
    else:
        for stream in export.streams:
            print(f"{stream.file}: {counted(stream.row_count, 'row')} of {counted(stream.batch_count, 'bundle')}")
        for finding in export.findings:
            print(finding_text(finding), file=sys.stderr)
    if export.unsupported:
        raise UnsupportedType(f"{arguments.format} cannot hold {'; '.join(export.unsupported)}: use --format arrow")
    return StorageExit.DAMAGE if export.findings else StorageExit.OK
