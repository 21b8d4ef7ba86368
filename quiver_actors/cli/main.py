"""Entry point of the `quiver` command.

Data goes to stdout, messages to stderr. Whatever the world does wrong is one line `quiver: <message>` and an exit code with a
meaning, never a traceback; a traceback is a bug of ours.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from quiver_actors import __version__
from quiver_actors.cli.examples import add_examples
from quiver_actors.errors import (
    AlreadyRunning,
    DiskError,
    FormatError,
    NotRunning,
    QuiverError,
    StorageFull,
    UsageError,
)
from quiver_actors.shm.errors import ShmError
from quiver_actors.supervisor.errors import SupervisorError
from quiver_actors.supervisor.exitcodes import ExitCode

COMMANDS = (
    "up",
    "status",
    "top",
    "topics",
    "subscribers",
    "transactions",
    "archive",
    "restore",
    "push",
    "tail",
    "query",
    "export",
    "drain",
    "config",
    "doctor",
    "verify",
    "inspect",
    "repair",
    "compact",
    "export-segment",
    "metrics",
    "serve",
    "deploy",
    "completion",
    "version",
)
"""Commands in the order of the help; the module of each command has the same name."""

_EXIT_CODES: tuple[tuple[type[QuiverError], ExitCode], ...] = (
    (UsageError, ExitCode.USAGE),
    (AlreadyRunning, ExitCode.ALREADY_RUNNING),
    (NotRunning, ExitCode.ALREADY_RUNNING),
    (FormatError, ExitCode.DATA_DIR_UNUSABLE),
    (DiskError, ExitCode.DATA_DIR_UNUSABLE),
    (StorageFull, ExitCode.DATA_DIR_UNUSABLE),
)


class CommandParser(argparse.ArgumentParser):
    """The parser of every command. Its error for a wrong choice suggests the nearest right one. Options may stand between the words of a
    list."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse like `ArgumentParser`, which leaves over the words of a list that stand behind an option: they belong to the list."""
        found, left = super().parse_known_args(args, namespace)
        lists = [action.dest for action in self._actions if not action.option_strings and action.nargs == "*"]
        if lists and left and not any(word.startswith("-") for word in left):
            setattr(found, lists[0], [*getattr(found, lists[0]), *left])
            left = []
        if left:
            self._refuse(left)
        return found, left

    def _refuse(self, left: Sequence[str]) -> NoReturn:
        """End with the usage of the command that the words were given to, and the option that was probably meant."""
        options = {each.lstrip("-"): each for action in self._actions for each in action.option_strings}
        near = difflib.get_close_matches(left[0].partition("=")[0].lstrip("-"), list(options), n=1)
        self.error(f"unrecognized arguments: {' '.join(left)}{f'; did you mean {options[near[0]]}?' if near else ''}")

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"there is no {value!r}; {hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names of files need not be text.
        sys.stdout.reconfigure(errors="backslashreplace")
    given = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(given[0] if given else None)
    if not given:
        parser.print_help()
        return int(ExitCode.CLEAN)
    parsed = parser.parse_args(given)
    try:
        return int(parsed.run(parsed))
    except (QuiverError, ShmError, SupervisorError) as error:
        return _fail(str(error), exit_code_of(error))
    except KeyboardInterrupt:
        return int(ExitCode.FORCED)
    except BrokenPipeError:
        # The reader of our output has left (`quiver status | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.CLEAN)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", ExitCode.UNEXPECTED)


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or as much of it as one command needs: looking at a node should not wait for the others' modules."""
    parser = CommandParser(prog="quiver", description="A durable Arrow buffer for every Spark worker node.")
    parser.add_argument("--version", action="version", version=f"quiver {__version__}", help="print the version")
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in COMMANDS if only not in COMMANDS else [only]:
        importlib.import_module(f"quiver_actors.cli.commands.{name.replace('-', '_')}").add_parser(subparsers)
    add_examples(parser)
    return parser


def exit_code_of(error: Exception) -> ExitCode:
    """Return the exit code for an error."""
    for kind, code in _EXIT_CODES:
        if isinstance(error, kind):
            return code
    return ExitCode.UNEXPECTED


def _fail(message: str, code: ExitCode) -> int:
    print(f"quiver: {message}", file=sys.stderr)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
