"""A progress bar: one line that is redrawn on a terminal, a line for every tenth elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

_WIDTH = 40


class ProgressBar:
    """A bar on a terminal, and a line for every tenth elsewhere."""

    def __init__(self, what: str, total: int, stream: TextIO = sys.stdout) -> None:
        self._what = what
        self._total = max(1, total)
        self._stream = stream
        self._drawn = ""
        self._tenth = -1

    def update(self, done: int) -> None:
        """Show that `done` of the total are done."""
        share = min(1.0, done / self._total)
        filled = round(share * _WIDTH)
        line = f"  [{'#' * filled}{'.' * (_WIDTH - filled)}] {done}/{self._total} {self._what}"
        if self._stream.isatty():
            if line != self._drawn:
                self._stream.write(f"\r{line}")
        elif int(share * 10) > self._tenth:
            self._tenth = int(share * 10)
            self._stream.write(f"{line}\n")
        self._drawn = line
        self._stream.flush()

    def say(self, text: str) -> None:
        """Print a line of its own; the bar is drawn again below it."""
        if self._stream.isatty() and self._drawn:
            self._stream.write("\n")
        self._stream.write(f"{text}\n")
        self._stream.flush()
        self._drawn = ""

    def close(self) -> None:
        """End the line of the bar."""
        if self._stream.isatty() and self._drawn:
            self._stream.write("\n")
