"""What a command of this package prints at its end: for people on stderr, for `tests.torture` on the last line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec


class Tally(Protocol):
    failures: list[str]

    def figures(self) -> Mapping[str, Any]: ...


def numbers_given(*defaults: int) -> list[int]:
    """The command's first arguments, or what stands for those that are missing."""
    return [int(sys.argv[n]) if len(sys.argv) > n else default for n, default in enumerate(defaults, 1)]


def show(started: float, tally: Tally) -> int:
    """Print the tally of a run that began at `started` (`time.monotonic`); returns the exit code."""
    print(f"# {time.monotonic() - started:.1f} s", file=sys.stderr)
    for name, reason in getattr(tally, "skipped", {}).items():
        print(f"skipped {name}: {reason}", file=sys.stderr)
    print(msgspec.json.encode(tally).decode())
    print(json.dumps(tally.figures()))
    return bool(tally.failures)
