"""`quiver verify`: whether what is stored is what was written."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from quiver_actors.cli.progress_bar import ProgressBar
from quiver_actors.cli.storage import (
    EXIT_CODES,
    StorageExit,
    add_command,
    bytes_below,
    counted,
    finding_text,
    opened,
    print_json,
)
from quiver_actors.errors import UsageError

if TYPE_CHECKING:
    from quiver_actors.cli.storage import Subparsers
    from quiver_actors.store.inspection.findings import Finding
    from quiver_actors.store.inspection.verification import Totals

_DESCRIPTION = """\
Check stored files: each by itself, then those of each engine against each other. Reads only, takes no lock, and may run beside a
running node: what is being written right now is not damage.

Without --deep: headers, footers, manifests and all their references, progress against segments, core files, cursors, leftovers; and, of
a stopped engine, what its next start will do with whose entries.
With --deep also: the CRC of every file and every log entry, and every Arrow batch decoded and validated. That reads everything.
"""
_EPILOG = """\
findings:
  damage   stored bytes or references are wrong, something that is still needed is gone, or the next start drops entries
  warning  nothing stored is wrong, but somebody should know
  note     a normal state: what a crash or a running engine leaves

examples:
  quiver verify --data-dir /var/lib/quiver
  quiver verify --data-dir /var/lib/quiver --deep --json
  quiver verify /var/lib/quiver/default/core_0/segments/0000000000000000.qseg --deep

""" + EXIT_CODES.format(ok="no damage", more="", damage="damage was found")


def add_parser(subparsers: Subparsers) -> None:
    """Add `quiver verify` with its options to the command line."""
    parser = add_command(subparsers, "verify", "check stored files", _DESCRIPTION, _EPILOG, run)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "path", metavar="PATH", nargs="?", help="a file, an engine's or topic's directory, or a data directory"
    )
    what.add_argument("--data-dir", metavar="DIR", help="the data directory of a node")
    parser.add_argument("--deep", action="store_true", help="read everything: CRCs, log entries, Arrow batches")


def run(arguments: argparse.Namespace) -> int:
    """Raises DiskError where there is nothing to read, or this user may not; UsageError where nothing is of Quiver."""
    from quiver_actors.store.inspection.findings import has_damage
    from quiver_actors.store.inspection.verification import Totals, verify

    path = arguments.path or arguments.data_dir
    totals = Totals()
    findings: list[Finding] = []
    with ProgressBar(bytes_below(path) if arguments.deep else 0) as bar, opened(path, bar.advance) as (tree, place):
        try:
            findings.extend(verify(tree, place, deep=arguments.deep, totals=totals))
        except KeyboardInterrupt:
            # What was found until then is worth having.
            bar.clear()
            _print_findings(findings)
            raise
    if os.path.isdir(path):
        _check_is_ours(path, findings, totals)
    if arguments.json:
        _print_json(path, arguments.deep, findings, totals)
    else:
        _print_findings(findings)
        print(_summary(findings, totals))
    return StorageExit.DAMAGE if has_damage(findings) else StorageExit.OK


def _check_is_ours(path: str, findings: list[Finding], totals: Totals) -> None:
    """Refuse a directory in which there was nothing to verify: a wrong path must not look like a store without damage."""
    from quiver_actors.store.files.data_version import VERSION_FILE

    unknown = sum(finding.code == "file.unknown" for finding in findings)
    if not totals.engines and unknown == totals.files and not os.path.exists(os.path.join(path, VERSION_FILE)):
        raise UsageError(
            f"nothing of Quiver is in {path} ({counted(totals.files, 'file')}): name a data directory, which has a file {VERSION_FILE}, "
            "or a part of one"
        )


def _print_findings(findings: list[Finding]) -> None:
    from quiver_actors.store.inspection.findings import worst_first

    for finding in worst_first(findings):
        print(finding_text(finding), flush=True)


def _counts(findings: list[Finding]) -> dict[str, int]:
    from quiver_actors.store.inspection.findings import Severity

    return {str(severity): sum(finding.severity is severity for finding in findings) for severity in Severity}


def _print_json(path: str, deep: bool, findings: list[Finding], totals: Totals) -> None:
    import dataclasses

    from quiver_actors.store.inspection.findings import worst_first

    counts = _counts(findings)
    print_json(
        {
            "path": path,
            "deep": deep,
            "ok": not counts["damage"],
            "counts": counts,
            "checked": dataclasses.asdict(totals),
            "findings": worst_first(findings),
        }
    )


def _summary(findings: list[Finding], totals: Totals) -> str:
    counts = _counts(findings)
    checked = [counted(totals.files, "file"), counted(totals.engines, "engine")]
    held = [
        f"{counted(totals.segments, 'segment')} with {counted(totals.bundles, 'bundle')}",
        "1 log entry" if totals.entries == 1 else f"{totals.entries:,} log entries",
        counted(totals.subscribers, "subscriber"),
    ]
    verdict = f"{counts['damage']} damaged, {counted(counts['warning'], 'warning')}, {counted(counts['note'], 'note')}"
    return f"checked {checked[0]} of {checked[1]} ({', '.join(held)}): {verdict if findings else 'all good'}"
