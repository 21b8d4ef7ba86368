"""`quiver doctor`: is this machine fit for a node?"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from quiver_actors.supervisor.exitcodes import ExitCode

if TYPE_CHECKING:
    from quiver_actors.cli.host_checks.judgement import Finding

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

SCHEMA_VERSION = 1
_CHECK_FAILED = 4

_DESCRIPTION = """\
Look at everything outside quiver that a node depends on: limits, shared memory, control groups, cores, the file system of the data
directory (tried out, its sync timed), permissions, clock, Java and packages. Says what to do about what it finds. Changes nothing.
"""

_EPILOG = """\
examples:
  quiver doctor
  quiver doctor --data-dir /var/lib/quiver --strict
  quiver doctor --json

exit codes:
  0  nothing stands in the way (there may be warnings)
  1  unexpected error
  2  wrong arguments or configuration
  4  a node would not start or could lose data; with --strict also warnings
"""

_MARKS = {"ok": "ok  ", "warning": "WARN", "failure": "FAIL"}
_COLOURS = {"ok": "\x1b[32m", "warning": "\x1b[33m", "failure": "\x1b[31m"}
_PLAIN = "\x1b[0m"


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver doctor` with its options to the command line."""
    parser = subparsers.add_parser(
        "doctor",
        help="is this machine fit for a node?",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", help="TOML file with settings of the node")
    parser.add_argument("--data-dir", metavar="DIR", help="where bundles are or will be kept")
    parser.add_argument("--run-dir", metavar="DIR", help="where clients find or will find the node")
    parser.add_argument("--cores", metavar="N", type=int, help="number of workers")
    parser.add_argument("--strict", action="store_true", help="warnings count as failures")
    parser.add_argument("--json", action="store_true", help="one JSON object: facts and findings")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Raises ConfigError: the configuration cannot be used."""
    from quiver_actors.base.config import load_config
    from quiver_actors.cli.host_checks.gathering import gather
    from quiver_actors.cli.host_checks.judgement import Level, judge

    overrides = {"data_dir": arguments.data_dir, "run_dir": arguments.run_dir, "cores": arguments.cores}
    facts = gather(load_config(arguments.config, overrides))
    findings = judge(facts)
    if arguments.json:
        import msgspec

        document: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "findings": findings, "facts": facts}
        print(msgspec.json.encode(document).decode())
    else:
        _print(findings)
    wrong = [Level.FAILURE, Level.WARNING] if arguments.strict else [Level.FAILURE]
    return _CHECK_FAILED if any(finding.level in wrong for finding in findings) else ExitCode.CLEAN


def _print(findings: list[Finding]) -> None:
    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = _MARKS[finding.level]
        if colour:
            mark = f"{_COLOURS[finding.level]}{mark}{_PLAIN}"
        print(f"{mark}  {finding.check:<{width}}  {finding.found}")
        if finding.advice:
            print(f"      {'':<{width}}  -> {finding.advice}")
