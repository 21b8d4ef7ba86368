"""`quiver completion`: the script by which a shell completes commands and options. shtab makes it from the parsers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from quiver_actors.cli.examples import actions_of, all_parsers

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SHELLS = ("bash", "zsh", "fish", "tcsh")
_FILES = frozenset(["FILE", "PATH", "FILE|DIR"])
_DIRECTORY = "DIR"

_DESCRIPTION = """\
Print the script by which a shell completes commands, options and choices on TAB. The shell reads it when it starts.
"""
_EPILOG = """\
examples:
  quiver completion bash
  quiver completion zsh
  quiver completion fish

where it goes:
  bash  quiver completion bash > ~/.local/share/bash-completion/completions/quiver
  zsh   quiver completion zsh > ~/.zfunc/_quiver      (with ~/.zfunc in $fpath, before compinit)
  fish  quiver completion fish > ~/.config/fish/completions/quiver.fish
  tcsh  quiver completion tcsh > ~/.quiver.completion, and `source ~/.quiver.completion` in ~/.tcshrc

exit codes:
  0    printed
  2    wrong arguments
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver completion` with its options to the command line."""
    parser = subparsers.add_parser(
        "completion",
        help="print the completion script of a shell",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script of the shell; exit code 0."""
    import shtab

    from quiver_actors.cli.main import build_parser

    whole = build_parser()
    for parser in all_parsers(whole):
        # shtab shows the first line, wherever it ends.
        parser.description = " ".join((parser.description or "").split()).partition(". ")[0]
        for action in actions_of(parser):
            _prepare(action)
    print(shtab.complete(whole, shell=arguments.shell))
    return 0


def _prepare(action: argparse.Action) -> None:
    """Tell shtab which values are paths."""
    import shtab

    if action.metavar in _FILES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
    elif action.metavar == _DIRECTORY:
        action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
