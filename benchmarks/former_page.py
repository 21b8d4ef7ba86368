"""What docs/benchmarks.md says already, for modules that are not run again: their sections and what their aims came to.

So one module can be measured anew where the lines of the others are gone; each section tells when it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

_AIM_CELLS = 5


@dataclass(slots=True)
class FormerPage:
    """Sections and aims of an existing docs/benchmarks.md; empty if there is no page."""

    sections: dict[str, list[str]] = field(default_factory=dict)
    """Lines of each section, its heading first, by module."""
    aims: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)
    """What was reached, and whether that was enough, by (module, aim)."""

    @classmethod
    def read(cls, path: Path) -> FormerPage:
        found = cls()
        for part in path.read_text().split("\n## ")[1:] if path.exists() else ():
            lines = part.rstrip().splitlines()
            found.sections[lines[0]] = [f"## {lines[0]}", *lines[1:], ""]
        for line in found.sections.pop("Aims", ()):
            cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
            if len(cells) == _AIM_CELLS and cells[-1].partition(" ")[0] in ("yes", "no"):
                module, what, _, reached, told = cells
                found.aims[module, what] = reached, told == "yes"
        return found
