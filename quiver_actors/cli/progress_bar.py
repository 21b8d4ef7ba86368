"""A bar or a line on stderr for what takes long: only on a terminal, gone when it is done."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

from quiver_actors.base.units import format_size

_WIDTH = 30
_REDRAW_SECONDS = 0.1


class StatusLine:
    """A line on stderr that shows the latest news of work of unknown length. Draws nothing where `stream` is no terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty()
        self._drawn_at = 0.0

    def say(self, text: str) -> None:
        """Draw the text in place of the line, at most a few times a second; nothing where there is no terminal."""
        if self._is_shown and time.monotonic() - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._stream.write(f"\r\x1b[K{text}")
            self._stream.flush()

    def clear(self) -> None:
        """Take the line away, so that something can be printed."""
        if self._drawn_at:
            self._drawn_at = 0.0
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()


class ProgressBar:
    """Counts bytes up to a total that may be a little wrong. Draws nothing where `stream` is no terminal."""

    def __init__(self, total_bytes: int, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._is_shown = self._stream.isatty() and total_bytes > 0
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._drawn_at = 0.0

    def advance(self, size_bytes: int) -> None:
        """Add bytes that are done, and draw the bar at most a few times a second."""
        self._done_bytes += size_bytes
        if self._is_shown and time.monotonic() - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = time.monotonic()
            self._draw()

    def _draw(self) -> None:
        done = min(self._done_bytes, self._total_bytes)
        filled = _WIDTH * done // self._total_bytes
        bar = "#" * filled + "." * (_WIDTH - filled)
        self._stream.write(f"\r\x1b[K[{bar}] {format_size(done)} of {format_size(self._total_bytes)}")
        self._stream.flush()

    def clear(self) -> None:
        """Take the bar away, so that something can be printed; the next `advance` draws it again."""
        if self._is_shown and self._drawn_at:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
