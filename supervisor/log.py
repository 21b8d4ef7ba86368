"""The log: one event a line, each with a stable name (`quiver.worker.start`), as text for people or as JSON.

To stderr: data goes to stdout.

Repeats are limited: of one event about the same thing, `REPEATS_MAX` lines come in `REPEAT_WINDOW_SECONDS`; the next line after that
says how many were left out. The same holds where nobody reads the log: see `log_stream`. Nothing is left out silently.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from datetime import datetime
from typing import TextIO

from .log_stream import log_handler

PREFIX = "quiver."
REPEATS_MAX = 10
REPEAT_WINDOW_SECONDS = 10.0
LOG_FORMATS = ("human", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
_SUBJECTS = ("worker", "topic", "subscriber", "code")
"""Fields that say what an event is about: with other values it is no repeat."""
_KEYS_MAX = 256
_logger = logging.getLogger("quiver")
_PLAIN = re.compile(r"^[\w@%+./:,-]+$")


def log_event(event: str, fields: dict[str, object], level: int = logging.INFO) -> None:
    """Log one event; fields that are None are left out."""
    if _logger.isEnabledFor(level):
        _logger.log(level, "%s", format_event(event, fields), extra={"event": PREFIX + event, "fields": fields})


def format_event(event: str, fields: dict[str, object]) -> str:
    """`quiver.worker.start worker=core_0 pid=4711`: values with spaces or quotes are quoted, newlines escaped."""
    pairs = [f"{key}={_spell(value)}" for key, value in fields.items() if value is not None]
    return " ".join([f"{PREFIX}{event}", *pairs])


def _spell(value: object) -> str:
    text = str(value)
    if _PLAIN.match(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


class RepeatLimit(logging.Filter):
    """Passes the first `REPEATS_MAX` lines of an event in each window; a later one that passes carries `suppressed=N`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now = now
        self._windows: dict[tuple[object, ...], list[float]] = {}
        """Start of the window, lines that passed and lines left out, by event and subject."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged: errors always, other events a limited number of times in a window."""
        event = getattr(record, "event", None)
        if event is None or record.levelno >= logging.ERROR:
            return True
        fields = getattr(record, "fields", {})
        key = (event, *(fields.get(subject) for subject in _SUBJECTS))
        now = self._now()
        window = self._windows.get(key)
        if window is None or now - window[0] >= REPEAT_WINDOW_SECONDS:
            if window is not None and window[2]:
                record.suppressed = int(window[2])
            self._open(key, now)
            return True
        window[1 if window[1] < REPEATS_MAX else 2] += 1
        return window[2] == 0

    def _open(self, key: tuple[object, ...], now: float) -> None:
        if len(self._windows) >= _KEYS_MAX:
            self._windows = {
                old: window
                for old, window in self._windows.items()
                if window[2] or now - window[0] < REPEAT_WINDOW_SECONDS
            }
        self._windows[key] = [now, 1, 0]


class _HumanFormatter(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("ts=%(asctime)s level=%(levelname)s event=%(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging calls it so
        """Local time with milliseconds and its offset from UTC: hosts of several zones, and summer time, stay comparable."""
        return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")

    def format(self, record: logging.LogRecord) -> str:
        suppressed = getattr(record, "suppressed", 0)
        return super().format(record) + (f" suppressed={suppressed}" if suppressed else "")


class _JsonFormatter(logging.Formatter):
    """One object a line: `ts` (UTC), `level`, `event`, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{time.strftime('%FT%T', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        line: dict[str, object] = {"ts": stamp, "level": record.levelname.lower()}
        event = getattr(record, "event", None)
        if event is None:
            line |= {"event": PREFIX + "log", "logger": record.name, "message": record.getMessage()}
        else:
            line |= {"event": event}
            line |= {key: value for key, value in getattr(record, "fields", {}).items() if value is not None}
        if suppressed := getattr(record, "suppressed", 0):
            line["suppressed"] = suppressed
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(stream: TextIO, level: int | str = logging.INFO, log_format: str = "human") -> None:
    """Send the log of this process, and of what it forks, to `stream`.

    Args:
        level: a number of `logging`, or one of `LOG_LEVELS`.
        log_format: one of `LOG_FORMATS`.
    """
    handler = log_handler(stream)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _HumanFormatter())
    handler.addFilter(RepeatLimit())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper() if isinstance(level, str) else level)
