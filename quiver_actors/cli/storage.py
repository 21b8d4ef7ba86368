"""Common parts of the commands for stored files: exit codes, opening a path, findings as text. Loads no data library by itself."""

from __future__ import annotations

import argparse
import enum
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from quiver_actors.cli.documents.json_document import as_json
from quiver_actors.errors import DiskError, UsageError

if TYPE_CHECKING:
    from quiver_actors.store.inspection.findings import Finding
    from quiver_actors.store.inspection.source import Tree

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_RED, _YELLOW, _PLAIN = "\x1b[31m", "\x1b[33m", "\x1b[0m"


class StorageExit(enum.IntEnum):
    """Exit codes of verify, inspect, repair and export-segment; they agree with `supervisor.exitcodes` up to 4."""

    OK = 0
    DAMAGE = 5


EXIT_CODES = """\
exit codes:
  0    {ok}
  1    unexpected error
  2    wrong arguments
{more}  4    a file or directory cannot be read, or written where that is asked for
  5    {damage}
"""


def add_command(
    subparsers: Subparsers,
    name: str,
    summary: str,
    description: str,
    epilog: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """A subcommand with its description and epilog laid out as they stand."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)
    return parser


@contextmanager
def opened(path: str, note_look: Callable[[int], None] | None = None) -> Iterator[tuple[Tree, str]]:
    """The tree that a path of the command line lies in, and the path on it: `.` for a directory.

    Raises:
        UsageError: neither a regular file nor a directory.
        DiskError: it is not there or may not be read.
    """
    from quiver_actors.store.disk.posix import PosixDisk
    from quiver_actors.store.inspection.source import Tree

    if os.path.islink(path):
        path = os.path.realpath(path)
    directory, name = (path, ".") if _is_directory(path) else os.path.split(path)
    disk = PosixDisk(directory or ".")
    try:
        yield Tree(disk, directory, note_look), name
    finally:
        disk.close()


def _is_directory(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise DiskError("open", path, error.errno or errno.EIO) from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise UsageError(f"{path} is neither a file nor a directory")
    return stat.S_ISDIR(mode)


def bytes_below(path: str) -> int:
    """Bytes of all files at or below a path, about: files come and go meanwhile. 0 where there is nothing to be read."""
    if not os.path.isdir(path):
        return _size(path)
    return sum(_size(os.path.join(directory, name)) for directory, _, names in os.walk(path) for name in names)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def finding_text(finding: Finding) -> str:
    """One finding as a block of lines: what and where, then what was expected, found, and is to be done."""
    where = finding.path if finding.offset is None else f"{finding.path}, byte {finding.offset}"
    lines = [f"{_painted(finding.severity.value)}  {where}: {finding.message}"]
    parts = (("expected", finding.expected), ("found", finding.found), ("do", finding.action))
    lines += [f"         {name + ':':9} {text}" for name, text in parts if text]
    return "\n".join(lines)


def _painted(severity: str) -> str:
    text = f"{severity.upper():7}"
    if not has_colour() or severity == "note":
        return text
    return f"{_RED if severity == 'damage' else _YELLOW}{text}{_PLAIN}"


def has_colour() -> bool:
    """Whether stdout is a terminal that may show colours (`NO_COLOR` is not set)."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ


def print_json(document: dict[str, Any]) -> None:
    """The `--json` document of a command; `schema_version` comes first."""
    from quiver_actors.store.inspection.findings import SCHEMA_VERSION

    print(as_json({"schema_version": SCHEMA_VERSION, **document}), flush=True)


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless it is 1: `1 file`, `2,000 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
