"""Files that have every number which was a descriptor of this process a moment ago."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_FILES = 64


@contextmanager
def reused_numbers(directory: Path) -> Iterator[list[Path]]:
    """Empty files, open for writing under the lowest free numbers: who writes to a descriptor that it has closed writes to one."""
    paths = [directory / f"reused-{number}" for number in range(_FILES)]
    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(path.open("wb"))
        yield paths
