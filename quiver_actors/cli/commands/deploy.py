"""`quiver deploy print`: the files to run nodes with, from the installed package."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING, NamedTuple

from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Asset(NamedTuple):
    """A file that `quiver deploy print` prints: the package that holds it, and its name there."""

    package: str
    file: str


ASSETS: dict[str, tuple[Asset, ...]] = {
    "systemd": (
        Asset("quiver_actors.cli.deployment", "quiver.service"),
        Asset("quiver_actors.cli.deployment", "quiver-metrics.service"),
    ),
    "kubernetes": (Asset("quiver_actors.cli.deployment", "kubernetes.yaml"),),
    "container": (Asset("quiver_actors.cli.deployment", "Containerfile"),),
    "grafana": (Asset("quiver_actors.cli.web", "dashboard.json"),),
    "alerts": (Asset("quiver_actors.cli.web", "alerts.yaml"),),
}

_COMMAND_PLACE = "@quiver@"
_HIDDEN_HOMES = ("home", "root", "run/user")
"""What `ProtectHome=yes` takes out of a service's sight."""

_DESCRIPTION = """\
Print the files that nodes are run with: systemd units, a Kubernetes DaemonSet with its ConfigMap, a container file, a Grafana dashboard,
Prometheus alert rules. They are a start to be looked through: users, paths, image names and sizes are yours.
"""

_EPILOG = """\
examples:
  quiver deploy print systemd
  quiver deploy print kubernetes
  quiver deploy print systemd --to .

exit codes:
  0  printed or written
  1  unexpected error
  2  wrong arguments, or a file is already there
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver deploy` with its options to the command line."""
    parser = subparsers.add_parser(
        "deploy",
        help="print files to run nodes with",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    printing = actions.add_parser("print", help="print or write the files", description=_DESCRIPTION)
    printing.add_argument("what", choices=sorted(ASSETS), help="which files")
    printing.add_argument(
        "--to", metavar="DIR", help="write them there instead; a file that is there already is left alone"
    )
    printing.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises UsageError: a file is already there, or the directory is not."""
    if arguments.what == "systemd":
        _warn_of_hidden_home(quiver_command())
    for asset in ASSETS[arguments.what]:
        if arguments.to is None:
            print(content_of(asset), end="")
        else:
            _write(os.path.join(arguments.to, asset.file), content_of(asset))
    return 0


def content_of(asset: Asset) -> str:
    """The text of a file, with this installation's `quiver` where the file starts it: systemd searches no virtual environment."""
    from importlib.resources import files

    text = files(asset.package).joinpath(asset.file).read_text(encoding="utf-8")
    return text.replace(_COMMAND_PLACE, quiver_command())


def quiver_command() -> str:
    """The absolute path of this installation's `quiver`: beside the interpreter that runs now, else the one that PATH finds."""
    beside = os.path.join(os.path.dirname(sys.executable), "quiver")
    return beside if os.access(beside, os.X_OK) else shutil.which("quiver") or beside


def _warn_of_hidden_home(command: str) -> None:
    if command.startswith(tuple(f"/{home}/" for home in _HIDDEN_HOMES)):
        print(
            f"quiver: the units have ProtectHome=yes, which hides {command} from them: install quiver into a virtual environment "
            "elsewhere, such as /opt/quiver, or write ProtectHome=read-only and give the service's user access",
            file=sys.stderr,
        )


def _write(path: str, content: str) -> None:
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(f"{path} exists already: remove it, or name another directory") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error
    print(path)
