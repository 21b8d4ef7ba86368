"""`quiver up`: run a node in the foreground."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Run a node: a supervisor and one pinned worker per core. Prints one line when every worker is ready; logs to stderr.

signals:
  TERM, INT   drain (seal, flush, answer what is under way), then stop; a second one stops at once
  HUP         read the configuration again: what can change live holds at once, the log says what cannot
"""

_EXIT_CODES = """\
exit codes:
  0    every worker drained
  1    unexpected error, or a worker did not drain cleanly (nothing acknowledged is lost)
  2    wrong arguments or configuration, or a run directory that is not safe
  3    another node holds the data directory or the run directory
  4    the data directory cannot be used: version, permissions, no room
  5    every worker died too often
  130  stopped at once by a second signal; the log is replayed at the next start
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver up` with its options to the command line."""
    parser = subparsers.add_parser(
        "up",
        help="run a node in the foreground",
        description=_DESCRIPTION,
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings of the node and its topics")
    parser.add_argument("--data-dir", metavar="DIR", help="where bundles are kept (default: ./quiver_data)")
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="where clients find the node (default: $QUIVER_RUN_DIR, else $XDG_RUNTIME_DIR/quiver, else $TMPDIR/quiver-UID)",
    )
    parser.add_argument("--cores", metavar="N", type=int, help="number of workers (default: one per allowed core)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run a node until it stops; returns its exit code."""
    # Imported here so that the other commands start quickly.
    from quiver_actors.base.config.reading import Resolved, resolve
    from quiver_actors.node.composition import run_node
    from quiver_actors.supervisor.log import configure_logging
    from quiver_actors.supervisor.signals import hold_reloads

    overrides = {"data_dir": arguments.data_dir, "run_dir": arguments.run_dir, "cores": arguments.cores}

    def read_settings() -> Resolved:
        return resolve(arguments.config, overrides)

    hold_reloads()
    settings = read_settings().settings
    configure_logging(sys.stderr, settings.log.level, settings.log.format)
    return run_node(settings, config_path=arguments.config, resolve=read_settings)
