"""The findings of an inspection: one `Finding` for each fault, and for each state that an operator should know."""

from __future__ import annotations

import enum
from functools import partial

import msgspec

SCHEMA_VERSION = 1
"""Version of the `--json` documents of verify, inspect, repair and export-segment; fields are only ever added to them."""


class Severity(enum.StrEnum):
    """Severity of a finding; only DAMAGE changes the exit code."""

    DAMAGE = "damage"
    """Stored bytes or references are wrong, something that is still needed is gone, or the next start drops entries."""
    WARNING = "warning"
    """Nothing stored is wrong, but an operator should know."""
    NOTE = "note"
    """A normal state that explains itself: what a crash or a running engine leaves."""


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault or remarkable state of one file: where it is, what was expected, what was found, and what to do."""

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
    """Advice what to do; empty if nothing is to be done."""


def finding(
    severity: Severity,
    code: str,
    path: str,
    offset: int | None,
    message: str,
    action: str = "",
    expected: str | None = None,
    found: str | None = None,
) -> Finding:
    """Return a finding; `damage`, `warning` and `note` are this with their severity."""
    return Finding(
        severity=severity,
        code=code,
        path=path,
        offset=offset,
        message=message,
        expected=expected,
        found=found,
        action=action,
    )


damage = partial(finding, Severity.DAMAGE)
warning = partial(finding, Severity.WARNING)
note = partial(finding, Severity.NOTE)


def worst_first(findings: list[Finding]) -> list[Finding]:
    """The same findings, damage first, then by path and offset."""
    rank = {severity: number for number, severity in enumerate(Severity)}
    return sorted(findings, key=lambda finding: (rank[finding.severity], finding.path, finding.offset or 0))


def has_damage(findings: list[Finding]) -> bool:
    """Whether any finding is damage."""
    return any(finding.severity is Severity.DAMAGE for finding in findings)
