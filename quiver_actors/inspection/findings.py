"""What a look at stored files tells: one `Finding` for each thing that is not as it should be, or that somebody should know."""

from __future__ import annotations

import enum

import msgspec

SCHEMA_VERSION = 1
"""Of the `--json` documents of verify, inspect, repair and export-segment; their fields are only ever added to."""


class Severity(enum.StrEnum):
    DAMAGE = "damage"
    """Stored bytes or references are wrong, or something that is still needed is gone."""
    WARNING = "warning"
    """Nothing stored is wrong, but an operator should know."""
    NOTE = "note"
    """A normal state that explains itself: what a crash or a running engine leaves."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    severity: Severity
    code: str
    """Stable name of the kind of finding, such as `segment.checksum`."""
    path: str
    offset: int | None = None
    """Byte of the file at which it breaks; None where the file as a whole is meant."""
    message: str
    expected: str | None = None
    found: str | None = None
    action: str = ""
    """What to do; empty where nothing is to be done."""


def worst_first(findings: list[Finding]) -> list[Finding]:
    """The same findings, damage first, then by path and offset."""
    rank = {severity: number for number, severity in enumerate(Severity)}
    return sorted(findings, key=lambda finding: (rank[finding.severity], finding.path, finding.offset or 0))


def has_damage(findings: list[Finding]) -> bool:
    return any(finding.severity is Severity.DAMAGE for finding in findings)
